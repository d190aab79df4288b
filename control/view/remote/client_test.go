package remote_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

func newClient(t *testing.T, server string, o remote.ClientOptions) *remote.Client {
	t.Helper()
	c, err := remote.NewClient(server, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// remote gives a client of a server over a fake node.
func served(t *testing.T) (*observetest.Fake, *remote.Client) {
	t.Helper()
	f := observetest.New("node-a")
	s := httptest.NewServer(flowapi.New(flowapi.Config{Observer: f, Token: "secret"}))
	t.Cleanup(s.Close)
	return f, newClient(t, s.URL, remote.ClientOptions{Token: "secret"})
}

func record(id string) observe.Item {
	return observe.Item{Record: &flow.Record{Version: 1, ID: id, Candidates: []flow.Candidate{}, Excluded: []flow.Excluded{}}}
}

// TestClientRequests: a request reaches the server's Observer unchanged, and the answer comes back.
func TestClientRequests(t *testing.T) {
	f, c := served(t)
	ctx := t.Context()
	f.List = []observe.Item{record("a/1 ?"), {Missed: &observe.Missed{Node: "node-a", Missed: 3, Why: observe.MissedLost}}, {Joined: &observe.Joined{Flow: "a/1 ?", Other: record("b/1").Record}}}
	f.ServicesAnswer = observe.Services{Nodes: []string{"node-a"}, Lost: 3}
	f.TableAnswer, f.StatsAnswer = observe.Table{Services: 5}, observe.Stats{Packets: 6}
	f.StatusAnswer = observetest.Status()
	f.TopologyAnswer = observe.Topology{Lab: "lab"}
	f.ObjectsAnswer = observe.TableObjects{Node: "node-a", Generation: 7, YAML: "kind: Service\n"}
	f.ExplainAnswer = flow.Record{Version: 1, Verdict: "drop"}
	seed := uint64(1<<64 - 1)
	question := observe.Question{Question: flow.Question{Protocol: "tcp"}, Seed: &seed}
	query := observe.FlowQuery{Service: "a/b:c,d", Source: "[fd00::1]:80", Since: "2026-01-02T15:04:05+01:00", Steps: true}
	services := observe.ServiceQuery{Namespace: "default", Active: true, Limit: "5", After: "default/web:http/IPv6"}
	var items []observe.Item
	check := func(what string, got, want any, err error) {
		t.Helper()
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", what, err, diff)
		}
	}
	err := c.Flows(ctx, query, func(i observe.Item) error {
		i.Encoded = nil // see TestRelayPassesOn
		items = append(items, i)
		return nil
	})
	check("Flows", items, f.List, err)
	r, err := c.Flow(ctx, "a/1 ?")
	check("Flow", r, f.List[0].Record, err)
	s, err := c.Services(ctx, services)
	want := f.ServicesAnswer
	want.Services = []observe.Service{}
	check("Services", s, &want, err)
	tables, err := c.Tables(ctx)
	check("Tables", tables, []observe.Table{f.TableAnswer}, err)
	stats, err := c.Stats(ctx)
	check("Stats", stats, []observe.Stats{f.StatsAnswer}, err)
	status, err := c.Status(ctx)
	check("Status", status, []observe.Status{f.StatusAnswer}, err)
	topology, err := c.Topology(ctx)
	check("Topology", topology, &f.TopologyAnswer, err)
	objects, err := c.Objects(ctx, observe.ObjectsQuery{Node: "node-a", Generation: "7", Service: "shop/web"})
	check("Objects", objects, &f.ObjectsAnswer, err)
	r, err = c.Explain(ctx, question)
	check("Explain", r, &f.ExplainAnswer, err)
	check("the questions", f.Requests(), []any{query, "a/1 ?", services, nil, nil, nil, nil, observe.ObjectsQuery{Node: "node-a", Generation: "7", Service: "shop/web"}, question}, nil)
}

// TestClientExplainsNames: a daemon is asked about addresses only.
func TestClientExplainsNames(t *testing.T) {
	f, c := served(t)
	f.ExplainAnswer = flow.Record{Version: 1, Verdict: "dnat"}
	f.TopologyAnswer = observe.Topology{
		Nodes: []observe.TopologyNode{{Name: "node-a", Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2")}}},
		Pods:  []observe.TopologyPod{{Name: "shop/shell", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.9"), netip.MustParseAddr("fd00::9")}}},
	}
	f.ServicesAnswer = observe.Services{Services: []observe.Service{
		{Namespace: "default", Name: "web", PortName: "http", Protocol: "TCP", Family: "IPv4", ClusterIP: "10.96.0.10", Port: 80},
		{Namespace: "default", Name: "web", PortName: "http", Protocol: "TCP", Family: "IPv6", ClusterIP: "fd00:10:96::10", Port: 80},
		{Namespace: "default", Name: "nodes-only", Protocol: "TCP", Family: "IPv4"},
	}}
	for _, tt := range []struct{ source, destination, services, from, to string }{
		{"pod/shop/shell", "service/default/web:http", "shop/shell,default/web", "10.244.1.9", "10.96.0.10:80"},
		{"shop/shell:7", "svc/default/web", "shop/shell,default/web", "10.244.1.9:7", "10.96.0.10:80"},
		{"fd00::1", "service/default/web:80", "default/web", "fd00::1", "[fd00:10:96::10]:80"},
		{"10.0.0.1", "node/node-a:30080", "node/node-a", "10.0.0.1", "172.20.0.2:30080"},
	} {
		before := len(f.Requests())
		q := observe.Question{Question: flow.Question{Protocol: "tcp", Source: tt.source, Destination: tt.destination}, Reply: true}
		if r, err := c.Explain(t.Context(), q); err != nil || r.Verdict != "dnat" {
			t.Errorf("%s to %s: %+v, %v", tt.source, tt.destination, r, err)
		}
		want := q
		want.Source, want.Destination = tt.from, tt.to
		if diff := cmp.Diff([]any{nil, observe.ServiceQuery{Service: tt.services}, want}, f.Requests()[before:]); diff != "" {
			t.Errorf("%s to %s: -want +got:\n%s", tt.source, tt.destination, diff)
		}
	}
	for destination, message := range map[string]string{
		"service/default/wbe:80": `destination "service/default/wbe:80": there is no such Service (NAMESPACE/NAME) with a cluster IP (a headless one has none) among the objects (did you mean "default/web"?); there are default/web`,
		"pod/shop/shell":         `destination "pod/shop/shell": a port is missing: write ADDRESS:PORT, [IPV6]:PORT or pod/NAMESPACE/NAME:PORT`,
	} {
		_, err := c.Explain(t.Context(), observe.Question{Question: flow.Question{Protocol: "tcp", Source: "10.0.0.1", Destination: destination}})
		if e, ok := errors.AsType[*observe.Error](err); !ok || e.Status != http.StatusBadRequest || e.Field != "destination" || e.Message != message {
			t.Errorf("%s: %v", destination, err)
		}
		if r := f.Requests(); !cmp.Equal(r[len(r)-1], observe.ServiceQuery{}) {
			t.Errorf("%s: requests %+v", destination, r)
		}
	}
}

func TestClientFollows(t *testing.T) {
	f, c := served(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, ended := make(chan observe.Item), make(chan error, 1)
	go func() {
		ended <- c.Flows(ctx, observe.FlowQuery{Follow: true}, func(i observe.Item) error {
			i.Encoded = nil
			got <- i
			return nil
		})
	}()
	if !f.AwaitReaders(ctx, 1) {
		t.Fatal("no reader follows")
	}
	for _, want := range []observe.Item{record("1"), {Missed: &observe.Missed{Missed: 7, Why: observe.MissedSlow}}, record("2")} {
		f.Publish(want)
		if diff := cmp.Diff(want, <-got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the context ended: %v", err)
	}
	if !f.AwaitReaders(t.Context(), 0) {
		t.Error("the server did not notice")
	}
}

// TestClientStreamsEnd: each's error comes back; an end that is none is an error.
func TestClientStreamsEnd(t *testing.T) {
	f, c := served(t)
	f.List = []observe.Item{record("1"), record("2")}
	enough := errors.New("enough")
	for _, q := range []observe.FlowQuery{{}, {Follow: true, Since: "1m"}} {
		n := 0
		if err := c.Flows(t.Context(), q, func(observe.Item) error { n++; return enough }); !errors.Is(err, enough) || n != 1 {
			t.Errorf("%+v: %v after %d", q, err, n)
		}
	}
	if !f.AwaitReaders(t.Context(), 0) {
		t.Error("the server did not notice")
	}
	for _, cut := range []struct {
		err  error
		want string
	}{{nil, "the stream ended: nfqproxy stopped"}, {errors.New("on fire"), "the stream was aborted: nfqproxy stopped"}} {
		ended := make(chan error, 1)
		go func() {
			ended <- c.Flows(t.Context(), observe.FlowQuery{Follow: true, Since: "1m"}, func(i observe.Item) error {
				if i.Record.ID == "2" {
					f.Break(cut.err)
				}
				return nil
			})
		}()
		if err := <-ended; err == nil || !strings.Contains(err.Error(), cut.want) {
			t.Errorf("cut off by %v: %v", cut.err, err)
		}
	}
	// A list is whole or an error.
	list := []byte(`{"version":1,"id":"1"}` + "\n")
	for name, handler := range map[string]http.HandlerFunc{
		"between lines": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(list)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"within a line": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(list[:10]) },
	} {
		s := httptest.NewServer(handler)
		err := newClient(t, s.URL, remote.ClientOptions{}).Flows(t.Context(), observe.FlowQuery{}, func(observe.Item) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "the stream was aborted") {
			t.Errorf("cut off %s: %v", name, err)
		}
		s.Close()
	}
}

func TestClientHolds(t *testing.T) {
	f, c := served(t)
	ctx := t.Context()
	if c.Holder() == nil {
		t.Fatal("no holder")
	}
	query := observe.HoldQuery{Flow: observe.HoldFilter{Service: "web"}, Seconds: 7}
	h, err := c.Hold(ctx, query)
	if err != nil || h.Query != query || h.State != observe.HoldWaiting {
		t.Fatalf("%+v, %v", h, err)
	}
	id := h.ID
	go func() {
		f.AwaitRequest(ctx, id)
		f.Catch(flow.Record{Version: 1})
	}()
	if h, err = c.Get(ctx, h.ID, 1); err != nil || h.State != observe.HoldHolding {
		t.Fatalf("%+v, %v", h, err)
	}
	if h, err = c.Act(ctx, h.ID, observe.Act{Action: observe.ActChoose, Endpoint: "10.0.0.1:80"}); err != nil || h.Record.Endpoint != "10.0.0.1:80" {
		t.Fatalf("%+v, %v", h, err)
	}
	// When the context ends, the hold is given as it is.
	short, cancel := context.WithCancel(ctx)
	cancel()
	if h, err = c.Get(short, h.ID, h.Generation); err != nil || h.State != observe.HoldHolding {
		t.Fatalf("%+v, %v", h, err)
	}
	if err := c.Cancel(ctx, h.ID); err != nil {
		t.Error(err)
	}
	if l, err := c.Holds(ctx); err != nil || len(l) != 1 || l[0].Outcome != "cancelled" {
		t.Errorf("%+v, %v", l, err)
	}
	var e *observe.Error
	if err := c.Cancel(ctx, "none"); !errors.As(err, &e) || e.Status != 404 {
		t.Errorf("error %v", err)
	}
	if _, err := c.Get(ctx, "..", 0); !errors.As(err, &e) || e.Status != 404 {
		t.Errorf("error %v", err)
	}
}

// TestClientPolls: the client repeats its request to a server that does not let it wait for long.
func TestClientPolls(t *testing.T) {
	var requests []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.URL.String())
		generation := 5
		if len(requests) == 3 {
			generation = 6
		}
		fmt.Fprintf(w, `{"id":"1","generation":%d}`, generation)
	}))
	defer s.Close()
	h, err := newClient(t, s.URL, remote.ClientOptions{}).Get(t.Context(), "1", 5)
	const again = "/v1/holds/1?after=5"
	if diff := cmp.Diff([]string{again, again, again}, requests); err != nil || h.Generation != 6 || diff != "" {
		t.Errorf("%+v, %v, -want +requests:\n%s", h, err, diff)
	}
}

// TestClientErrors: the client's faults are an *Error, others name the remedy.
func TestClientErrors(t *testing.T) {
	f, c := served(t)
	err := c.Flows(t.Context(), observe.FlowQuery{Protocol: "tpc"}, nil)
	var e *observe.Error
	if want := (observe.Error{Status: 400, Field: "protocol", Message: `protocol "tpc": want TCP, UDP or SCTP`}); !errors.As(err, &e) || *e != want {
		t.Errorf("error %#v", err)
	}
	f.Fail(errors.New("on fire"))
	if _, err := c.Stats(t.Context()); err == nil || errors.As(err, &e) || !strings.HasSuffix(err.Error(), ": on fire") {
		t.Errorf("error %#v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Stats(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}

	// The port of a client's connection: nothing listens there, and nothing else can as long as there is the connection.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	none := filepath.Join(t.TempDir(), "none")
	answers := func(status int, kind, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Location", "https://example.com")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for _, tt := range []struct{ server, want string }{
		{client.LocalAddr().String(), ": connection refused, no flow API: start a lab (nfqproxy lab up kind), or a daemon with --flow-api; for another machine, check kubectl port-forward"},
		{"unix:" + none, ": socket not found: start nfqproxy with --flow-api unix:" + none},
		{secure.URL, ": certificate signed by an unknown authority: give the file of its CA certificate"},
		{"http://" + secure.Listener.Addr().String(), ": the server uses TLS: try https://"},
		{strings.Replace(answers(200, "text/html", "hello"), "http:", "https:", 1), ": the server does not use TLS: try http://"},
		{answers(404, "text/html", "<h1>no</h1>"), ": not a flow API: the response is 404 Not Found"},
		{answers(500, "application/json", "{}"), ": not a flow API: the response is 500 Internal Server Error"},
		{answers(200, "text/html", "<h1>hello</h1>"), ": not a flow API: invalid character"},
		{answers(307, "text/html", ""), ": unexpected redirect to https://example.com: not a flow API"},
		{answers(200, "application/json", `{"version":2}`), ": records of version 2, this program reads version 1: use an nfqproxy of the server's version"},
	} {
		_, err := newClient(t, tt.server, remote.ClientOptions{}).Flow(t.Context(), "1")
		if err == nil || !strings.Contains(err.Error(), tt.server+tt.want) {
			t.Errorf("error %v\nwant  %s%s", err, tt.server, tt.want)
		}
		err = newClient(t, tt.server, remote.ClientOptions{}).Flows(t.Context(), observe.FlowQuery{}, func(observe.Item) error { return nil })
		if err == nil || !strings.HasPrefix(err.Error(), tt.server+": ") {
			t.Errorf("Flows: error %v", err)
		}
	}
}

func TestNewClientErrors(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const want = `: want HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:/PATH`
	for _, tt := range []struct {
		server  string
		options remote.ClientOptions
		want    string
	}{
		{"", remote.ClientOptions{}, `server ""` + want},
		{"unix:x", remote.ClientOptions{}, `server "unix:x"` + want},
		{"ftp://a:1", remote.ClientOptions{}, `server "ftp://a:1"` + want},
		{"http://", remote.ClientOptions{}, `server "http://"` + want},
		{"a b:1", remote.ClientOptions{}, `server "a b:1"` + want},
		{"http://u:p@a:1", remote.ClientOptions{}, `server "http://u:xxxxx@a:1": want the address only`},
		{"http://127.0.0.1:1/#token=secret", remote.ClientOptions{}, `server "http://127.0.0.1:1/": want the address only; give the token separately`},
		{"10.0.0.1:1", remote.ClientOptions{Token: "x"}, `server "10.0.0.1:1": a token is not sent unencrypted to another machine: use https://, or forward a local port to it (kubectl port-forward)`},
		{"https://a:1", remote.ClientOptions{CAFile: empty}, empty + " has no certificate in PEM form (-----BEGIN CERTIFICATE-----)"},
		{"https://a:1", remote.ClientOptions{CAFile: empty + "x"}, "cannot read the CA certificates: open " + empty + "x: no such file or directory"},
	} {
		if _, err := remote.NewClient(tt.server, tt.options); err == nil || err.Error() != tt.want {
			t.Errorf("%s: error %v\nwant %s", tt.server, err, tt.want)
		}
	}
}

// TestClientWays: every kind of address leads to the server.
func TestClientWays(t *testing.T) {
	api := flowapi.New(flowapi.Config{Observer: observetest.New("node-a"), Token: "secret"})
	plain := httptest.NewServer(api)
	defer plain.Close()
	secure := httptest.NewTLSServer(api)
	defer secure.Close()
	dir := t.TempDir()
	socket, err := net.Listen("unix", filepath.Join(dir, "api"))
	if err != nil {
		t.Fatal(err)
	}
	local := &httptest.Server{Listener: socket, Config: &http.Server{Handler: api}}
	local.Start()
	defer local.Close()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(plain.URL)
	if err != nil {
		t.Fatal(err)
	}
	behind := httptest.NewServer(http.StripPrefix("/some/proxy", api))
	defer behind.Close()
	for _, tt := range []struct {
		server  string
		options remote.ClientOptions
	}{
		{plain.URL, remote.ClientOptions{}},
		{plain.URL + "/", remote.ClientOptions{}},
		{u.Host, remote.ClientOptions{}},
		{"localhost:" + u.Port(), remote.ClientOptions{}}, // as kubectl port-forward has it
		{behind.URL + "/some/proxy", remote.ClientOptions{}},
		{"unix:" + filepath.Join(dir, "api"), remote.ClientOptions{}},
		{"unix://" + filepath.Join(dir, "api"), remote.ClientOptions{}},
		{filepath.Join(dir, "api"), remote.ClientOptions{}},
		{secure.URL, remote.ClientOptions{CAFile: ca}},
	} {
		tt.options.Token = "secret"
		if _, err := newClient(t, tt.server, tt.options).Stats(t.Context()); err != nil {
			t.Errorf("%s: %v", tt.server, err)
		}
		tt.options.Token = "wrong"
		var e *observe.Error
		// A change requires the token on every way.
		if err := newClient(t, tt.server, tt.options).Cancel(t.Context(), "h-1"); !errors.As(err, &e) || e.Status != 401 {
			t.Errorf("%s with another token: %v", tt.server, err)
		}
	}
}
