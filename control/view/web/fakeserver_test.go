package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
	"github.com/nfqproxy/nfqproxy/control/view/web"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// token is what the fake wants of who holds flows.
const token = "secret"

// servicesRequest is a request for services, and how many it got.
type servicesRequest struct {
	query    string
	services int
	at       time.Time
}

// handler serves the fake's API and the page.
func (f *fake) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/flows", f.serveFlows)
	mux.HandleFunc("GET /v1/flows/{id}", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		record := f.flows[r.PathValue("id")]
		f.mu.Unlock()
		if record == nil {
			refuse(w, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("flow %q: not known (any more)", r.PathValue("id"))})
			return
		}
		if o := other(record); o != nil && record.Others == nil {
			copied := *record
			copied.Others = []*flow.Record{o}
			record = &copied
		}
		answer(w, http.StatusOK, record)
	})
	mux.HandleFunc("GET /v1/services", f.serveServices)
	mux.HandleFunc("GET /v1/topology", f.serveTopology)
	mux.HandleFunc("POST /v1/explain", f.serveExplain)
	doctor := &findings.Doctor{Objects: func(context.Context) (*manifest.Objects, servicetable.NodeConfig, error) {
		return f.world.objects, servicetable.NodeConfig{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, nil
	}}
	mux.HandleFunc("GET /v1/findings", func(w http.ResponseWriter, r *http.Request) {
		list, err := doctor.Findings(r.Context())
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, list)
	})
	mux.HandleFunc("GET /v1/services/{namespace}/{name}/manifest", func(w http.ResponseWriter, r *http.Request) {
		m, err := doctor.Manifest(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, m)
	})
	mux.HandleFunc("POST /v1/why", func(w http.ResponseWriter, r *http.Request) {
		var q diagnose.Question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			refuse(w, err)
			return
		}
		a, err := doctor.Why(r.Context(), q)
		if wrong, ok := errors.AsType[*diagnose.QuestionError](err); ok {
			err = &observe.Error{Status: http.StatusBadRequest, Field: wrong.Field, Message: wrong.Err.Error()}
		}
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, a)
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, observe.StatusList{Nodes: f.status()})
	})
	mux.HandleFunc("POST /v1/requests", f.writing(func(w http.ResponseWriter, r *http.Request) (any, error) {
		var q labapi.Request
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return nil, err
		}
		return f.request(q)
	}))
	mux.HandleFunc("POST /v1/holds", f.writing(func(w http.ResponseWriter, r *http.Request) (any, error) {
		var q observe.HoldQuery
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return nil, err
		}
		return f.arm(q)
	}))
	mux.HandleFunc("GET /v1/holds", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		holds := []observe.Hold{}
		for _, h := range f.holds {
			holds = append(holds, *h)
		}
		answer(w, http.StatusOK, map[string]any{"holds": holds})
	})
	mux.HandleFunc("GET /v1/holds/{id}", f.serveHold)
	mux.HandleFunc("POST /v1/holds/{id}/act", f.writing(func(w http.ResponseWriter, r *http.Request) (any, error) {
		var a observe.Act
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			return nil, err
		}
		return f.act(r.PathValue("id"), a)
	}))
	mux.HandleFunc("DELETE /v1/holds/{id}", f.writing(func(w http.ResponseWriter, r *http.Request) (any, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if h := f.holds[r.PathValue("id")]; h != nil && h.State != observe.HoldDone {
			f.end(h, "cancelled")
		}
		return nil, nil
	}))
	config := flowapi.Config{Observer: observetest.New("node-a"), Token: token, OpenLoopback: true}
	var views viewapi.Config
	if f.lab != nil {
		views.Lab = f.lab
	}
	if f.teacher != nil {
		views.Teacher = f.teacher
	}
	config.Routes = viewapi.Routes(views)
	api := flowapi.New(config)
	mux.Handle("/v1/lesson", api)
	mux.Handle("/v1/lesson/shell", api)
	mux.Handle("/v1/lab", api)
	mux.Handle("/v1/lab/", api)
	mux.Handle("/", web.Handler())
	return mux
}

func (f *fake) serveServices(w http.ResponseWriter, r *http.Request) {
	p := r.URL.Query()
	list, err := f.services(observe.ServiceQuery{Service: p.Get("service"), Namespace: p.Get("namespace"), Active: p.Get("active") == "true", Changes: p.Get("changes") == "true", Limit: p.Get("limit"), After: p.Get("after")})
	if err != nil {
		refuse(w, err)
		return
	}
	f.mu.Lock()
	f.requests = append(f.requests, servicesRequest{r.URL.RawQuery, len(list.Services), time.Now()})
	f.mu.Unlock()
	answer(w, http.StatusOK, list)
}

// serveFlows gives the flows as lines or, following, as server-sent events.
func (f *fake) serveFlows(w http.ResponseWriter, r *http.Request) {
	p := r.URL.Query()
	q := observe.FlowQuery{
		Service: p.Get("service"), Namespace: p.Get("namespace"), Pod: p.Get("pod"), Node: p.Get("node"), Source: p.Get("source"),
		Destination: p.Get("destination"), Endpoint: p.Get("endpoint"), Port: p.Get("port"), Protocol: p.Get("protocol"),
		Verdict: p.Get("verdict"), Reason: p.Get("reason"), State: p.Get("state"), ServicesOnly: p.Get("servicesonly") == "true",
		Joined: p.Get("joined") == "true",
	}
	if q.Protocol != "" && !slices.Contains([]string{"TCP", "UDP", "SCTP"}, strings.ToUpper(q.Protocol)) {
		refuse(w, &observe.Error{Status: http.StatusBadRequest, Field: "protocol", Message: fmt.Sprintf("protocol %q: want TCP, UDP or SCTP", q.Protocol)})
		return
	}
	since, _ := time.Parse(time.RFC3339, p.Get("since"))
	limit, err := strconv.Atoi(p.Get("limit"))
	if err != nil && p.Has("since") {
		limit = -1 // all
	}
	if p.Get("follow") != "true" {
		_, known, leave := f.follow(q, limit, since)
		leave()
		events := r.Header.Get("Accept") == "text/event-stream"
		if events {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		for _, item := range known {
			switch {
			case events:
				var b bytes.Buffer
				writeEvent(&b, item)
				_, _ = w.Write(b.Bytes())
			case item.Record != nil:
				answer(w, http.StatusOK, item.Record)
			}
		}
		return
	}
	follower, before, leave := f.follow(q, limit, since)
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	var b bytes.Buffer
	for _, item := range before {
		writeEvent(&b, item)
	}
	b.WriteString(":\n\n")
	for {
		if _, err := w.Write(b.Bytes()); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		b.Reset()
		select {
		case <-r.Context().Done():
			return
		case item := <-follower.items:
			writeEvent(&b, item)
		}
		for len(follower.items) > 0 && b.Len() < 1<<16 {
			writeEvent(&b, <-follower.items)
		}
	}
}

func writeEvent(b *bytes.Buffer, item observe.Item) {
	kind, what := "flow", any(item.Record)
	switch {
	case item.Missed != nil:
		kind, what = "missed", item.Missed
	case item.Joined != nil:
		kind, what = "joined", item.Joined
	}
	data, err := json.Marshal(what)
	if err != nil {
		panic(err) // a record can always be written
	}
	fmt.Fprintf(b, "event: %s\ndata: %s\n\n", kind, data)
}

func (f *fake) serveTopology(w http.ResponseWriter, _ *http.Request) {
	t := observe.Topology{Pods: f.world.pods, Hosts: f.world.hosts, Lab: "shop", CanHold: true, CanWhy: true, CanRequest: true, CanChange: f.lab != nil, CanLearn: f.teacher != nil, HasHistory: f.history}
	for _, n := range f.world.nodes {
		t.Nodes = append(t.Nodes, observe.TopologyNode{Name: n.name, Addresses: n.addresses, PodCIDRs: n.cidrs, Observed: n.name != f.unobserved})
	}
	answer(w, http.StatusOK, t)
}

// named is a Service by its name, as the destination of a request.
var named = regexp.MustCompile(`^([a-z]+)\.([a-z]+):([0-9]+)$`)

// request is answered by the endpoint that is decided for it.
func (f *fake) request(q labapi.Request) (*labapi.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lookup *labapi.Lookup
	if m := named.FindStringSubmatch(q.To); m != nil {
		name := m[1] + "." + m[2] + ".svc.cluster.local."
		q.To, q.Protocol = "service/"+m[2]+"/"+m[1]+":"+m[3], "tcp"
		lookup = &labapi.Lookup{Name: m[1] + "." + m[2], Queries: []labapi.LookupQuery{{Name: name, Type: "A", Answer: "10.96.0.99"}}}
	}
	r, err := f.world.decide(f.world.nodeOf[q.From], flow.Question{Protocol: q.Protocol, Source: "pod/" + q.From, Destination: q.To})
	if err != nil {
		return nil, err
	}
	if r.Verdict != "dnat" {
		return &labapi.Response{Error: "connection refused", Seconds: 0.0002}, nil
	}
	return &labapi.Response{Lookup: lookup, Source: r.Source, Destination: r.Destination, By: r.Pod, Seconds: 0.0012}, nil
}

// status is that of daemons of which one has a problem.
func (f *fake) status() (list []observe.Status) {
	for i, n := range f.world.nodes {
		s := observetest.Status()
		d := *s.Daemon
		table := *d.Table
		d.Table = &table
		s.Node, s.Daemon, table.Node = n.name, &d, n.name
		d.Connections = &observe.Connections{Entries: uint64(3120 * (i + 1)), Limit: 262144}
		if i == 2 {
			s.Problems = []observe.Problem{{Code: observe.ProblemWorkerStuck, Text: "the worker of queue 101 makes no progress"}}
		}
		list = append(list, s)
	}
	return list
}

func (f *fake) serveExplain(w http.ResponseWriter, r *http.Request) {
	var q observe.Question
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		refuse(w, err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	record, err := f.world.decide(q.Node, q.Question)
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, record)
}

// serveHold waits until the hold has changed.
func (f *fake) serveHold(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	end := time.After(time.Minute)
	for {
		h, changed, err := f.get(r.PathValue("id"))
		if err != nil {
			refuse(w, err)
			return
		}
		if h.Generation > after {
			answer(w, http.StatusOK, h)
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		case <-end:
			answer(w, http.StatusOK, h)
			return
		}
	}
}

// writing serves what needs the token.
func (f *fake) writing(do func(http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			refuse(w, &observe.Error{Status: http.StatusUnauthorized, Message: "the token is missing or wrong"})
			return
		}
		what, err := do(w, r)
		switch {
		case err != nil:
			refuse(w, err)
		case what == nil:
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/v1/holds":
			answer(w, http.StatusCreated, what)
		default:
			answer(w, http.StatusOK, what)
		}
	}
}

func answer(w http.ResponseWriter, status int, what any) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
	}
	_ = json.NewEncoder(w).Encode(what) // the client may be gone
}

// refuse answers with an error. Those of questions begin with the field they are about.
func refuse(w http.ResponseWriter, err error) {
	var e *observe.Error
	if !errors.As(err, &e) {
		field, _, _ := strings.Cut(err.Error(), " ")
		e = &observe.Error{Status: http.StatusBadRequest, Field: field, Message: err.Error()}
	}
	answer(w, e.Status, e)
}
