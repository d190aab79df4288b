package hold

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

func (w *hold) act(a observe.Act) error {
	w.acting.Lock()
	defer w.acting.Unlock()
	w.holder.mu.Lock()
	// While acting is held, only the end of the hold changes these.
	f, drawn, record, err := w.flow, w.drawn, w.record, w.check()
	w.holder.mu.Unlock()
	if err != nil {
		return err
	}
	r := record() // without the lock: the workers must not wait while the chains are walked
	if a.Action == observe.ActChoose {
		return w.choose(a.Endpoint, f, &drawn, r)
	}
	release, err := w.move(a.Action, len(r.Steps))
	if release != nil {
		release()
	}
	return err
}

// move takes a step forward or back, or returns the function that releases the flow: see leave. It locks holder.mu.
func (w *hold) move(action string, steps int) (release func(), err error) {
	w.holder.mu.Lock()
	defer w.holder.mu.Unlock()
	if err := w.check(); err != nil { // it has expired meanwhile
		return nil, err
	}
	switch {
	case action == observe.ActRelease, action == observe.ActStep && w.step == steps:
		outcome := flow.HoldReleased
		if w.flow.Decision.Index != w.drawn.Index {
			outcome = flow.HoldChosen
		}
		return w.leave(w.flow.Decision, outcome), nil
	case action == observe.ActStep:
		w.step++
		w.change()
	case action == observe.ActBack:
		if w.step == 0 {
			return nil, w.conflict("is at its first step: cannot go back")
		}
		w.step--
		w.change()
	case action == observe.ActDrop:
		d := w.drawn
		d.Verdict, d.Reason = decision.Drop, decision.DroppedByHand
		return w.leave(d, flow.HoldDropped), nil
	}
	return nil, nil
}

// choose selects an endpoint other than that of f, whose record is r. It takes back the steps that
// change. It locks holder.mu.
func (w *hold) choose(endpoint string, f flow.Flow, drawn *decision.Decision, r *flow.Record) error {
	if drawn.Verdict != decision.DNAT {
		return w.conflict(fmt.Sprintf("has a flow without an endpoint (%s, %s): release or drop it", r.Verdict, r.Reason))
	}
	d, ok := chosen(&f, drawn, endpoint)
	if !ok {
		return &observe.Error{Status: http.StatusBadRequest, Field: "endpoint", Message: fmt.Sprintf("endpoint %q: want one of %s", endpoint, candidates(r))}
	}
	if d.Index == f.Decision.Index {
		return nil
	}
	f.Decision = d
	record := w.holder.recordOf(f)
	same := commonSteps(r.Steps, record().Steps)
	w.holder.mu.Lock()
	defer w.holder.mu.Unlock()
	if err := w.check(); err != nil {
		return err
	}
	w.flow, w.record, w.step = f, record, min(w.step, same)
	w.change()
	return nil
}

// chosen is the decision for the endpoint, instead of the one that was drawn.
func chosen(f *flow.Flow, drawn *decision.Decision, endpoint string) (decision.Decision, bool) {
	to, err := netip.ParseAddrPort(endpoint)
	if err != nil {
		return decision.Decision{}, false
	}
	i := slices.IndexFunc(drawn.ServicePort.Endpoints, func(e decision.Endpoint) bool { return e.AddrPort == to })
	switch {
	case i < 0:
		return decision.Decision{}, false
	case uint32(i) == drawn.Index:
		return *drawn, true
	}
	return decision.Choose(f.Table, &f.Packet, drawn, uint32(i))
}

func candidates(r *flow.Record) string {
	const most = 10
	var list []string
	for _, c := range r.Candidates[:min(most, len(r.Candidates))] {
		list = append(list, c.Endpoint)
	}
	if more := len(r.Candidates) - most; more > 0 {
		list = append(list, fmt.Sprintf("%d others", more))
	}
	return strings.Join(list, ", ")
}

// commonSteps is the number of common first steps of two walks.
func commonSteps(a, b []flow.Step) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// giveUp ends the hold without an action: its flow is released to the selected endpoint. It has no
// effect in states other than the given ones. It locks holder.mu.
func (w *hold) giveUp(outcome string, in ...observe.HoldState) {
	if release := w.abandon(outcome, in); release != nil {
		release()
	}
}

// abandon is the part of giveUp for which holder.mu is held.
func (w *hold) abandon(outcome string, in []observe.HoldState) (release func()) {
	w.holder.mu.Lock()
	defer w.holder.mu.Unlock()
	switch {
	case !slices.Contains(in, w.state) || w.leaving:
	case w.state == observe.HoldWaiting:
		w.holder.armed.Add(-1)
		w.end(outcome)
	case w.state == observe.HoldHolding:
		if w.flow.Decision.Index != w.drawn.Index {
			w.flow.Decision, w.step = w.drawn, 0
			w.record = w.holder.recordOf(w.flow)
		}
		return w.leave(w.drawn, outcome)
	}
	return nil
}

// leave starts the release of the flow with a decision. The caller calls release, which locks holder.mu, after unlocking
// it: it releases the flow and ends the hold. After a panic the hold still ends, without a record.
func (w *hold) leave(d decision.Decision, action string) (release func()) {
	w.leaving = true
	held, record := w.held, w.record
	outcome := flow.Hold{ID: w.id, Seconds: time.Since(w.flow.Time).Seconds(), Action: action}
	return func() {
		var last *flow.Record
		defer func() { w.left(last, action) }()
		gone := held.Release(d, outcome)
		r := *record()
		r.Held = &outcome
		if gone != nil && action != flow.HoldDropped {
			steps := r.Steps
			r = *gone.Record()
			r.AddNames(w.holder.config.Names)
			if journal.HasSteps(gone) {
				r.Steps = steps
			}
		}
		last = &r
	}
}

// left ends the hold of a released flow. It locks holder.mu.
func (w *hold) left(last *flow.Record, outcome string) {
	w.holder.mu.Lock()
	defer w.holder.mu.Unlock()
	w.record = nil
	if last != nil {
		w.record = func() *flow.Record { return last }
		if outcome != flow.HoldDropped {
			w.step = len(last.Steps)
		}
	}
	w.end(outcome)
}

// end ends the hold after its flow was released.
func (w *hold) end(outcome string) {
	w.timer.Stop()
	w.state, w.outcome = observe.HoldDone, outcome
	w.held, w.flow, w.drawn = nil, flow.Flow{}, decision.Decision{} // their table must not be kept
	w.change()
}
