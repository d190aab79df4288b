package observetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Holder is the [observe.Holder] of a [Cluster]: it has one hold at a time, which gets the
// flow that [Holder.Catch] gives it.
type Holder struct {
	cluster *Cluster
	mu      sync.Mutex
	hold    *observe.Hold
	chosen  bool
	changed chan struct{} // closed, and made anew, with each change
}

// Catch returns the hold its flow, as soon as there is a hold.
func (h *Holder) Catch(ctx context.Context, r *flow.Record) error {
	for {
		h.mu.Lock()
		if h.hold != nil && h.hold.State == observe.HoldWaiting {
			given := *r
			h.hold.Record, h.hold.State = &given, observe.HoldHolding
			h.change()
			h.mu.Unlock()
			return nil
		}
		changed := h.changed
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// End has the hold end by itself.
func (h *Holder) End() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end("expired")
}

// end is called with mu held.
func (h *Holder) end(outcome string) {
	h.hold.State, h.hold.Outcome, h.hold.Expires = observe.HoldDone, outcome, nil
	h.change()
}

// change is called with mu held.
func (h *Holder) change() {
	h.hold.Generation++
	close(h.changed)
	h.changed = make(chan struct{})
}

// Hold implements [observe.Holder].
func (h *Holder) Hold(_ context.Context, q observe.HoldQuery) (*observe.Hold, error) {
	if q.Flow == (observe.HoldFilter{}) {
		return nil, &observe.Error{Status: 400, Field: "flow", Message: "which flow? give at least one of service, namespace, pod, node, source, destination, port and protocol"}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	expires := Now.Add(time.Duration(q.Seconds) * time.Second)
	h.hold = &observe.Hold{ID: "h1", Query: q, State: observe.HoldWaiting, Expires: &expires}
	h.chosen = false
	h.change()
	return h.copy(), nil
}

// copy is called with mu held.
func (h *Holder) copy() *observe.Hold {
	given := *h.hold
	return &given
}

// Holds implements [observe.Holder].
func (h *Holder) Holds(context.Context) ([]observe.Hold, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hold == nil {
		return nil, nil
	}
	return []observe.Hold{*h.copy()}, nil
}

// Get implements [observe.Holder].
func (h *Holder) Get(ctx context.Context, id string, after uint64) (*observe.Hold, error) {
	for {
		h.mu.Lock()
		if h.hold == nil || h.hold.ID != id {
			h.mu.Unlock()
			return nil, &observe.Error{Status: 404, Field: "id", Message: fmt.Sprintf("hold %q not found", id)}
		}
		given, changed := h.copy(), h.changed
		h.mu.Unlock()
		if given.Generation > after {
			return given, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return given, nil
		}
	}
}

// Act implements [observe.Holder].
func (h *Holder) Act(_ context.Context, _ string, a observe.Act) (*observe.Hold, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hold.State != observe.HoldHolding {
		return nil, &observe.Error{Status: 409, Message: "the hold is done"}
	}
	switch a.Action {
	case observe.ActStep:
		if h.hold.Step++; h.hold.Step >= len(h.hold.Record.Steps) {
			h.end(h.outcome())
			return h.copy(), nil
		}
	case observe.ActBack:
		if h.hold.Step == 0 {
			return nil, &observe.Error{Status: 409, Message: "it is at the first step: there is no way back"}
		}
		h.hold.Step--
	case observe.ActChoose:
		record := *h.hold.Record
		record.Endpoint, record.Pod, record.Draw = a.Endpoint, "", nil
		h.hold.Record, h.chosen = &record, true
	case observe.ActRelease:
		h.end(h.outcome())
		return h.copy(), nil
	case observe.ActDrop:
		h.end("dropped")
		return h.copy(), nil
	}
	h.change()
	return h.copy(), nil
}

// outcome is that of a flow that goes on.
func (h *Holder) outcome() string {
	if h.chosen {
		return "chosen"
	}
	return "released"
}

// Cancel implements [observe.Holder].
func (h *Holder) Cancel(context.Context, string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hold.State != observe.HoldDone {
		h.end("cancelled")
	}
	return nil
}
