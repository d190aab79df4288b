package hold

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

func (w *hold) act(a observe.Act) error {
	w.acting.Lock()
	defer w.acting.Unlock()
	w.holder.mu.Lock()
	s, err := &snapshot{w.flow, w.drawn, w.record}, w.check()
	w.holder.mu.Unlock()
	if err != nil {
		return err
	}
	r := s.record() // without the lock: the workers must not wait while the chains are walked
	if a.Action == observe.ActChoose {
		return w.choose(a.Endpoint, s, r)
	}
	leaving, err := w.move(a.Action, len(r.Steps))
	if err == nil && leaving != nil {
		leaving.release()
	}
	return err
}

// snapshot is the state at the start of an action. While acting is held, only the end of the hold
// changes it.
type snapshot struct {
	flow   flow.Flow
	drawn  decision.Decision
	record func() *flow.Record
}

// move takes a step forward or back, or starts the release of the flow, which the caller carries
// out. It locks holder.mu.
func (w *hold) move(action string, steps int) (*departure, error) {
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

// choose selects an endpoint other than that of r, the present record. It takes back the steps that
// change. It locks holder.mu.
func (w *hold) choose(endpoint string, s *snapshot, r *flow.Record) error {
	if s.drawn.Verdict != decision.DNAT {
		return w.conflict(fmt.Sprintf("has a flow without an endpoint (%s, %s): release or drop it", r.Verdict, r.Reason))
	}
	d, ok := s.chosen(endpoint)
	if !ok {
		return &observe.Error{Status: http.StatusBadRequest, Field: "endpoint", Message: fmt.Sprintf("endpoint %q: want one of %s", endpoint, candidates(r))}
	}
	if d.Index == s.flow.Decision.Index {
		return nil
	}
	s.flow.Decision = d
	record := w.holder.recordOf(s.flow)
	same := commonSteps(r.Steps, record().Steps)
	w.holder.mu.Lock()
	defer w.holder.mu.Unlock()
	if err := w.check(); err != nil {
		return err
	}
	w.flow, w.record, w.step = s.flow, record, min(w.step, same)
	w.change()
	return nil
}

// chosen is the decision for the endpoint.
func (s *snapshot) chosen(endpoint string) (decision.Decision, bool) {
	to, err := netip.ParseAddrPort(endpoint)
	if err != nil {
		return decision.Decision{}, false
	}
	i := slices.IndexFunc(s.drawn.ServicePort.Endpoints, func(e decision.Endpoint) bool { return e.AddrPort == to })
	switch {
	case i < 0:
		return decision.Decision{}, false
	case uint32(i) == s.drawn.Index:
		return s.drawn, true
	}
	return decision.Choose(s.flow.Table, &s.flow.Packet, &s.drawn, uint32(i))
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
	if leaving := w.abandon(outcome, in); leaving != nil {
		leaving.release()
	}
}

// abandon is the part of giveUp for which holder.mu is held.
func (w *hold) abandon(outcome string, in []observe.HoldState) *departure {
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

// departure is a flow to release.
type departure struct {
	*hold
	held     engine.HeldFlow
	record   func() *flow.Record
	decision decision.Decision
	outcome  flow.Hold
}

// leave starts the release of the flow with a decision: the caller carries it out after unlocking
// holder.mu, which is held.
func (w *hold) leave(d decision.Decision, outcome string) *departure {
	w.leaving = true
	return &departure{w, w.held, w.record, d, flow.Hold{ID: w.id, Seconds: time.Since(w.flow.Time).Seconds(), Action: outcome}}
}

// release releases the flow and ends the hold. It locks holder.mu. After a panic the hold still
// ends, without a record.
func (d *departure) release() {
	var last *flow.Record
	defer func() { d.left(last) }()
	gone := d.held.Release(d.decision, d.outcome)
	r := *d.record()
	r.Held = &d.outcome
	if gone != nil && d.outcome.Action != flow.HoldDropped {
		r = *d.holder.recordOfReleased(gone, r.Steps)
	}
	last = &r
}

// left ends the hold of a released flow. It locks holder.mu.
func (d *departure) left(last *flow.Record) {
	w := d.hold
	w.holder.mu.Lock()
	defer w.holder.mu.Unlock()
	w.record = nil
	if last != nil {
		w.record = func() *flow.Record { return last }
		if d.outcome.Action != flow.HoldDropped {
			w.step = len(last.Steps)
		}
	}
	w.end(d.outcome.Action)
}

// end ends the hold after its flow was released.
func (w *hold) end(outcome string) {
	w.timer.Stop()
	w.state, w.outcome = observe.HoldDone, outcome
	w.held, w.flow, w.drawn = nil, flow.Flow{}, decision.Decision{} // their table must not be kept
	w.change()
}
