package web_test

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// arm begins a hold.
func (f *fake) arm(q observe.HoldQuery) (*observe.Hold, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if q.Flow == (observe.HoldFilter{}) {
		return nil, &observe.Error{Status: http.StatusBadRequest, Field: "flow", Message: "which flow? Give at least one of service, namespace, pod, node, source, destination, port, protocol"}
	}
	if q.Seconds == 0 {
		q.Seconds = 60
	}
	expires := time.Now().Add(time.Duration(q.Seconds) * time.Second)
	h := &observe.Hold{ID: fmt.Sprintf("hold-%d", len(f.holds)+1), Query: q, State: observe.HoldWaiting, Expires: &expires}
	f.holds[h.ID] = h
	return f.change(h), nil
}

// change makes a new generation of the hold and wakes who waits for it.
func (f *fake) change(h *observe.Hold) *observe.Hold {
	h.Generation++
	close(f.changed)
	f.changed = make(chan struct{})
	c := *h
	return &c
}

// hold takes a flow that a hold waits for.
func (f *fake) hold(r *flow.Record, now time.Time) bool {
	for _, h := range f.holds {
		w := h.Query.Flow
		q := observe.FlowQuery{Service: w.Service, Namespace: w.Namespace, Pod: w.Pod, Node: w.Node, Source: w.Source, Destination: w.Destination, Port: w.Port, Protocol: w.Protocol}
		if h.State != observe.HoldWaiting || !matches(&q, r) {
			continue
		}
		expires := now.Add(time.Duration(h.Query.Seconds) * time.Second)
		h.State, h.Record, h.Expires = observe.HoldHolding, r, &expires
		f.change(h)
		return true
	}
	return false
}

// expire ends the holds whose time is over.
func (f *fake) expire(now time.Time) {
	for _, h := range f.holds {
		if h.State != observe.HoldDone && now.After(*h.Expires) {
			f.end(h, "expired")
		}
	}
}

// end lets a hold's flow go on.
func (f *fake) end(h *observe.Hold, outcome string) {
	h.State, h.Outcome, h.Expires = observe.HoldDone, outcome, nil
	if h.Record != nil && outcome != "dropped" {
		now := time.Now()
		r, life := *h.Record, *h.Record.Life
		life.Since, life.History = now, []flow.Moment{{Event: life.State, Time: now}}
		r.Time, r.Life = &now, &life
		h.Record = &r
		f.known(h.Record, tcpLife, now)
	}
	f.change(h)
}

// get gives a hold, and what is closed when one changes.
func (f *fake) get(id string) (*observe.Hold, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.holds[id]
	if h == nil {
		return nil, nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("hold %q: there is none", id)}
	}
	c := *h
	return &c, f.changed, nil
}

// act does something to a held flow.
func (f *fake) act(id string, a observe.Act) (*observe.Hold, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.holds[id]
	if h == nil || h.State != observe.HoldHolding {
		return nil, &observe.Error{Status: http.StatusConflict, Message: fmt.Sprintf("hold %q holds no flow", id)}
	}
	switch a.Action {
	case observe.ActStep:
		if h.Step++; h.Step >= len(h.Record.Steps) {
			f.end(h, outcomeOf(h))
			return f.change(h), nil
		}
	case observe.ActBack:
		h.Step = max(0, h.Step-1)
	case observe.ActChoose:
		if err := f.choose(h, a.Endpoint); err != nil {
			return nil, err
		}
	case observe.ActRelease:
		f.end(h, outcomeOf(h))
	case observe.ActDrop:
		f.end(h, "dropped")
	default:
		return nil, &observe.Error{Status: http.StatusBadRequest, Field: "action", Message: fmt.Sprintf("action %q: want step, back, choose, release or drop", a.Action)}
	}
	return f.change(h), nil
}

func outcomeOf(h *observe.Hold) string {
	if h.Record.Held != nil {
		return h.Record.Held.Action
	}
	return "released"
}

// choose draws until the endpoint comes out.
func (f *fake) choose(h *observe.Hold, endpoint string) error {
	if !slices.ContainsFunc(h.Record.Candidates, func(c flow.Candidate) bool { return c.Endpoint == endpoint }) {
		return &observe.Error{Status: http.StatusBadRequest, Field: "endpoint", Message: fmt.Sprintf("endpoint %q: it is no candidate", endpoint)}
	}
	for {
		r, err := f.world.decide(h.Record.Node, flow.Question{Protocol: h.Record.Protocol, Source: h.Record.Source, Destination: h.Record.Destination})
		if err != nil {
			return err
		}
		if r.Endpoint == endpoint {
			f.world.live(r, h.Record.ID, time.Now())
			r.Held = &flow.Hold{ID: h.ID, Action: "chosen"}
			h.Record = r
			return nil
		}
	}
}
