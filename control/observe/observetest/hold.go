package observetest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

type hold struct {
	observe.Hold
	chosen bool   // another endpoint
	flow   string // ID of the flow, once it is released
}

func (h *hold) set(state observe.HoldState, outcome string) {
	h.Generation++
	h.State, h.Outcome = state, outcome
	if state != observe.HoldDone {
		return
	}
	h.Expires = nil
	if h.Record != nil {
		released := *h.Record
		released.Held = &flow.Hold{ID: h.ID, Action: outcome}
		h.Record = &released
	}
}

// heldAs is how a flow that was released was held; nil: it was not.
func (f *Fake) heldAs(id string) *flow.Hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.holds {
		if h.flow == id && h.State == observe.HoldDone {
			return h.Record.Held
		}
	}
	return nil
}

// Catch returns the flow to the first hold that waits for one, whatever it waits for, and
// reports whether there is one.
func (f *Fake) Catch(r flow.Record) (caught bool) {
	f.change(func() {
		for _, h := range f.holds {
			if h.State == observe.HoldWaiting {
				h.flow, r.ID = r.ID, "" // it gets one when it is released
				h.Record = &r
				h.set(observe.HoldHolding, "")
				caught = true
				return
			}
		}
	})
	return caught
}

// CatchNext does what Catch does, as soon as a hold waits.
func (f *Fake) CatchNext(ctx context.Context, r flow.Record) {
	waits := func(h *hold) bool { return h.State == observe.HoldWaiting }
	if f.await(ctx, func() bool { return slices.ContainsFunc(f.holds, waits) }) {
		f.Catch(r)
	}
}

// Expire ends the hold as its time does.
func (f *Fake) Expire(id string) {
	f.change(func() {
		if h, err := f.find(id); err == nil {
			h.set(observe.HoldDone, "expired")
		}
	})
}

// AwaitOutcome waits until the node's holds have these outcomes, in order; empty: not done.
func (f *Fake) AwaitOutcome(ctx context.Context, outcomes ...string) bool {
	return f.await(ctx, func() bool {
		if len(f.holds) != len(outcomes) {
			return false
		}
		for i, h := range f.holds {
			if h.Outcome != outcomes[i] {
				return false
			}
		}
		return true
	})
}

// find is called with mu held.
func (f *Fake) find(id string) (*hold, error) {
	for _, h := range f.holds {
		if h.ID == id {
			return h, nil
		}
	}
	return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("hold %q not found at node %s", id, f.node)}
}

// Hold waits for [Fake.Catch].
func (f *Fake) Hold(_ context.Context, q observe.HoldQuery) (*observe.Hold, error) {
	if err := f.record(q); err != nil {
		return nil, err
	}
	expires := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	h := &hold{Hold: observe.Hold{Generation: 1, Query: q, State: observe.HoldWaiting, Expires: &expires}}
	var copied observe.Hold
	f.change(func() {
		h.ID = fmt.Sprintf("%s-%d", f.node, len(f.holds)+1)
		f.holds = append(f.holds, h)
		copied = h.Hold
	})
	return &copied, nil
}

// Holds returns all.
func (f *Fake) Holds(context.Context) ([]observe.Hold, error) {
	err := f.record(nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []observe.Hold
	for _, h := range f.holds {
		list = append(list, h.Hold)
	}
	return list, err
}

// Get waits for the generation.
func (f *Fake) Get(ctx context.Context, id string, after uint64) (*observe.Hold, error) {
	if err := f.record(id); err != nil {
		return nil, err
	}
	var copied observe.Hold
	var err error
	look := func() bool {
		h, missing := f.find(id)
		if err = f.err; err == nil {
			err = missing
		}
		if err == nil {
			copied = h.Hold
		}
		return err != nil || after == 0 || h.Generation > after
	}
	f.await(ctx, look)
	return &copied, err
}

// Act acts on a held flow; ActStep from the last step releases it.
func (f *Fake) Act(_ context.Context, id string, a observe.Act) (*observe.Hold, error) {
	if err := f.record(a); err != nil {
		return nil, err
	}
	var copied observe.Hold
	var err error
	f.change(func() {
		var h *hold
		if h, err = f.find(id); err != nil {
			return
		}
		if h.State != observe.HoldHolding {
			err = &observe.Error{Status: http.StatusConflict, Message: fmt.Sprintf("hold %s holds no flow: it is %s", id, h.State)}
			return
		}
		state, outcome := observe.HoldHolding, ""
		switch {
		case a.Action == observe.ActBack && h.Step == 0:
			err = &observe.Error{Status: http.StatusConflict, Message: "it is at the first step: there is no way back"}
			return
		case a.Action == observe.ActBack:
			h.Step--
		case a.Action == observe.ActStep && h.Step < len(h.Record.Steps):
			h.Step++
		case a.Action == observe.ActChoose:
			chosen := *h.Record
			chosen.Endpoint, chosen.Pod, chosen.Draw = a.Endpoint, "", nil
			h.Record, h.chosen = &chosen, true
		case a.Action == observe.ActDrop:
			state, outcome = observe.HoldDone, flow.HoldDropped
		case h.chosen:
			state, outcome = observe.HoldDone, flow.HoldChosen
		default:
			state, outcome = observe.HoldDone, flow.HoldReleased
		}
		h.set(state, outcome)
		copied = h.Hold
	})
	return &copied, err
}

// Cancel ends the hold, if it is not over.
func (f *Fake) Cancel(_ context.Context, id string) error {
	if err := f.record(id); err != nil {
		return err
	}
	var err error
	f.change(func() {
		var h *hold
		if h, err = f.find(id); err == nil && h.State != observe.HoldDone {
			h.set(observe.HoldDone, "cancelled")
		}
	})
	return err
}

// Forget makes the node know no holds, as after a restart.
func (f *Fake) Forget() { f.change(func() { f.holds = nil }) }
