package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// newRelay makes a relay of so many fake nodes: node-a, node-b, ...
func newRelay(t *testing.T, n int, o remote.RelayOptions) (*remote.Relay, []*observetest.Fake) {
	t.Helper()
	var fakes []*observetest.Fake
	var members []remote.Member
	for i := range n {
		name := fmt.Sprintf("node-%c", 'a'+i)
		fakes = append(fakes, observetest.New(name))
		members = append(members, remote.Member{Name: name, Observer: fakes[i]})
	}
	f, err := remote.NewRelay(members, o)
	if err != nil {
		t.Fatal(err)
	}
	f.SetRetry(time.Millisecond)
	t.Cleanup(f.Close)
	return f, fakes
}

// at is a record of a flow that was decided so many seconds after now.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(id string, seconds int) observe.Item {
	when := now.Add(time.Duration(seconds) * time.Second)
	i := record(id)
	i.Record.Time = &when
	return i
}

func TestNewRelayErrors(t *testing.T) {
	if _, err := remote.NewRelay(nil, remote.RelayOptions{}); err == nil || err.Error() != "no nodes: want one or more" {
		t.Error(err)
	}
	if _, err := remote.NewRelay([]remote.Member{{Name: "a"}, {Name: "a"}}, remote.RelayOptions{}); err == nil || err.Error() != `duplicate node name "a": want distinct names` {
		t.Error(err)
	}
}

func ids(t *testing.T, o observe.Observer, q observe.FlowQuery) (list []string) {
	t.Helper()
	if err := o.Flows(t.Context(), q, func(i observe.Item) error {
		if i.Missed != nil {
			list = append(list, fmt.Sprintf("%s misses %d: %s", i.Missed.Node, i.Missed.Missed, i.Missed.Why))
		} else {
			list = append(list, i.Record.ID)
		}
		return nil
	}); err != nil {
		t.Errorf("%+v: %v", q, err)
	}
	return list
}

func TestRelayLists(t *testing.T) {
	f, fakes := newRelay(t, 3, remote.RelayOptions{})
	fakes[0].List = []observe.Item{at("1", 1), at("4", 4)}
	fakes[1].List = []observe.Item{{Missed: &observe.Missed{Node: "node-b", Missed: 9, Why: observe.MissedLost}}, at("2", 2), at("5", 5)}
	fakes[2].List = []observe.Item{at("3", 3)}
	const missed = "node-b misses 9: lost"
	for _, tt := range []struct {
		query observe.FlowQuery
		want  []string
	}{
		{observe.FlowQuery{}, []string{missed, "1", "2", "3", "4", "5"}},
		{observe.FlowQuery{Limit: "0"}, []string{missed, "1", "2", "3", "4", "5"}},
		{observe.FlowQuery{Limit: "2"}, []string{missed, "4", "5"}},
		{observe.FlowQuery{Node: "node-c,node-a,node-c"}, []string{"1", "3", "4"}},
	} {
		if diff := cmp.Diff(tt.want, ids(t, f, tt.query)); diff != "" {
			t.Errorf("%+v: -want +got:\n%s", tt.query, diff)
		}
	}
	// What is left out counts where it is missing: not before the flows that are given.
	left := func(n uint64) observe.Item {
		return observe.Item{Missed: &observe.Missed{Node: "node-c", Missed: n, Why: observe.MissedLeftOut}}
	}
	fakes[2].List = []observe.Item{left(1), at("3", 3), left(2), at("6", 6), left(4)}
	for limit, want := range map[string][]string{
		"2": {missed, "5", "6", "node-c misses 4: left-out"},
		"4": {missed, "3", "node-c misses 2: left-out", "4", "5", "6", "node-c misses 4: left-out"},
		"0": {missed, "node-c misses 1: left-out", "1", "2", "3", "node-c misses 2: left-out", "4", "5", "6", "node-c misses 4: left-out"},
	} {
		if diff := cmp.Diff(want, ids(t, f, observe.FlowQuery{Limit: limit})); diff != "" {
			t.Errorf("limit %s: -want +got:\n%s", limit, diff)
		}
	}
	fakes[2].List = []observe.Item{at("3", 3)}
	fakes[0].Fail(errors.New("on fire"))
	if diff := cmp.Diff([]string{"node-a misses 0: unreachable", missed, "2", "3", "5"}, ids(t, f, observe.FlowQuery{})); diff != "" {
		t.Errorf("one is unreachable: -want +got:\n%s", diff)
	}
	enough := errors.New("enough")
	if err := f.Flows(t.Context(), observe.FlowQuery{}, func(observe.Item) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("error %v", err)
	}
	for want, q := range map[string]observe.FlowQuery{
		`node "x" not found: want node-a, node-b, node-c`: {Node: "node-a,x"},
		`port "x": want a number from 1 to 65535`:         {Port: "x", Follow: true},
	} {
		var e *observe.Error
		if err := f.Flows(t.Context(), q, nil); !errors.As(err, &e) || e.Status != 400 || e.Message != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	fakes[1].Fail(&observe.Error{Status: 400, Field: "x", Message: "x is wrong"})
	var e *observe.Error
	if err := f.Flows(t.Context(), observe.FlowQuery{}, nil); !errors.As(err, &e) || e.Field != "x" {
		t.Errorf("the client's fault: %v", err)
	}
	for _, fake := range fakes {
		fake.Fail(errors.New("on fire"))
	}
	if err := f.Flows(t.Context(), observe.FlowQuery{}, nil); err == nil || err.Error() != "node node-a: on fire\nnode node-b: on fire\nnode node-c: on fire" {
		t.Errorf("none is reachable: %v", err)
	}
}

// TestRelayFollows: a node that breaks off is reported once, tried again, and does not disturb
// the others; what was before comes once, and what it has decided meanwhile when it is back.
func TestRelayFollows(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	fakes[0].List = []observe.Item{record("old")}
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, ended := make(chan observe.Item), make(chan error, 1)
	go func() {
		ended <- f.Flows(ctx, observe.FlowQuery{Follow: true, Since: "1h"}, func(i observe.Item) error { got <- i; return nil })
	}()
	expect := func(want observe.Item) {
		t.Helper()
		if diff := cmp.Diff(want, <-got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	expect(record("old"))
	ready := func() {
		t.Helper()
		for _, fake := range fakes {
			if !fake.AwaitReaders(ctx, 1) {
				t.Fatal("no reader follows")
			}
		}
	}
	ready()
	fakes[0].Publish(record("1"))
	expect(record("1"))
	for range 3 { // its stream ends, and it is unreachable for a while
		fakes[0].Fail(errors.New("starting"))
		fakes[0].Break(nil)
		expect(observe.Item{Missed: &observe.Missed{Node: "node-a", Why: observe.MissedUnreachable}})
		fakes[1].Publish(record("2"))
		expect(record("2"))
		requests := len(fakes[0].Requests())
		if !fakes[0].AwaitRequests(ctx, requests+2) {
			t.Fatal("no second request")
		}
		fakes[0].List = []observe.Item{record("meanwhile")}
		fakes[0].Fail(nil)
		expect(record("meanwhile"))
		ready()
		fakes[0].Publish(record("3"))
		expect(record("3"))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the context ended: %v", err)
	}
	for _, request := range fakes[0].Requests()[1:] {
		q := request.(observe.FlowQuery)
		if age, err := time.ParseDuration(q.Since); err != nil || age <= 0 || age > time.Since(began) {
			t.Errorf("a later request is %+v, want one since the end of the stream", q)
		}
		if q.Since = ""; q != (observe.FlowQuery{Follow: true}) {
			t.Errorf("a later request is %+v", q)
		}
	}

	// each's error and the client's fault end it.
	enough := errors.New("enough")
	if err := f.Flows(t.Context(), observe.FlowQuery{Follow: true, Since: "1h"}, func(observe.Item) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("error %v", err)
	}
	fakes[1].Fail(&observe.Error{Status: 403, Message: "no"})
	var e *observe.Error
	if err := f.Flows(t.Context(), observe.FlowQuery{Follow: true}, nil); !errors.As(err, &e) || e.Status != 403 {
		t.Errorf("error %v", err)
	}
	for _, fake := range fakes {
		if !fake.AwaitReaders(t.Context(), 0) {
			t.Error("a node is still followed")
		}
	}
}

// TestRelayFollowsFromNow: a reader that wants no earlier flows gets none after a node was unreachable either.
func TestRelayFollowsFromNow(t *testing.T) {
	f, fakes := newRelay(t, 1, remote.RelayOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	got, ended := make(chan observe.Item, 10), make(chan error, 1)
	go func() {
		ended <- f.Flows(ctx, observe.FlowQuery{Follow: true}, func(i observe.Item) error { got <- i; return nil })
	}()
	if !fakes[0].AwaitReaders(ctx, 1) {
		t.Fatal("no reader follows")
	}
	fakes[0].Publish(record("1"))
	<-got // the stream has given something, and is broken only now
	fakes[0].Break(nil)
	if !fakes[0].AwaitRequests(ctx, 2) {
		t.Fatal("no second request")
	}
	for _, request := range fakes[0].Requests() {
		if q := request.(observe.FlowQuery); q != (observe.FlowQuery{Follow: true}) {
			t.Errorf("request %+v", q)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the context ended: %v", err)
	}
}

// TestFirst: the first record ends the stream; without one, the end of the context or the stream's error does.
func TestFirst(t *testing.T) {
	f, fakes := newRelay(t, 1, remote.RelayOptions{})
	fakes[0].List = []observe.Item{{Missed: &observe.Missed{Why: observe.MissedLeftOut}}, record("1"), record("2")}
	if r, err := remote.First(t.Context(), f, observe.FlowQuery{Follow: true, Limit: "0"}); err != nil || r.ID != "1" {
		t.Errorf("%+v, %v", r, err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if r, err := remote.First(ctx, f, observe.FlowQuery{Follow: true}); r != nil || !errors.Is(err, enough) {
		t.Errorf("the context has ended: %+v, %v", r, err)
	}
	fakes[0].List = nil
	if r, err := remote.First(t.Context(), f, observe.FlowQuery{}); r != nil || err == nil || err.Error() != "the stream of flows has ended" {
		t.Errorf("the stream has ended: %+v, %v", r, err)
	}
	fakes[0].Fail(&observe.Error{Status: 403, Message: "no"})
	if r, err := remote.First(t.Context(), f, observe.FlowQuery{Follow: true}); r != nil || err == nil || err.Error() != "no" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRelayBearsFullNodes: a node that has too many readers at the moment is tried again.
func TestRelayBearsFullNodes(t *testing.T) {
	f, fakes := newRelay(t, 1, remote.RelayOptions{})
	fakes[0].Fail(&observe.Error{Status: 429, Message: "full"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- f.Flows(ctx, observe.FlowQuery{Follow: true}, func(observe.Item) error { return nil })
	}()
	if !fakes[0].AwaitRequests(ctx, 3) {
		t.Error("no second request")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRelayFlow(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	fakes[1].List = []observe.Item{record("1")}
	if r, err := f.Flow(t.Context(), "1"); err != nil || r.ID != "1" {
		t.Errorf("%+v, %v", r, err)
	}
	var e *observe.Error
	if _, err := f.Flow(t.Context(), "2"); !errors.As(err, &e) || e.Status != 404 || e.Message != `flow "2" not found: nodes keep a limited number of flows` {
		t.Errorf("error %v", err)
	}
	fakes[0].Fail(errors.New("on fire"))
	if r, err := f.Flow(t.Context(), "1"); err != nil || r.ID != "1" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := f.Flow(t.Context(), "2"); err == nil || err.Error() != `flow "2" not found on the reachable nodes: node node-a: on fire` {
		t.Errorf("error %v", err)
	}
}

// TestRelayNames: names that are known are not replaced, and the nodes' own records not
// changed.
func TestRelayNames(t *testing.T) {
	f, fakes := newRelay(t, 1, remote.RelayOptions{Names: func(a netip.Addr) flow.Owner {
		switch a.String() {
		case "10.0.0.1":
			return flow.Owner{Pod: "default/client", Node: "node-x"}
		case "192.0.2.1":
			return flow.Owner{Host: "outside"}
		}
		return flow.Owner{}
	}})
	items := []observe.Item{
		{Record: &flow.Record{Version: 1, Source: "10.0.0.1:5", Endpoint: "10.0.0.1:80"}},
		{Record: &flow.Record{Version: 1, Source: "10.0.0.1:5", SourcePod: "default/known", Endpoint: "10.0.0.9:80"}},
		{Record: &flow.Record{Version: 1, Source: "192.0.2.1:5"}},
	}
	fakes[0].List = append([]observe.Item(nil), items...)
	var got []flow.Record
	if err := f.Flows(t.Context(), observe.FlowQuery{}, func(i observe.Item) error { got = append(got, *i.Record); return nil }); err != nil {
		t.Fatal(err)
	}
	want := []flow.Record{*items[0].Record, *items[1].Record, *items[2].Record}
	want[0].SourcePod, want[0].SourceNode, want[0].Pod, want[0].EndpointNode = "default/client", "node-x", "default/client", "node-x"
	want[1].SourceNode = "node-x"
	want[2].SourceHost = "outside"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if items[0].Record.SourcePod != "" {
		t.Error("the node's record was changed")
	}
}

// TestRelayPassesOn: a node's record is passed on as the node encoded it, unless the relay changes it.
func TestRelayPassesOn(t *testing.T) {
	const (
		whole   = `{"version":1,"id":"1","source":"10.0.0.1:5","sourcePod":"default/client","sourceNode":"node-a","new":[1]}`
		unnamed = `{"version":1,"id":"2","source":"10.0.0.1:5"}`
		held    = `{"version":1,"id":"3","held":{"id":"h","seconds":1,"action":"release"}}`
		broken  = "{\"version\":1,\n\"id\":\"4\"}"
	)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Join([]string{whole, unnamed, held, broken}, "\n")+"\n")
	}))
	defer server.Close()
	f, err := remote.NewRelay([]remote.Member{{Name: "node-a", Observer: newClient(t, server.URL, remote.ClientOptions{})}}, remote.RelayOptions{
		Names: func(a netip.Addr) flow.Owner { return flow.Owner{Pod: "default/client", Node: "node-a"} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got []string
	if err := f.Flows(t.Context(), observe.FlowQuery{}, func(i observe.Item) error {
		got = append(got, i.Record.ID+" "+i.Record.SourcePod+" "+string(i.Encoded))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1 default/client " + whole, "2 default/client ", "3  ", "4  "}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// lastQuery remembers the query.
type lastQuery struct {
	observe.Observer
	query observe.FlowQuery
}

func (a *lastQuery) Flows(_ context.Context, q observe.FlowQuery, _ func(observe.Item) error) error {
	a.query = q
	return nil
}

// TestRelayAddresses: nodes get the addresses of the names that the relay knows.
func TestRelayAddresses(t *testing.T) {
	node := &lastQuery{Observer: observetest.New("node-a")}
	f, err := remote.NewRelay([]remote.Member{{Name: "node-a", Observer: node}}, remote.RelayOptions{Addresses: func(name string) []netip.Addr {
		if name != "outside" {
			return nil
		}
		return []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	q := observe.FlowQuery{Source: "outside, outside:80,default/shell,10.0.0.1", Endpoint: "outside"}
	if err := f.Flows(t.Context(), q, func(observe.Item) error { return nil }); err != nil {
		t.Fatal(err)
	}
	want := observe.FlowQuery{Source: "192.0.2.10,2001:db8::10,192.0.2.10:80,[2001:db8::10]:80,default/shell,10.0.0.1", Endpoint: "192.0.2.10,2001:db8::10"}
	if diff := cmp.Diff(want, node.query); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestRelayStatus: a node without an answer is in the status, with that as its problem.
func TestRelayStatus(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	fakes[0].StatusAnswer = observetest.Status()
	fakes[1].Fail(errors.New("on fire"))
	want := []observe.Status{observetest.Status(), {Node: "node-b", Problems: []observe.Problem{{Code: observe.ProblemUnreachable, Text: "the daemon does not answer: on fire"}}}}
	got, err := f.Status(t.Context())
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
}

func TestRelayTablesAndStats(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	fakes[0].TableAnswer, fakes[1].TableAnswer = observe.Table{Node: "node-a"}, observe.Table{Node: "node-b"}
	fakes[0].StatsAnswer, fakes[1].StatsAnswer = observe.Stats{Node: "node-a"}, observe.Stats{Node: "node-b"}
	tables, err := f.Tables(t.Context())
	if diff := cmp.Diff([]observe.Table{{Node: "node-a"}, {Node: "node-b"}}, tables); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	fakes[0].Fail(errors.New("on fire"))
	stats, err := f.Stats(t.Context())
	if diff := cmp.Diff([]observe.Stats{{Node: "node-b"}}, stats); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	fakes[1].Fail(errors.New("on fire"))
	if _, err := f.Stats(t.Context()); err == nil {
		t.Error("no node answered, and there is no error")
	}
}

// TestRelayObjects: each node has a service table of its own.
func TestRelayObjects(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	fakes[1].ObjectsAnswer = observe.TableObjects{Node: "node-b"}
	if o, err := f.Objects(t.Context(), observe.ObjectsQuery{Node: "node-b"}); err != nil || o.Node != "node-b" {
		t.Errorf("%+v, %v", o, err)
	}
	want := "node is missing: each node has its own service table: want one of node-a, node-b"
	var e *observe.Error
	if _, err := f.Objects(t.Context(), observe.ObjectsQuery{}); !errors.As(err, &e) || e.Field != "node" || e.Message != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestRelayExplains(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	fakes[1].ExplainAnswer = flow.Record{Version: 1, Node: "node-b"}
	if r, err := f.Explain(t.Context(), observe.Question{Node: "node-b"}); err != nil || r.Node != "node-b" {
		t.Errorf("%+v, %v", r, err)
	}
	for node, want := range map[string]string{
		"":  "node is missing: each node decides by itself: want one of node-a, node-b",
		"x": `node "x" not found: want node-a, node-b`,
	} {
		var e *observe.Error
		if _, err := f.Explain(t.Context(), observe.Question{Node: node}); !errors.As(err, &e) || e.Status != 400 || e.Field != "node" || e.Message != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	one, _ := newRelay(t, 1, remote.RelayOptions{})
	if _, err := one.Explain(t.Context(), observe.Question{}); err != nil {
		t.Error(err)
	}
}

// TestRelayLogs: an unreachable node is logged once, not with each answer.
func TestRelayLogs(t *testing.T) {
	var log bytes.Buffer
	f, fakes := newRelay(t, 2, remote.RelayOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 2 {
		fakes[1].Fail(errors.New("on fire"))
		for range 3 {
			if _, err := f.Stats(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		fakes[1].Fail(nil)
		for range 3 {
			if _, err := f.Tables(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for text, want := range map[string]int{
		`msg="node is unreachable and left out of responses" node=node-b error="on fire"`: 2,
		`msg="node is reachable again" node=node-b`:                                       2,
		"msg=": 4,
	} {
		if n := strings.Count(log.String(), text); n != want {
			t.Errorf("%s: %d times, want %d:\n%s", text, n, want, &log)
		}
	}
}
