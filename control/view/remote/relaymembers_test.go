package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestRelayMembers: nodes that come and go, while a reader follows.
func TestRelayMembers(t *testing.T) {
	f, fakes := newRelay(t, 3, remote.RelayOptions{Records: 30})
	members := func(names ...string) (list []remote.Member) {
		for _, name := range names {
			list = append(list, remote.Member{Name: name, Observer: fakes[name[len(name)-1]-'a']})
		}
		return list
	}
	set := func(list []remote.Member) {
		t.Helper()
		if err := f.SetMembers(list); err != nil {
			t.Fatal(err)
		}
	}
	set(members("node-a", "node-b"))
	fakes[0].List, fakes[2].List = []observe.Item{record("old-a")}, []observe.Item{record("old-c")}
	ctx, cancel := context.WithCancel(t.Context())
	got, ended := make(chan string), make(chan error, 1)
	go func() {
		ended <- f.Flows(ctx, observe.FlowQuery{Follow: true, Since: "1h"}, func(i observe.Item) error { got <- i.Record.ID; return nil })
	}()
	expect := func(want string) {
		t.Helper()
		if id := <-got; id != want {
			t.Errorf("record %s, want %s", id, want)
		}
	}
	await := func(readers ...int) {
		t.Helper()
		for i, n := range readers {
			if !fakes[i].AwaitReaders(ctx, n) {
				t.Fatal("the context ended")
			}
		}
	}
	expect("old-a")
	await(1, 1, 0)
	if err := f.SetMembers(members("node-a", "node-a")); err == nil || err.Error() != `duplicate node name "node-a": want distinct names` {
		t.Error(err)
	}
	set(members("node-b", "node-c"))
	await(0, 1, 1)
	fakes[2].Publish(record("1")) // and nothing from before: a new node's flows begin now
	expect("1")
	fakes[1].Publish(record("2"))
	expect("2")
	// Another daemon on the same node.
	replaced := observetest.New("node-b")
	set([]remote.Member{{Name: "node-b", Observer: replaced}})
	await(0, 0, 0)
	if !replaced.AwaitReaders(ctx, 1) {
		t.Fatal("the context ended")
	}
	replaced.Publish(record("3"))
	expect("3")
	set(nil)
	if !replaced.AwaitReaders(ctx, 0) {
		t.Fatal("the context ended")
	}
	for what, err := range map[string]error{
		"flows":    f.Flows(ctx, observe.FlowQuery{}, nil),
		"stream":   f.Flows(ctx, observe.FlowQuery{Follow: true}, nil),
		"explain":  func() error { _, err := f.Explain(ctx, observe.Question{}); return err }(),
		"services": func() error { _, err := f.Services(ctx, observe.ServiceQuery{}); return err }(),
	} {
		if err == nil || err.Error() != "no nodes: want one or more" {
			t.Errorf("%s without nodes: %v", what, err)
		}
	}
	set(members("node-a"))
	await(1)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for i, want := range []string{"15", "15", "15"} { // of two nodes each
		var q observe.FlowQuery
		for _, r := range fakes[i].Requests() {
			if r, ok := r.(observe.FlowQuery); ok && r.Follow {
				q = r
				break
			}
		}
		if q.Rate != want {
			t.Errorf("node %d: rate %q, want %s", i, q.Rate, want)
		}
	}
	if r := replaced.Requests(); r[0] != (observe.FlowQuery{Follow: true, Rate: "30"}) {
		t.Errorf("the new daemon: %+v", r)
	}
}

// TestRelayForgets: a node that comes back counts as reachable until it fails again; what is known of nodes that stay is
// kept. An answer that comes after its node has gone is not kept.
func TestRelayForgets(t *testing.T) {
	var log bytes.Buffer
	f, fakes := newRelay(t, 2, remote.RelayOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	one := []remote.Member{{Name: "node-a", Observer: fakes[0]}}
	both := append(one, remote.Member{Name: "node-b", Observer: fakes[1]})
	set := func(members []remote.Member) {
		t.Helper()
		if err := f.SetMembers(members); err != nil {
			t.Fatal(err)
		}
	}
	logs := func(what, want string) {
		t.Helper()
		if _, err := f.Stats(t.Context()); err != nil {
			t.Error(err)
		}
		if got := log.String(); want == "" && got != "" || !strings.Contains(got, want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%s: the log is %q, want %q", what, got, want)
		}
		log.Reset()
	}
	const unreachable, again = `msg="node is unreachable and left out of responses" node=node-b`, `msg="node is reachable again" node=node-b`
	onFire := errors.New("on fire")
	fakes[1].Fail(onFire)
	logs("it fails", unreachable)
	set(both)
	logs("it stays", "")
	set(one)
	set(both)
	logs("it was away, and fails", unreachable)
	set(one)
	fakes[1].Fail(nil)
	set(both)
	logs("it was away, and does not fail", "")
	fakes[1].Fail(onFire)
	logs("it fails once more", unreachable)
	fakes[1].Fail(nil)
	logs("it fails no more", again)

	slow := &slowStats{Fake: fakes[1], asked: make(chan struct{}), answer: make(chan error)}
	set(append(one, remote.Member{Name: "node-b", Observer: slow}))
	ended := make(chan error)
	go func() {
		_, err := f.Stats(t.Context())
		ended <- err
	}()
	netnstest.Receive(t, slow.asked, "the question of node-b")
	set(one)
	slow.answer <- onFire
	if err := <-ended; err != nil {
		t.Error(err)
	}
	set(both)
	logs("it failed after it had gone, and does not now", "")
}

// slowStats is a node that answers when the test has it.
type slowStats struct {
	*observetest.Fake
	asked  chan struct{}
	answer chan error
}

func (s *slowStats) Stats(context.Context) ([]observe.Stats, error) {
	s.asked <- struct{}{}
	return nil, <-s.answer
}

// TestRelayDividesRate: among the streams of all nodes; a rate that no node reaches is not sent.
func TestRelayDividesRate(t *testing.T) {
	for _, tt := range []struct {
		records int
		query   observe.FlowQuery
		want    string
	}{
		{0, observe.FlowQuery{}, ""}, // 6,666 of 5,000
		{9000, observe.FlowQuery{}, "3000"},
		{9000, observe.FlowQuery{Rate: "600"}, "200"},
		{9000, observe.FlowQuery{Rate: "600", Node: "node-a"}, "600"},
		{9000, observe.FlowQuery{Rate: "600", Joined: true}, "100"},
		{9000, observe.FlowQuery{Rate: "2"}, "1"},
		{9000, observe.FlowQuery{Rate: "600", Node: "node-a,node-b"}, "300"},
	} {
		f, fakes := newRelay(t, 3, remote.RelayOptions{Records: tt.records})
		ctx, cancel := context.WithCancel(t.Context())
		tt.query.Follow = true
		ended := make(chan error, 1)
		go func() { ended <- f.Flows(ctx, tt.query, func(observe.Item) error { return nil }) }()
		streams := 1
		if tt.query.Joined {
			streams = 2
		}
		if !fakes[0].AwaitReaders(ctx, streams) {
			t.Fatal("no reader")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, r := range fakes[0].Requests() {
			if q := r.(observe.FlowQuery); q.Rate != tt.want || q.Joined {
				t.Errorf("%d records/s, %+v: the node's query is %+v, want rate %q", tt.records, tt.query, q, tt.want)
			}
		}
	}
}

// TestRelayListEnds: a list that breaks off is reported where it does, and one that is too long for memory is not kept.
func TestRelayListEnds(t *testing.T) {
	f, fakes := newRelay(t, 2, remote.RelayOptions{})
	for i := range 50 {
		fakes[0].List = append(fakes[0].List, at(fmt.Sprint("a", i), 2*i))
		fakes[1].List = append(fakes[1].List, at(fmt.Sprint("b", i), 2*i+1))
	}
	fakes[1].ListError = errors.New("gone")
	all := ids(t, f, observe.FlowQuery{Limit: "0"})
	if len(all) != 101 || all[99] != "b49" || all[100] != "node-b misses 0: unreachable" || all[98] != "a49" {
		t.Errorf("%d items: %v", len(all), all)
	}
	fakes[1].ListError = &observe.Error{Status: 400, Message: "no"}
	var e *observe.Error
	if err := f.Flows(t.Context(), observe.FlowQuery{Limit: "0"}, func(observe.Item) error { return nil }); !errors.As(err, &e) {
		t.Errorf("the client's fault: %v", err)
	}
	enough, n := errors.New("enough"), 0
	err := f.Flows(t.Context(), observe.FlowQuery{Limit: "0"}, func(observe.Item) error {
		if n++; n == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("error %v", err)
	}
}

// TestRelayNamesFew: a message does not list all nodes of a large cluster.
func TestRelayNamesFew(t *testing.T) {
	f, _ := newRelay(t, 26, remote.RelayOptions{})
	err := f.Flows(t.Context(), observe.FlowQuery{Node: "x"}, nil)
	if want := `node "x" not found: want node-a, node-b, `; err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "node-t, or one of 6 others") {
		t.Error(err)
	}
}

// TestRelayDividesPast: with many nodes, each stream begins with fewer past records.
func TestRelayDividesPast(t *testing.T) {
	for _, tt := range []struct {
		nodes        int
		limit, want  string
		wantOfPassed string
	}{
		{3, "200", "200", "4096"},
		{20, "200", "40", "3276"},
		{20, "10", "5", "3276"},
		{20, "2", "2", "3276"},
		{20, "0", "0", "3276"},
	} {
		f, fakes := newRelay(t, tt.nodes, remote.RelayOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- f.Flows(ctx, observe.FlowQuery{Follow: true, Joined: true, Limit: tt.limit}, func(observe.Item) error { return nil })
		}()
		if !fakes[0].AwaitReaders(ctx, 2) {
			t.Fatal("no reader")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, r := range fakes[0].Requests() {
			want := tt.want
			q := r.(observe.FlowQuery)
			if q.Verdict != "" {
				want = tt.wantOfPassed
			}
			if q.Limit != want {
				t.Errorf("%d nodes, limit %s: a node's query is %+v, want limit %s", tt.nodes, tt.limit, q, want)
			}
		}
	}
}
