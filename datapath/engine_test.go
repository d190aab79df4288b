package datapath

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/nft"
	"github.com/nfqproxy/nfqproxy/datapath/ruleset"
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
func (*lostRules) Counters() (ruleset.Counters, error) { return ruleset.Counters{}, nil }
func (*lostRules) LeaveEstablished() error             { return nil }
func (*lostRules) StopQueueing() error                 { return nil }
func (*lostRules) Replaced() (bool, error)             { return false, nil }
func (*lostRules) Remove() error                       { return nil }
func (*lostRules) Close() error                        { return nil }

type noLock struct{}

func (noLock) Close() error { return nil }

func TestEngineStats(t *testing.T) {
	r := &lostRules{lost: make(chan struct{}), following: make(chan *decision.Table)}
	e := &Engine{apply: make(chan application), ended: make(chan struct{}), rules: r, bound: affinity.New(), log: slog.New(slog.DiscardHandler), lock: noLock{}, flows: conntracktest.NewFake().Table()}
	for i, c := range []nfqueue.Counters{{Refused: 3}, {Refused: 30}} {
		w := &worker{number: uint16(100 + i), queue: &idleQueue{counters: c, closed: make(chan struct{})}, connections: conntracktest.NewFake().Table(), table: &atomic.Pointer[decision.Table]{}, counters: new(counters)}
		w.counters.packets.Add(uint64(5 + i))
		w.counters.missed.Add(uint64(3 + i))
		e.workers = append(e.workers, w)
	}
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
		Packets: 11, RefusedVerdicts: 33, Undecided: 7, Reinstalled: 2,
		Queues: []QueueStats{
			{Number: 100, Packets: 5, Overrun: 3, Refused: 3},
			{Number: 101, Packets: 6, Overrun: 4, Refused: 30},
		},
	}
	if diff := cmp.Diff(want, e.Stats()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// slowConnections is a worker's table in which a write goes on when another service table
// is in force already.
type slowConnections struct {
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
