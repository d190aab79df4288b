package engine

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// idleQueue has counters, but no packets.
type idleQueue struct {
	counters nfqueue.Counters
	once     sync.Once
	closed   chan struct{}
}

func (q *idleQueue) Receive([]nfqueue.Packet) (int, error) { <-q.closed; return 0, os.ErrClosed }
func (q *idleQueue) Send([]nfqueue.Verdict) error          { return nil }
func (q *idleQueue) Counters() (nfqueue.Counters, error)   { return q.counters, nil }
func (q *idleQueue) Close() error                          { q.once.Do(func() { close(q.closed) }); return nil }

// lostRules are removed by another program whenever lost has a token.
type lostRules struct {
	lost      chan struct{}
	following chan *decision.Table
}

func (r *lostRules) Follow(t *decision.Table) error { r.following <- t; return nil }
func (r *lostRules) Changed() <-chan struct{}       { return r.lost }
func (r *lostRules) Audit(t *decision.Table, _ bool) (nft.Repair, error) {
	r.following <- t
	return nft.Repair{Found: []string{"the table is missing"}, Reinstalled: true, Recounted: true}, nil
}
func (*lostRules) Compare(*decision.Table) (ruleset.Comparison, error) {
	return ruleset.Comparison{}, nil
}
func (*lostRules) IsAlive(decision.Family) (bool, error)       { return true, nil }
func (*lostRules) Counters() (ruleset.Counters, error)         { return ruleset.Counters{}, nil }
func (*lostRules) FollowReversePath(hostnet.ReversePath) error { return nil }
func (*lostRules) LeaveEstablished() error                     { return nil }
func (*lostRules) StopQueueing() error                         { return nil }
func (*lostRules) Replaced() (bool, error)                     { return false, nil }
func (*lostRules) Release()                                    {}
func (*lostRules) Resume() error                               { return nil }
func (*lostRules) Remove() error                               { return nil }
func (*lostRules) Close() error                                { return nil }

type noLock struct{}

func (noLock) Close() error { return nil }

func TestEngineStats(t *testing.T) {
	r := &lostRules{lost: make(chan struct{}), following: make(chan *decision.Table)}
	e := &Engine{apply: make(chan application), ended: make(chan struct{}), rules: r, bound: affinity.New(), log: slog.New(slog.DiscardHandler), lock: noLock{}, flows: conntracktest.NewFake().Table()}
	for i, c := range []nfqueue.Counters{{Refused: 3, PortID: 4711}, {Refused: 30}} {
		w := &worker{number: uint16(100 + i), queue: &idleQueue{counters: c, closed: make(chan struct{})}, connections: conntracktest.NewFake().Table(), table: &atomic.Pointer[decision.Table]{}, counters: new(counters)}
		w.counters.packets.Add(uint64(5 + i))
		w.counters.missed.Add(uint64(3 + i))
		e.workers = append(e.workers, w)
	}
	e.workers[1].busySince.Store(1) // since 1970
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	for range 2 {
		r.lost <- struct{}{}
		<-r.following
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	want := Stats{
		Packets: 11, Flows: map[FlowClass]uint64{}, RefusedVerdicts: 33, Undecided: 7, Reinstalled: 2,
		Queues: []QueueStats{
			{Number: 100, Packets: 5, Overrun: 3, Refused: 3, PortID: 4711},
			{Number: 101, Packets: 6, Overrun: 4, Refused: 30, Stuck: true},
		},
	}
	if diff := cmp.Diff(want, e.Stats()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// slowConnections is a worker's table in which a write goes on when another service table
// is in force already.
type slowConnections struct {
	connections
	began   chan struct{}
	table   *atomic.Pointer[decision.Table]
	old     *decision.Table
	written atomic.Bool
}

func (c *slowConnections) Establish([]conntrack.Entry, []conntrack.Result) {
	close(c.began)
	for c.table.Load() == c.old {
		runtime.Gosched()
	}
	time.Sleep(time.Millisecond) // time for an Apply that does not wait to return
	c.written.Store(true)
}
func (*slowConnections) Close() error { return nil }

// TestApplyWaitsForBatches: what a worker writes because of an older table is written when
// Apply returns. The reconciler relies on it: it looks once.
func TestApplyWaitsForBatches(t *testing.T) {
	e := &Engine{apply: make(chan application), ended: make(chan struct{})}
	close(e.ended) // only the workers are of interest
	old, next := &decision.Table{}, &decision.Table{}
	e.table.Store(old)
	c := &slowConnections{began: make(chan struct{}), table: &e.table, old: old}
	w := &worker{queue: &idleQueue{}, connections: c, table: &e.table, counters: new(counters)}
	e.workers = []*worker{w}
	processed := make(chan error, 1)
	go func() { processed <- w.process(0) }()
	<-c.began
	e.Apply(next)
	if !c.written.Load() {
		t.Error("Apply returned while a worker wrote by the old table")
	}
	if err := <-processed; err != nil {
		t.Error(err)
	}
}

// comparedRules count their comparisons.
type comparedRules struct {
	lostRules
	compared int
	takes    time.Duration
	broken   error
}

func (r *comparedRules) Compare(*decision.Table) (ruleset.Comparison, error) {
	r.compared++
	time.Sleep(r.takes) // in a bubble
	return ruleset.Comparison{Chains: r.compared, Differences: []string{"chain x is missing"}}, r.broken
}

func (r *comparedRules) IsAlive(f decision.Family) (bool, error) { return f == decision.IPv6, nil }

// TestCheckRules: Run compares the rules on request, and not for each one; after its end there is no
// wait for it.
func TestCheckRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &comparedRules{lostRules: lostRules{following: make(chan *decision.Table, 100)}}
		e := &Engine{apply: make(chan application), checks: make(chan chan<- RuleCheck), ended: make(chan struct{}), rules: r, bound: affinity.New(), log: slog.New(slog.DiscardHandler), lock: noLock{}, flows: conntracktest.NewFake().Table()}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Run(ctx) }()
		check := func() RuleCheck {
			t.Helper()
			c, err := e.CheckRules(t.Context())
			if err != nil {
				t.Error(err)
			}
			return c
		}
		first := time.Now()
		want := RuleCheck{
			Queued: map[decision.Family]bool{decision.IPv4: false, decision.IPv6: true}, Compared: first,
			Comparison: ruleset.Comparison{Chains: 1, Differences: []string{"chain x is missing"}},
		}
		if diff := cmp.Diff(want, check()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		time.Sleep(compareInterval - 1)
		want.Audited = first.Add(time.Second) // by the first tick
		if diff := cmp.Diff(want, check()); diff != "" {
			t.Errorf("soon after it: -want +got:\n%s", diff)
		}
		time.Sleep(time.Nanosecond)
		r.broken = errors.New("no buffer space")
		if c := check(); c.Comparison.Chains != 2 || !errors.Is(c.Err, r.broken) || !c.Compared.Equal(time.Now()) {
			t.Errorf("later: %+v", c)
		}
		// After a slow comparison, the next one is later.
		r.takes = compareInterval
		for _, next := range []struct {
			after time.Duration
			want  int
		}{{compareInterval, 3}, {(compareShare-1)*compareInterval - 1, 3}, {1, 4}} {
			time.Sleep(next.after)
			if c := check(); c.Comparison.Chains != next.want {
				t.Errorf("after %s: comparison %d, want %d", next.after, c.Comparison.Chains, next.want)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := e.CheckRules(t.Context()); !errors.Is(err, errStopped) {
			t.Errorf("after the end: error %v", err)
		}
	})
	// Without Run, the wait ends with the context.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e := &Engine{checks: make(chan chan<- RuleCheck), ended: make(chan struct{})}
	if _, err := e.CheckRules(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	e.heir = new(successor)
	if c := e.checkRules(time.Now()); !errors.Is(c.Err, errHandover) {
		t.Errorf("during a handover: %+v", c)
	}
}
