package hubblesource

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// fakeServer is Cilium's side, with given responses. It is that of a node: it does not know its nodes.
type fakeServer struct {
	hubblepb.UnimplementedObserverServer
	past     []*hubblepb.GetFlowsResponse
	live     chan *hubblepb.GetFlowsResponse // closed: the stream ends
	requests chan *hubblepb.GetFlowsRequest
}

func (s *fakeServer) GetFlows(r *hubblepb.GetFlowsRequest, stream grpc.ServerStreamingServer[hubblepb.GetFlowsResponse]) error {
	if r.GetNumber() != 1 {
		s.requests <- r
	}
	if !r.GetFollow() || r.GetNumber() > 0 || r.GetSince() != nil {
		for _, x := range s.past {
			if err := stream.Send(x); err != nil {
				return err
			}
		}
	}
	for r.GetFollow() {
		select {
		case x, ok := <-s.live:
			if !ok {
				return nil
			}
			if err := stream.Send(x); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	return nil
}

func (s *fakeServer) ServerStatus(context.Context, *hubblepb.ServerStatusRequest) (*hubblepb.ServerStatusResponse, error) {
	return &hubblepb.ServerStatusResponse{NumFlows: 5, MaxFlows: 4095, UptimeNs: uint64(time.Hour), Version: "v1.20.2"}, nil
}

func newFake(t testing.TB, lines ...string) *fakeServer {
	s := &fakeServer{live: make(chan *hubblepb.GetFlowsResponse), requests: make(chan *hubblepb.GetFlowsRequest, 8)}
	for _, line := range lines {
		s.past = append(s.past, packet(t, line))
	}
	return s
}

// serve serves until the end of the test, and returns the address.
func (s *fakeServer) serve(t *testing.T, network, address string, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(options...)
	hubblepb.RegisterObserverServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// open opens a source whose clock is a minute after the first event.
func open(t *testing.T, server string) *Source {
	t.Helper()
	s, err := Open(server)
	if err != nil {
		t.Fatal(err)
	}
	s.now = func() time.Time { return began.Add(time.Minute) }
	return s
}

// all lists the records of a query, with what is missing.
func all(t *testing.T, o observe.Observer, q observe.FlowQuery) (list []string) {
	t.Helper()
	if err := o.Flows(t.Context(), q, func(i observe.Item) error {
		switch {
		case i.Record != nil:
			list = append(list, brief(i.Record))
		case i.Missed != nil:
			list = append(list, fmt.Sprint(i.Missed.Node, " missed ", i.Missed.Missed, " ", i.Missed.Why))
		case i.Joined != nil:
			list = append(list, "joined "+brief(i.Joined.Other))
		}
		return nil
	}); err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	return list
}

func TestList(t *testing.T) {
	s := newFake(t, slices.Concat(
		[]string{"0 TO_ENDPOINT 10.0.1.9:41000 -> 10.0.0.5:80 S forward"},
		socketConnection(1000, "1", "40000", "default/web", "10.96.0.20:80", "10.0.1.7:8080"),
		[]string{
			"1001 TO_ENDPOINT 10.0.0.5:40000 -> 10.0.1.7:8080 S forward node=prod/node-b",
			"2000 DROPPED 10.0.0.6:40000 -> 10.0.1.7:8080 S",
		})...)
	s.past = append(s.past, &hubblepb.GetFlowsResponse{NodeName: "prod/node-a", ResponseTypes: &hubblepb.GetFlowsResponse_LostEvents{LostEvents: &hubblepb.LostEvent{NumEventsLost: 3}}})
	o := open(t, "hubble://"+s.serve(t, "tcp", "127.0.0.1:0"))
	var notes []string
	o.Note = func(note string) { notes = append(notes, note) }
	const (
		pass    = "node-a TCP 10.0.1.9:41000 -> 10.0.0.5:80 accept not-a-service unanswered"
		web     = "node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 closed"
		other   = "node-b TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown unanswered"
		dropped = "node-a TCP 10.0.0.6:40000 -> 10.0.1.7:8080 drop policy-denied dropped"
		lost    = "node-a missed 3 lost"
	)
	// The loss came after the last event of the first, which was still alive.
	const incomplete = "node-a TCP 10.0.1.9:41000 -> 10.0.0.5:80 accept not-a-service decided incomplete"
	for _, c := range []struct {
		query observe.FlowQuery
		want  []string
	}{
		{observe.FlowQuery{Limit: "0"}, []string{lost, incomplete, web, other, dropped}},
		{observe.FlowQuery{}, []string{lost, incomplete, web, other, dropped}},
		{observe.FlowQuery{Limit: "1"}, []string{lost, dropped}},
		{observe.FlowQuery{ServicesOnly: true}, []string{lost, web, other, dropped, "node-a missed 1 left-out"}},
		{observe.FlowQuery{Service: "web"}, []string{lost, web}},
		{observe.FlowQuery{Pod: "local-6"}, []string{lost, dropped}},
		{observe.FlowQuery{Node: "node-b"}, []string{lost, other}},
		{observe.FlowQuery{Endpoint: "10.0.1.7"}, []string{lost, web}},
		{observe.FlowQuery{Reason: "translation-unknown"}, []string{lost, other}},
		{observe.FlowQuery{State: "dropped"}, []string{lost, dropped}},
		{observe.FlowQuery{Since: "2026-11-21T10:00:01.5Z"}, []string{lost, dropped}},
		{observe.FlowQuery{Until: "2026-11-21T10:00:00.5Z"}, []string{lost, incomplete}},
		{observe.FlowQuery{Joined: true, Service: "web"}, []string{lost, web, "joined " + other}},
	} {
		if diff := cmp.Diff(c.want, all(t, o, c.query)); diff != "" {
			t.Errorf("%+v: -want +got:\n%s", c.query, diff)
		}
		r := <-s.requests
		if len(r.GetWhitelist()) != 1 || r.GetFollow() || (c.query.Since != "") != (r.GetSince() != nil) {
			t.Errorf("request %v", r)
		}
	}
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "Hubble reports no translation of a Service's address on node-b: ") || !strings.Contains(notes[0], "socketLB.tracing=true") {
		t.Errorf("notes: %q", notes)
	}
	_, err := o.Flow(t.Context(), "none")
	if e, ok := errors.AsType[*observe.Error](err); !ok || e.Status != 404 {
		t.Errorf("no flow: %v", err)
	}
	<-s.requests
	var id string
	if err := o.Flows(t.Context(), observe.FlowQuery{Service: "web"}, func(i observe.Item) error {
		if i.Record != nil {
			id = i.Record.ID
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r, err := o.Flow(t.Context(), id)
	if err != nil || brief(r) != web {
		t.Fatalf("%v, %v", r, err)
	}
	var history []string
	for _, m := range r.Life.History {
		history = append(history, m.Event.String())
	}
	if diff := cmp.Diff([]string{"decided", "answered", "established", "closing", "closed"}, history); diff != "" {
		t.Error(diff)
	}
	if err := o.Flows(t.Context(), observe.FlowQuery{Protocol: "icmp"}, nil); err == nil {
		t.Error("a wrong query is answered")
	}
}

func TestNodes(t *testing.T) {
	s := newFake(t, "0 TO_ENDPOINT 10.0.1.9:41000 -> 10.0.0.5:80 S forward")
	o := open(t, "hubble+unix:"+s.serve(t, "unix", filepath.Join(t.TempDir(), "hubble.sock")))
	stats, err := o.Stats(t.Context())
	if err != nil || len(stats) != 1 || stats[0].Node != "node-a" || stats[0].Version != "v1.20.2" || stats[0].Known.Capacity != 4095 || !stats[0].Started.Equal(began.Add(time.Minute-time.Hour)) {
		t.Errorf("%+v, %v", stats, err)
	}
	nodes, err := o.Status(t.Context())
	if want := []observe.Status{{Node: "node-a", Proxy: "Cilium, observed by Hubble", Problems: []observe.Problem{}}}; err != nil || cmp.Diff(want, nodes) != "" {
		t.Errorf("%+v, %v", nodes, err)
	}
	for name, ask := range map[string]func() error{
		"services": func() error { _, err := o.Services(t.Context(), observe.ServiceQuery{}); return err },
		"tables":   func() error { _, err := o.Tables(t.Context()); return err },
		"objects":  func() error { _, err := o.Objects(t.Context(), observe.ObjectsQuery{}); return err },
		"topology": func() error { _, err := o.Topology(t.Context()); return err },
		"explain":  func() error { _, err := o.Explain(t.Context(), observe.Question{}); return err },
	} {
		err := ask()
		if e, ok := errors.AsType[*observe.Error](err); !ok || e.Status != 404 || !strings.HasPrefix(e.Message, "Hubble has no ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if o.Holder() != nil {
		t.Error("it holds flows")
	}
}

// follow follows a query, and returns the briefs of the items and the error of the end.
func follow(t *testing.T, o observe.Observer, q observe.FlowQuery) (items chan string, end chan error) {
	t.Helper()
	items, end = make(chan string, 64), make(chan error, 1)
	go func() {
		end <- o.Flows(t.Context(), q, func(i observe.Item) error {
			if r := i.Record; r != nil {
				if (r.Event != 0) != (r.Emitted != nil) {
					t.Errorf("emitted: %+v", r)
				}
				items <- brief(r)
			} else {
				items <- fmt.Sprint(i.Missed.Node, " missed ", i.Missed.Missed, " ", i.Missed.Why)
			}
			return nil
		})
	}()
	return items, end
}

// now is an event with the present time.
func now(t *testing.T, line string) *hubblepb.GetFlowsResponse {
	r := packet(t, line)
	r.GetFlow().Time = timestamppb.Now()
	return r
}

func TestFollow(t *testing.T) {
	s := newFake(t, socketConnection(0, "1", "40000", "default/web", "10.96.0.20:80", "10.0.1.7:8080")...)
	server := "hubble://" + s.serve(t, "tcp", "127.0.0.1:0")
	o, err := Open(server)
	if err != nil {
		t.Fatal(err)
	}
	items, end := follow(t, o, observe.FlowQuery{Follow: true, Limit: "0", ServicesOnly: true})
	expect := func(want string) {
		t.Helper()
		if got := netnstest.Receive(t, items, want); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	expect("node-a TCP 10.0.0.5:40000 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 closed")
	for _, line := range []string{
		"0 TO_OVERLAY 10.0.0.5:40002 -> 10.0.1.7:8080 S forward",
		"0 TO_ENDPOINT 10.0.1.7:8080 -> 10.0.0.5:40002 SA reply",
		"0 PRE 10.0.0.5 -> 10.96.0.20:80 service=default/web cookie=2", // after its packets
		"0 POST 10.0.0.5 -> 10.0.1.7:8080 cookie=2",
		"0 TO_ENDPOINT 10.0.1.9:41000 -> 10.0.0.5:80 S forward",
		"0 TO_OVERLAY 10.0.0.5:40002 -> 10.0.1.7:8080 RA forward",
	} {
		s.live <- now(t, line)
	}
	s.live <- &hubblepb.GetFlowsResponse{NodeName: "prod/node-a", ResponseTypes: &hubblepb.GetFlowsResponse_LostEvents{LostEvents: &hubblepb.LostEvent{NumEventsLost: 3, Source: hubblepb.LostEventSource_HUBBLE_RING_BUFFER}}}
	const live = "node-a TCP 10.0.0.5:40002 -> 10.96.0.20:80 default/web dnat service-proxy => 10.0.1.7:8080 event="
	expect("node-a missed 3 slow-reader") // at once, while the flow waits for its translation
	expect(live + "decided decided")
	expect(live + "answered answered")
	expect(live + "reset reset")
	expect("node-a missed 1 left-out")
	close(s.live)
	if err := netnstest.Receive(t, end, "the end"); err == nil || err.Error() != server+": the stream ended: Hubble stopped, or a proxy on the way closed the connection" {
		t.Errorf("end: %v", err)
	}
}

// TestFollowUnanswered: time makes an event.
func TestFollowUnanswered(t *testing.T) {
	s := newFake(t)
	o, err := Open("hubble://" + s.serve(t, "tcp", "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	items, _ := follow(t, o, observe.FlowQuery{Follow: true, Event: "unanswered"})
	if r := netnstest.Receive(t, s.requests, "the request"); r.GetNumber() != 0 || r.GetSince() != nil || !r.GetFollow() {
		t.Errorf("request %v", r)
	}
	s.live <- now(t, "0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward")
	want := "node-a TCP 10.0.0.5:40000 -> 10.0.1.7:8080 accept translation-unknown event=unanswered unanswered"
	if got := netnstest.Receive(t, items, want); got != want {
		t.Error(got)
	}
}

// TestFollowRate: beyond the rate, the reader gets all records of some flows.
func TestFollowRate(t *testing.T) {
	s := newFake(t)
	o, err := Open("hubble://" + s.serve(t, "tcp", "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	// Within a second of the source's clock, whatever the machine's does.
	o.now = func() time.Time { return began.Add(time.Minute) }
	w := &follower{Source: o, tracker: newTracker(), filter: &observe.Filter{Rate: 2}, leftOut: map[string]uint64{}, sampled: map[string]uint64{}}
	var got []string
	w.each = func(i observe.Item) error {
		if i.Missed != nil {
			got = append(got, fmt.Sprint(i.Missed.Missed, " ", i.Missed.Why))
		} else {
			got = append(got, fmt.Sprint(i.Record.Source, " ", i.Record.Event))
		}
		return nil
	}
	w.emit = w.send
	for _, flags := range []string{"S", "R"} {
		for i := range 4 {
			w.response(packet(t, fmt.Sprintf("%d TO_OVERLAY 10.0.0.5:%d -> 10.0.1.7:8080 %s forward", i, 40000+i, flags)), began)
		}
	}
	w.pass(began.Add(silence))
	w.reportMissed()
	if diff := cmp.Diff([]string{"10.0.0.5:40000 decided", "10.0.0.5:40000 reset", "6 sampled"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestFollowEnds with the context, without an error, and with the error of the reader.
func TestFollowEnds(t *testing.T) {
	s := newFake(t, "0 TO_OVERLAY 10.0.0.5:40000 -> 10.0.1.7:8080 S forward")
	o := open(t, "hubble://"+s.serve(t, "tcp", "127.0.0.1:0"))
	ctx, stop := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- o.Flows(ctx, observe.FlowQuery{Follow: true}, func(observe.Item) error { return nil }) }()
	netnstest.Receive(t, s.requests, "the request")
	stop()
	if err := netnstest.Receive(t, end, "the end"); err != nil {
		t.Error(err)
	}
	full := errors.New("disk full")
	o, _ = Open(o.server)
	if err := o.Flows(t.Context(), observe.FlowQuery{Follow: true, Limit: "10"}, func(observe.Item) error { return full }); !errors.Is(err, full) {
		t.Error(err)
	}
}

func TestServers(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]string{
		"hubble://relay:4245":                         "",
		"hubble://[fd00::1]:4245":                     "",
		"hubble+tls://relay:443":                      "",
		"hubble+tls://relay:443?name=x.example":       "",
		"hubble+unix:/var/run/cilium/hubble.sock":     "",
		"hubble+unix:///var/run/cilium/hubble.sock":   "",
		"hubble://relay":                              "want hubble://HOST:PORT",
		"hubble://:4245":                              "want hubble://HOST:PORT",
		"hubble://user@relay:4245":                    "want hubble://HOST:PORT",
		"hubble://relay:4245/x":                       "want hubble://HOST:PORT",
		"hubble+unix:hubble.sock":                     "want hubble://HOST:PORT",
		"hubble://relay:4245?ca=x":                    `parameter "ca": only hubble+tls:// has parameters`,
		"hubble+tls://relay:443?token=x":              `parameter "token"`,
		"hubble+tls://relay:443?ca=/none":             "parameter ca: open /none",
		"hubble+tls://relay:443?ca=" + empty:          "has no certificate in PEM form",
		"hubble+tls://relay:443?cert=" + empty:        "parameters cert and key: give both or none",
		"hubble+tls://relay:443?cert=/none&key=/none": "parameters cert and key: open /none",
	} {
		if !Is(server) {
			t.Errorf("%s is none", server)
		}
		_, err := Open(server)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", server, err, want)
		}
	}
	for _, server := range []string{"unix:/run/nfqproxy.sock", "http://hubble:80", "hubble:4245", "127.0.0.1:4245"} {
		if Is(server) {
			t.Errorf("%s is one", server)
		}
	}
	o, err := Open("hubble+unix:" + filepath.Join(dir, "none.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, ask := range []func() error{
		func() error { return o.Flows(t.Context(), observe.FlowQuery{}, nil) },
		func() error { return o.Flows(t.Context(), observe.FlowQuery{Follow: true}, nil) },
		func() error { _, err := o.Stats(t.Context()); return err },
		func() error { _, err := o.Status(t.Context()); return err },
	} {
		if err := ask(); err == nil || !strings.Contains(err.Error(), "none.sock: Hubble does not answer: ") {
			t.Errorf("nobody listens: %v", err)
		}
	}
}

// TestTLS: mutual TLS, as hubble-relay has it.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "relay"}, DNSNames: []string{"ui.hubble-relay.cilium.io"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	certFile, keyFile := write("tls.crt", "CERTIFICATE", der), write("tls.key", "PRIVATE KEY", secret)
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(pair.Leaf)
	s := newFake(t, "0 DROPPED 10.0.0.6:40000 -> 10.0.1.7:8080 S")
	address := s.serve(t, "tcp", "127.0.0.1:0", grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12})))
	o := open(t, "hubble+tls://"+address+"?name=ui.hubble-relay.cilium.io&ca="+certFile+"&cert="+certFile+"&key="+keyFile)
	if got := all(t, o, observe.FlowQuery{}); len(got) != 1 {
		t.Errorf("%q", got)
	}
	for query, want := range map[string]string{
		"?ca=" + certFile + "&cert=" + certFile + "&key=" + keyFile: "cannot validate certificate for 127.0.0.1",
		"?name=ui.hubble-relay.cilium.io":                           "unknown authority",
		"?name=ui.hubble-relay.cilium.io&ca=" + certFile:            "Hubble does not answer", // the client has no certificate
	} {
		o := open(t, "hubble+tls://"+address+query)
		if err := o.Flows(t.Context(), observe.FlowQuery{}, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "?") {
			t.Errorf("%s: %v", query, err)
		}
	}
	plain := open(t, "hubble://"+address)
	if err := plain.Flows(t.Context(), observe.FlowQuery{}, nil); err == nil || !strings.Contains(err.Error(), "hubble+tls://") {
		t.Errorf("without TLS: %v", err)
	}
}

// serveOwn serves records with the project's own Hubble API.
func serveOwn(t *testing.T, o observe.Observer, peers *hubbleapi.Peers) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- hubbleapi.Serve(ctx, l, hubbleapi.Config{Observer: o, Peers: peers, Limits: new(limit.Set), Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

// records are those of the tests of package hubble, which have all states and events.
func records(t *testing.T) (list []*flow.Record) {
	t.Helper()
	data, err := os.ReadFile("../hubble/testdata/records.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		r := new(flow.Record)
		if err := json.Unmarshal(line, r); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

// summary is what Hubble's format keeps of a record's decision.
func summary(r *flow.Record) string {
	service, _, _ := strings.Cut(r.Service, ":") // not the port's name
	text := fmt.Sprint(r.Node, " ", r.Time.Format(time.RFC3339Nano), " ", r.Protocol, " ", r.Source, " -> ", r.Destination, " ", service, " ", r.SourcePod, " ")
	switch {
	case r.Conntrack == "failed", r.Verdict == "reject", r.Verdict == "drop":
		return text + "dropped"
	case r.Verdict == "dnat":
		return text + "=> " + r.Endpoint + " " + r.Pod
	}
	return text + r.Verdict
}

// TestRoundTrip: what the project's own Hubble API makes of records is read as the same connections.
func TestRoundTrip(t *testing.T) {
	served := observetest.New("node-a")
	var want []string
	for _, r := range records(t) {
		if !r.Event.IsDecision() || r.Conntrack == "kept" || r.Verdict == "rules" {
			continue
		}
		served.List = append(served.List, observe.Item{Record: r})
		want = append(want, summary(r))
	}
	slices.Sort(want)
	want = slices.Compact(want)
	var got []string
	if err := open(t, "hubble://"+serveOwn(t, served, nil)).Flows(t.Context(), observe.FlowQuery{Limit: "0"}, func(i observe.Item) error {
		got = append(got, summary(i.Record))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if len(want) < 5 {
		t.Fatalf("%d records", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestRoundTripStates: events become the same states.
func TestRoundTripStates(t *testing.T) {
	served := observetest.New("node-a")
	want := make(map[string][]flow.Event)
	for i, life := range []struct {
		protocol string
		events   []flow.Event
	}{
		{"TCP", []flow.Event{flow.Decided, flow.Answered, flow.Established, flow.Closing, flow.Closed}},
		{"TCP", []flow.Event{flow.Decided, flow.Repeated, flow.Answered, flow.Established, flow.Reset}},
		{"TCP", []flow.Event{flow.Decided, flow.Refused}},
		{"UDP", []flow.Event{flow.Decided, flow.Answered, flow.Established}},
		{"SCTP", []flow.Event{flow.Decided, flow.Answered, flow.Established, flow.Closing, flow.Closed}},
		{"SCTP", []flow.Event{flow.Decided, flow.Refused}},
	} {
		at, source := began, fmt.Sprintf("10.244.1.9:%d", 40000+i)
		want[source] = life.events
		state := flow.Decided
		for n, e := range life.events {
			if e != flow.Repeated {
				state = e
			}
			served.List = append(served.List, observe.Item{Record: &flow.Record{
				Version: 1, ID: source, Event: e, Time: &at, Node: "node-a", Protocol: life.protocol, Verdict: "dnat", Reason: "balanced", Conntrack: "created",
				Source: source, SourcePod: "default/shell", Destination: "10.96.0.20:80", Service: "default/web", Endpoint: "10.244.2.2:8080",
				Life: &flow.Life{State: state, Since: at.Add(time.Duration(n) * 1100 * time.Millisecond)},
			}})
		}
	}
	o := open(t, "hubble://"+serveOwn(t, served, nil))
	var ids []string
	if err := o.Flows(t.Context(), observe.FlowQuery{}, func(i observe.Item) error {
		ids = append(ids, i.Record.ID)
		return nil
	}); err != nil || len(ids) != len(want) {
		t.Fatalf("%d records, %v", len(ids), err)
	}
	for _, id := range ids {
		r, err := o.Flow(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		var got []flow.Event
		for _, m := range r.Life.History {
			got = append(got, m.Event)
		}
		if diff := cmp.Diff(want[r.Source], got); diff != "" || r.Life.Incomplete || r.Service != "default/web" || r.Endpoint != "10.244.2.2:8080" {
			t.Errorf("%s: %+v: -want +got:\n%s", r.Source, r.Life, diff)
		}
	}
}

// TestRelay: hubble-relay gives the same connections as the node that it asks, with the node's name.
func TestRelay(t *testing.T) {
	relay := clustertest.RequireProgram(t, cluster.HubbleRelay)
	own := observetest.New("node-a")
	own.StatsAnswer = observe.Stats{Node: "node-a", Version: "v1.2.3", Started: time.Now().Add(-time.Hour), Known: observe.Known{Flows: 3, Capacity: 16384}}
	for _, r := range records(t) {
		if r.Event.IsDecision() {
			own.List = append(own.List, observe.Item{Record: r})
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // for a free port
	if err != nil {
		t.Fatal(err)
	}
	listens := l.Addr().String()
	l.Close()
	node := netip.MustParseAddrPort("127.0.0.1:1")
	peers := &hubbleapi.Peers{Each: func(each func(string, []netip.Addr)) { each("node-a", []netip.Addr{node.Addr()}) }}
	address := serveOwn(t, own, peers)
	peers.Listen = netip.MustParseAddrPort(address)
	cmd := exec.CommandContext(t.Context(), relay, "serve", "--peer-service", address, "--listen-address", listens, "--health-listen-address", "127.0.0.1:0",
		"--disable-server-tls", "--disable-client-tls", "--retry-timeout", "200ms", "--gops=false")
	var complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &complaints, &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("hubble-relay: %s", &complaints)
		}
	})
	o := open(t, "hubble://"+listens)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if stats, err := o.Stats(t.Context()); err == nil && len(stats) == 1 {
			if stats[0].Node != "node-a" || stats[0].Version != "v1.2.3" || stats[0].Known.Capacity != 16384 {
				t.Errorf("nodes: %+v", stats)
			}
			break
		} else if time.Now().After(end) {
			t.Fatalf("the relay does not connect: %v, %v", stats, err)
		}
	}
	query := observe.FlowQuery{Limit: "0"}
	want := all(t, open(t, "hubble://"+address), query)
	got := all(t, o, query)
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < 5 {
		t.Fatalf("%d records", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-node +relay:\n%s", diff)
	}
	// It holds events back to sort them, and gives one a second.
	following, err := Open(o.server)
	if err != nil {
		t.Fatal(err)
	}
	items, _ := follow(t, following, observe.FlowQuery{Follow: true, Limit: "0"})
	item, _, _ := strings.Cut(netnstest.Receive(t, items, "a flow from the relay"), " event=")
	if !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(w, item) }) {
		t.Errorf("following, the relay gives %s", item)
	}
}
