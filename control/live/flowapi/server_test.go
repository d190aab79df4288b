package flowapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi/flowapitest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// longTimeout is longer than any test waits.
const longTimeout = time.Hour

// longTiming waits for nothing but for a stream to begin.
var longTiming = Timing{Write: longTimeout, Answer: longTimeout, Read: longTimeout, FirstSign: time.Millisecond, KeepAlive: longTimeout, Poll: longTimeout}

func newWorld(t *testing.T, c Config, timing Timing) *flowapitest.World {
	t.Helper()
	return flowapitest.New(t, func(fake *observetest.Fake, log io.Writer) http.Handler {
		c.OpenLoopback, c.Timing = true, &timing
		c.Observer, c.Log = fake, slog.New(slog.NewTextHandler(log, nil))
		return New(c)
	})
}

func TestAnswers(t *testing.T) {
	w := newWorld(t, Config{Token: "secret"}, longTiming)
	record := flow.Record{Version: 1, ID: "a/1", Service: "default/web:<http>", Life: &flow.Life{State: flow.Decided}}
	w.Fake.List = []observe.Item{{Record: &record}}
	w.Fake.ServicesAnswer = observe.Services{Nodes: []string{"node-a"}, Services: []observe.Service{{Service: `shop/"services":[]:<http>`}, {Service: "shop/web"}}, Next: "shop/web/IPv4", Lost: 3}
	w.Fake.TableAnswer = observe.Table{Node: "node-a", Services: 5}
	w.Fake.StatsAnswer = observe.Stats{Node: "node-a", Packets: 7}
	w.Fake.TopologyAnswer = observe.Topology{Lab: "lab"}
	w.Fake.ExplainAnswer = flow.Record{Version: 1, Verdict: "drop"}
	seed := uint64(5)
	tests := []struct {
		method, path, body string
		status             int
		question           any // that the observer is to get
		answer             any
	}{
		{"GET", "/v1/flows/a%2F1", "", 200, "a/1", record},
		{"GET", "/v1/services?service=web&active", "", 200, observe.ServiceQuery{Service: "web", Active: true}, w.Fake.ServicesAnswer},
		{"GET", "/v1/table", "", 200, nil, observe.TableList{Tables: []observe.Table{w.Fake.TableAnswer}}},
		{"GET", "/v1/stats", "", 200, nil, observe.StatsList{Nodes: []observe.Stats{w.Fake.StatsAnswer}}},
		{"GET", "/v1/topology", "", 200, nil, w.Fake.TopologyAnswer},
		{
			"POST", "/v1/explain", `{"protocol":"tcp","source":"10.0.0.1","destination":"10.96.0.1:80","local":true,"node":"node-a","seed":5,"reply":true}`, 200,
			observe.Question{Question: flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: "10.96.0.1:80", Local: true}, Node: "node-a", Seed: &seed, Reply: true},
			w.Fake.ExplainAnswer,
		},
	}
	for _, tt := range tests {
		r := w.Do(t, tt.method, tt.path, tt.body, flowapitest.JSONBody)
		body := flowapitest.Content(t, r)
		want, err := encode(tt.answer)
		if err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != tt.status || r.Header.Get("Content-Type") != "application/json" || body != string(want) {
			t.Errorf("%s %s: %d %s\n%s, want\n%s", tt.method, tt.path, r.StatusCode, r.Header.Get("Content-Type"), body, want)
		}
		requests := w.Fake.Requests()
		if diff := cmp.Diff(tt.question, requests[len(requests)-1]); diff != "" {
			t.Errorf("%s %s: -want +requests:\n%s", tt.method, tt.path, diff)
		}
		if tt.method == "GET" {
			r := w.Do(t, "HEAD", tt.path, "")
			if body := flowapitest.Content(t, r); r.StatusCode != tt.status || body != "" {
				t.Errorf("HEAD %s: %d %s", tt.path, r.StatusCode, body)
			}
		}
	}
	r := w.Do(t, "GET", "/openapi.yaml", "")
	if body := flowapitest.Content(t, r); r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/yaml" || body != string(Description) {
		t.Errorf("openapi.yaml: %d %s", r.StatusCode, r.Header.Get("Content-Type"))
	}
	if w.Log.Len() > 0 {
		t.Errorf("logged: %s", w.Log)
	}
}

func TestErrors(t *testing.T) {
	w := newWorld(t, Config{Token: "secret", Page: http.NotFoundHandler()}, longTiming)
	const token = "Authorization: Bearer secret"
	const known = "want follow, service, namespace, pod, node, source, destination, endpoint, port, protocol, verdict, reason, state, servicesonly, joined, event, since, until, limit, rate, steps"
	tests := []struct {
		method, path, body string
		headers            []string
		want               observe.Error
	}{
		{"GET", "/v1/flows?folow=true", "", nil, observe.Error{Status: 400, Field: "folow", Message: `parameter "folow": ` + known}},
		{"GET", "/v1/flows?steps&steps", "", nil, observe.Error{Status: 400, Field: "steps", Message: "steps is given 2 times: give it once, a list with commas"}},
		{"GET", "/v1/flows?protocol=tpc", "", nil, observe.Error{Status: 400, Field: "protocol", Message: `protocol "tpc": want TCP, UDP or SCTP`}},
		{"GET", "/v1/flows?follow&limit=many", "", nil, observe.Error{Status: 400, Field: "limit", Message: `limit "many": want a number; 0 is all that are known`}},
		{"GET", "/v1/flows?service=%zz", "", nil, observe.Error{Status: 400, Message: `cannot parse the query parameters: invalid URL escape "%zz"`}},
		{"GET", "/v1/flows/none", "", nil, observe.Error{Status: 404, Message: `no flow "none" is known at node node-a`}},
		{"GET", "/v1/flows/none?steps", "", nil, observe.Error{Status: 400, Field: "steps", Message: `parameter "steps": this path has no parameters`}},
		{"GET", "/v1/services?activ=true", "", nil, observe.Error{Status: 400, Field: "activ", Message: `parameter "activ": want service, namespace, active, changes, limit, after`}},
		{"GET", "/v1/services?namespace=A", "", nil, observe.Error{Status: 400, Field: "namespace", Message: `namespace "A": want a namespace's name, of lower-case letters, digits, . and -`}},
		{"GET", "/v1/services?limit=-1", "", nil, observe.Error{Status: 400, Field: "limit", Message: `limit "-1": want a number; 0 is all`}},
		{"GET", "/v1/services?after=web", "", nil, observe.Error{Status: 400, Field: "after", Message: `after "web": want the field next of an earlier response`}},
		{"GET", "/v1/table?x=1", "", nil, observe.Error{Status: 400, Field: "x", Message: `parameter "x": this path has no parameters`}},
		{"GET", "/v1/stats?x=1", "", nil, observe.Error{Status: 400, Field: "x", Message: `parameter "x": this path has no parameters`}},
		{"GET", "/v1/topology?x=1", "", nil, observe.Error{Status: 400, Field: "x", Message: `parameter "x": this path has no parameters`}},
		{"GET", "/openapi.yaml?x=1", "", nil, observe.Error{Status: 400, Field: "x", Message: `parameter "x": this path has no parameters`}},
		{"GET", "/v1/nothing", "", nil, observe.Error{Status: 404, Message: "/v1/nothing not found: see GET /openapi.yaml"}},
		{"GET", "/v1", "", nil, observe.Error{Status: 404, Message: "/v1 not found: see GET /openapi.yaml"}},
		{"GET", "/v1/flows/", "", nil, observe.Error{Status: 404, Message: "/v1/flows/ not found: use /v1/flows"}},
		{"GET", "//v1/flows", "", nil, observe.Error{Status: 404, Message: "//v1/flows not found: use /v1/flows"}},
		{"DELETE", "/v1/flows", "", nil, observe.Error{Status: 405, Message: "DELETE /v1/flows: want one of GET, HEAD, OPTIONS"}},
		{"PUT", "/v1/holds", "", nil, observe.Error{Status: 405, Message: "PUT /v1/holds: want one of GET, HEAD, POST, OPTIONS"}},
		{"BREW", "/v1/holds/1", "", nil, observe.Error{Status: 405, Message: "BREW /v1/holds/1: want one of DELETE, GET, HEAD, OPTIONS"}},
		{"POST", "/", "", nil, observe.Error{Status: 405, Message: "POST /: want one of GET, HEAD, OPTIONS"}},

		{"POST", "/v1/explain", "{}", nil, observe.Error{Status: 415, Message: `Content-Type "": want application/json`}},
		{"POST", "/v1/explain", "{}", []string{"Content-Type: text/plain"}, observe.Error{Status: 415, Message: `Content-Type "text/plain": want application/json`}},
		{"POST", "/v1/explain", "{}", []string{flowapitest.JSONBody, "Content-Encoding: gzip"}, observe.Error{Status: 415, Message: `Content-Encoding "gzip": want none`}},
		{"POST", "/v1/explain?seed=1", "{}", []string{flowapitest.JSONBody}, observe.Error{Status: 400, Field: "seed", Message: `parameter "seed": this path has no parameters`}},
		{"POST", "/v1/explain", `{"sorce":"a"}`, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Field: "sorce", Message: `unknown field "sorce"`}},
		{"POST", "/v1/explain", `{"Source":"a"}`, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Field: "Source", Message: `unknown field "Source"`}},
		{"POST", "/v1/explain", `{"source":"a","source":"b"}`, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Field: "source", Message: `duplicate field "source"`}},
		{"POST", "/v1/explain", `{"source":1}`, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Field: "source", Message: `source is a JSON number: want a string`}},
		{"POST", "/v1/explain", `{"seed":-1}`, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Field: "seed", Message: `seed is a JSON number -1: want an integer, 0 or more`}},
		{"POST", "/v1/explain", `{"local":"yes"}`, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Field: "local", Message: `local is a JSON string: want true or false`}},
		{"POST", "/v1/explain", `[]`, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Message: `the body is a JSON array: want an object`}},
		{"POST", "/v1/explain", `null`, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Message: `the body is null: want a JSON object`}},
		{"POST", "/v1/explain", ``, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Message: `invalid JSON in the body: unexpected end of JSON input`}},
		{"POST", "/v1/explain", `{} {}`, []string{flowapitest.JSONBody}, observe.Error{Status: 400, Message: `invalid JSON in the body: invalid character '{' after top-level value`}},
		{"POST", "/v1/explain", `{"source":"` + strings.Repeat("a", maxBody) + `"}`, []string{flowapitest.JSONBody}, observe.Error{Status: 413, Message: `the body exceeds the limit of 65536 bytes`}},

		{"POST", "/v1/holds", `{"flow":{}}`, []string{flowapitest.JSONBody, token}, observe.Error{Status: 400, Field: "flow", Message: "flow: no filter: give service, namespace, pod, node, source, destination, port or protocol"}},
		{"POST", "/v1/holds", `{"flow":{"protocol":"x"}}`, []string{flowapitest.JSONBody, token}, observe.Error{Status: 400, Field: "flow.protocol", Message: `protocol "x": want TCP, UDP or SCTP`}},
		{"POST", "/v1/holds", `{"flow":{"verdict":"x"}}`, []string{flowapitest.JSONBody, token}, observe.Error{Status: 400, Field: "flow.verdict", Message: `unknown field "flow.verdict"`}},
		{"POST", "/v1/holds", `{"flow":[]}`, []string{flowapitest.JSONBody, token}, observe.Error{Status: 400, Field: "flow", Message: `flow is a JSON array: want an object`}},
		{"POST", "/v1/holds", `{"flow":{"pod":"a"},"seconds":601}`, []string{flowapitest.JSONBody, token}, observe.Error{Status: 400, Field: "seconds", Message: `seconds 601: want 1 to 600`}},
		{"POST", "/v1/holds/x/act", `{"action":"jump"}`, []string{flowapitest.JSONBody, token}, observe.Error{Status: 400, Field: "action", Message: `action "jump": want step, back, choose, release or drop`}},
		{"POST", "/v1/holds/x/act", `{"action":"choose"}`, []string{flowapitest.JSONBody, token}, observe.Error{Status: 400, Field: "endpoint", Message: `endpoint is missing: want one of the record's candidates`}},
		{"POST", "/v1/holds/x/act", `{"action":"drop","endpoint":"a"}`, []string{flowapitest.JSONBody, token}, observe.Error{Status: 400, Field: "endpoint", Message: `endpoint: only the action choose has one`}},
		{"POST", "/v1/holds/x/act", `{"action":"drop"}`, []string{flowapitest.JSONBody, token}, observe.Error{Status: 404, Message: `hold "x" not found at node node-a`}},
		{"DELETE", "/v1/holds/x", "", []string{token}, observe.Error{Status: 404, Message: `hold "x" not found at node node-a`}},
		{"GET", "/v1/holds/x", "", nil, observe.Error{Status: 404, Message: `hold "x" not found at node node-a`}},
		{"GET", "/v1/holds/x?after=new", "", nil, observe.Error{Status: 400, Field: "after", Message: `after "new": want a generation of the hold, a number`}},
		{"GET", "/v1/holds?after=1", "", nil, observe.Error{Status: 400, Field: "after", Message: `parameter "after": this path has no parameters`}},
	}
	for _, tt := range tests {
		r := w.Do(t, tt.method, tt.path, tt.body, tt.headers...)
		var got observe.Error
		if err := json.Unmarshal([]byte(flowapitest.Content(t, r)), &got); err != nil || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s, %v", tt.method, tt.path, r.StatusCode, r.Header.Get("Content-Type"), err)
		}
		if got != tt.want || r.StatusCode != tt.want.Status {
			t.Errorf("%s %s: %d\n%+v, want\n%+v", tt.method, tt.path, r.StatusCode, got, tt.want)
		}
		if allow := r.Header.Get("Allow"); (r.StatusCode == 405) != (allow != "") {
			t.Errorf("%s %s: %d, Allow: %s", tt.method, tt.path, r.StatusCode, allow)
		}
	}
	r := w.Do(t, "OPTIONS", "/v1/holds", "")
	if r.StatusCode != http.StatusNoContent || r.Header.Get("Allow") != "GET, HEAD, POST, OPTIONS" {
		t.Errorf("OPTIONS: %d, Allow: %s", r.StatusCode, r.Header.Get("Allow"))
	}
	if w.Log.Len() > 0 {
		t.Errorf("faults of the client are logged: %s", w.Log)
	}
}

// TestOwnFaults are reported and logged. A silent node is a fault of another.
func TestOwnFaults(t *testing.T) {
	slow := longTiming
	slow.FirstSign = longTimeout
	w := newWorld(t, Config{}, slow)
	w.Fake.Fail(errors.New("the table is on fire"))
	for _, path := range []string{"/v1/flows", "/v1/flows?follow", "/v1/flows/a", "/v1/services", "/v1/table", "/v1/stats", "/v1/topology"} {
		r := w.Do(t, "GET", path, "")
		if body := flowapitest.Content(t, r); r.StatusCode != 500 || body != `{"status":500,"error":"the table is on fire"}`+"\n" {
			t.Errorf("%s: %d %s", path, r.StatusCode, body)
		}
	}
	silent := fmt.Errorf("no answer for 2s: %w", observe.ErrSilent)
	w.Fake.Fail(silent)
	r := w.Do(t, "GET", "/v1/table", "")
	if body := flowapitest.Content(t, r); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" || !strings.Contains(body, silent.Error()) {
		t.Errorf("a silent node: %d %s", r.StatusCode, body)
	}
	w.Close()
	if strings.Contains(w.Log.String(), "no answer") {
		t.Errorf("a silent node is logged, as by the relay:\n%s", w.Log)
	}
	if n := strings.Count(w.Log.String(), "the table is on fire"); n != 7 {
		t.Errorf("logged %d times:\n%s", n, w.Log)
	}
}

func TestHolds(t *testing.T) {
	w := newWorld(t, Config{Token: "secret"}, longTiming)
	const token = "Authorization: Bearer secret"
	r := w.Do(t, "POST", "/v1/holds", `{"flow":{"service":"web"},"seconds":5}`, flowapitest.JSONBody, token)
	var h observe.Hold
	if err := json.Unmarshal([]byte(flowapitest.Content(t, r)), &h); err != nil || r.StatusCode != 201 || r.Header.Get("Location") != "/v1/holds/"+h.ID || h.State != observe.HoldWaiting {
		t.Fatalf("%d %v: %v %+v", r.StatusCode, r.Header, err, h)
	}
	// The next generation is waited for.
	go w.Fake.Catch(flow.Record{Version: 1})
	r = w.Do(t, "GET", r.Header.Get("Location")+"?after=1", "")
	if err := json.Unmarshal([]byte(flowapitest.Content(t, r)), &h); err != nil || r.StatusCode != 200 || h.State != observe.HoldHolding || h.Generation != 2 {
		t.Fatalf("%d: %v %+v", r.StatusCode, err, h)
	}
	r = w.Do(t, "POST", "/v1/holds/"+h.ID+"/act", `{"action":"choose","endpoint":"10.0.0.1:80"}`, flowapitest.JSONBody, token)
	if err := json.Unmarshal([]byte(flowapitest.Content(t, r)), &h); err != nil || r.StatusCode != 200 || h.Record.Endpoint != "10.0.0.1:80" {
		t.Fatalf("%d: %v %+v", r.StatusCode, err, h)
	}
	r = w.Do(t, "DELETE", "/v1/holds/"+h.ID, "", token)
	if body := flowapitest.Content(t, r); r.StatusCode != 204 || body != "" {
		t.Errorf("%d %s", r.StatusCode, body)
	}
	var l observe.HoldList
	r = w.Do(t, "GET", "/v1/holds", "")
	if err := json.Unmarshal([]byte(flowapitest.Content(t, r)), &l); err != nil || len(l.Holds) != 1 || l.Holds[0].Outcome != "cancelled" {
		t.Errorf("%d: %v %+v", r.StatusCode, err, l)
	}
	w.Fake.NoHolds = true
	for _, q := range []string{"GET /v1/holds", "GET /v1/holds/x", "POST /v1/holds", "DELETE /v1/holds/x", "POST /v1/holds/x/act"} {
		method, path, _ := strings.Cut(q, " ")
		body := `{"flow":{"service":"web"}}`
		if strings.HasSuffix(path, "act") {
			body = `{"action":"step"}`
		}
		r := w.Do(t, method, path, body, flowapitest.JSONBody, token)
		if body := flowapitest.Content(t, r); r.StatusCode != 404 || !strings.Contains(body, "holding flows is not available on this server") {
			t.Errorf("%s: %d %s", q, r.StatusCode, body)
		}
	}
}

// TestPollEnds: no request waits for ever.
func TestPollEnds(t *testing.T) {
	short := longTiming
	short.Poll = time.Millisecond
	w := newWorld(t, Config{}, short)
	h, err := w.Fake.Hold(t.Context(), observe.HoldQuery{})
	if err != nil {
		t.Fatal(err)
	}
	r := w.Do(t, "GET", "/v1/holds/"+h.ID+"?after=1", "")
	if err := json.Unmarshal([]byte(flowapitest.Content(t, r)), h); err != nil || r.StatusCode != 200 || h.Generation != 1 {
		t.Errorf("%d: %v %+v", r.StatusCode, err, h)
	}
}
