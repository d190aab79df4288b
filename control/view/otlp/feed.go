package otlp

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// queue keeps the newest records that a collector has not taken yet.
type queue struct {
	size int

	mu      sync.Mutex
	records []*flow.Record
	waiting chan struct{} // holds something if there are records
}

func newQueue(size int) *queue { return &queue{size: size, waiting: make(chan struct{}, 1)} }

// add adds a record. It reports whether the oldest one was dropped for it.
func (q *queue) add(r *flow.Record) (dropped bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.records) == q.size {
		q.records, dropped = q.records[1:], true
	}
	q.records = append(q.records, r)
	select {
	case q.waiting <- struct{}{}:
	default:
	}
	return dropped
}

// take removes up to n records, the oldest first.
func (q *queue) take(n int) []*flow.Record {
	q.mu.Lock()
	defer q.mu.Unlock()
	n = min(n, len(q.records))
	taken := append([]*flow.Record(nil), q.records[:n]...)
	clear(q.records[:n])
	if q.records = q.records[n:]; len(q.records) > 0 {
		select {
		case q.waiting <- struct{}{}:
		default:
		}
	}
	return taken
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.records)
}

// wait waits until there are records, or the context ends.
func (q *queue) wait(ctx context.Context) {
	select {
	case <-q.waiting:
	case <-ctx.Done():
	}
}

// feed follows the flows of a node, and gives them to pipes.
type feed struct {
	follow func(ctx context.Context, q observe.FlowQuery, began func(), each func(observe.Item) error) error
	pipes  []*pipe
	began  func() // called with the first stream
	log    *slog.Logger
}

// The times between two attempts to follow a daemon that is away.
const firstReconnect, lastReconnect = 100 * time.Millisecond, 5 * time.Second

// run follows until the context ends. When a stream ends it begins another one: a daemon that has ended has
// nothing more to tell.
func (f *feed) run(ctx context.Context) {
	interval := backoff.NewExponentialBackOff()
	interval.InitialInterval, interval.MaxInterval = firstReconnect, lastReconnect
	away, first := false, true
	for ctx.Err() == nil {
		began := func() {
			switch {
			case first:
				f.began()
			case away:
				f.log.Info("the export follows the daemon's flows again")
			}
			away, first = false, false
			interval.Reset()
		}
		err := f.follow(ctx, observe.FlowQuery{Follow: true}, began, func(i observe.Item) error {
			f.item(i)
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		if !away {
			f.log.Warn("the export cannot follow the daemon's flows; trying again", "error", err)
			away = true
		}
		wait(ctx, interval.NextBackOff())
	}
}

func (f *feed) item(i observe.Item) {
	switch {
	case i.Record != nil:
		for _, p := range f.pipes {
			if p.decisions && !i.Record.Event.IsDecision() {
				continue
			}
			if p.queue.add(i.Record) {
				p.evicted.Add(1)
			}
		}
	case i.Missed != nil && i.Missed.Why == observe.MissedLost:
		for _, p := range f.pipes {
			p.overflow.Add(i.Missed.Missed)
		}
	case i.Missed != nil && i.Missed.IsLoss():
		for _, p := range f.pipes {
			p.evicted.Add(i.Missed.Missed)
		}
	}
}
