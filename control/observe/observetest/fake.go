// Package observetest is an [observe.Observer] for tests, with data set by the test.
package observetest

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Fake is the Observer of one node. Its exported fields may be changed between requests.
type Fake struct {
	// List has the items of a listing, which also come first in a stream that requests them.
	List []observe.Item
	// ListError ends a listing after List.
	ListError error
	// Answers to the other questions.
	ServicesAnswer observe.Services
	TableAnswer    observe.Table
	ObjectsAnswer  observe.TableObjects
	StatsAnswer    observe.Stats
	StatusAnswer   observe.Status
	TopologyAnswer observe.Topology
	ExplainAnswer  flow.Record
	// NoHolds: flows cannot be held.
	NoHolds bool

	node string

	mu       sync.Mutex
	changed  chan struct{} // closed at the next change
	err      error
	readers  map[*reader]bool
	requests []any
	holds    []*hold
}

// reader follows the flows.
type reader struct {
	items  chan observe.Item
	broken chan error
	gone   chan struct{} // closed when it follows no more
}

// New returns the Observer of a node at which nothing happened yet.
func New(node string) *Fake {
	return &Fake{node: node, changed: make(chan struct{}), readers: make(map[*reader]bool)}
}

// change does something that others may wait for.
func (f *Fake) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// await waits until the condition holds, and reports whether it does.
func (f *Fake) await(ctx context.Context, condition func() bool) bool {
	for {
		f.mu.Lock()
		ok, changed := condition(), f.changed
		f.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Fail makes every request end with the error, those for a hold that wait at this time,
// too; nil: none does.
func (f *Fake) Fail(err error) { f.change(func() { f.err = err }) }

// Break ends all streams with the error; nil: as if there was no more.
func (f *Fake) Break(err error) {
	f.change(func() {
		for r := range f.readers {
			r.broken <- err
			delete(f.readers, r)
		}
	})
}

// Publish returns the item to all who follow, as soon as each takes it.
func (f *Fake) Publish(i observe.Item) {
	f.mu.Lock()
	readers := slices.Collect(maps.Keys(f.readers))
	f.mu.Unlock()
	for _, r := range readers {
		select {
		case r.items <- i:
		case <-r.gone:
		}
	}
}

// AwaitReaders waits until n readers follow, and reports whether they do.
func (f *Fake) AwaitReaders(ctx context.Context, n int) bool {
	return f.await(ctx, func() bool { return len(f.readers) == n })
}

// Requests returns the requests so far, in order: queries, ids and acts.
func (f *Fake) Requests() []any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]any(nil), f.requests...)
}

// AwaitRequest waits until the request was received, and reports whether it was.
func (f *Fake) AwaitRequest(ctx context.Context, request any) bool {
	return f.await(ctx, func() bool { return slices.Contains(f.requests, request) })
}

// AwaitRequests waits for at least this number of requests, and reports whether they were received.
func (f *Fake) AwaitRequests(ctx context.Context, n int) bool {
	return f.await(ctx, func() bool { return len(f.requests) >= n })
}

// record records the request.
func (f *Fake) record(request any) (err error) {
	f.change(func() {
		f.requests = append(f.requests, request)
		err = f.err
	})
	return err
}

// Flows returns List, unless it is to follow without Since or Limit, and then what is published. Of
// the filters, only Verdict counts.
func (f *Fake) Flows(ctx context.Context, q observe.FlowQuery, give func(observe.Item) error) error {
	if _, err := q.Parse(time.Now()); err != nil {
		return err
	}
	if err := f.record(q); err != nil {
		return err
	}
	each := func(i observe.Item) error {
		if i.Record != nil && q.Verdict != "" && q.Verdict != i.Record.Verdict {
			return nil
		}
		return give(i)
	}
	r := &reader{make(chan observe.Item), make(chan error, 1), make(chan struct{})}
	if q.Follow {
		f.change(func() { f.readers[r] = true })
		defer f.change(func() { delete(f.readers, r); close(r.gone) })
	}
	if !q.Follow || q.Since != "" || q.Limit != "" {
		for _, i := range f.List {
			if err := each(i); err != nil {
				return err
			}
		}
	}
	if !q.Follow && f.ListError != nil {
		return f.ListError
	}
	for q.Follow {
		select {
		case i := <-r.items:
			if err := each(i); err != nil {
				return err
			}
		case err := <-r.broken:
			return err
		case <-ctx.Done():
			return nil
		}
	}
	return ctx.Err()
}

// Flow finds it in List.
func (f *Fake) Flow(_ context.Context, id string) (*flow.Record, error) {
	if err := f.record(id); err != nil {
		return nil, err
	}
	for _, i := range f.List {
		if i.Record != nil && i.Record.ID == id {
			return i.Record, nil
		}
	}
	return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("no flow %q is known at node %s", id, f.node)}
}

// Services returns ServicesAnswer.
func (f *Fake) Services(_ context.Context, q observe.ServiceQuery) (*observe.Services, error) {
	return &f.ServicesAnswer, f.record(q)
}

// Tables returns TableAnswer.
func (f *Fake) Tables(context.Context) ([]observe.Table, error) {
	return []observe.Table{f.TableAnswer}, f.record(nil)
}

// Objects returns ObjectsAnswer.
func (f *Fake) Objects(_ context.Context, q observe.ObjectsQuery) (*observe.TableObjects, error) {
	return &f.ObjectsAnswer, f.record(q)
}

// Stats returns StatsAnswer.
func (f *Fake) Stats(context.Context) ([]observe.Stats, error) {
	return []observe.Stats{f.StatsAnswer}, f.record(nil)
}

// Status returns StatusAnswer.
func (f *Fake) Status(context.Context) ([]observe.Status, error) {
	return []observe.Status{f.StatusAnswer}, f.record(nil)
}

// Topology returns TopologyAnswer.
func (f *Fake) Topology(context.Context) (*observe.Topology, error) {
	return &f.TopologyAnswer, f.record(nil)
}

// Explain returns ExplainAnswer.
func (f *Fake) Explain(_ context.Context, q observe.Question) (*flow.Record, error) {
	return &f.ExplainAnswer, f.record(q)
}

// Holder is the Fake itself, unless NoHolds.
func (f *Fake) Holder() observe.Holder {
	if f.NoHolds {
		return nil
	}
	return f
}
