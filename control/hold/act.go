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
	"github.com/nfqproxy/nfqproxy/datapath/steps"
)

// act does something to the flow that is held.
func (w *hold) act(a observe.Act) error {
	w.acting.Lock()
	defer w.acting.Unlock()
	mu := &w.holder.mu
	mu.Lock()
	defer mu.Unlock()
	if err := w.check(); err != nil {
		return err
	}
	record := w.record
	mu.Unlock() // the workers must not wait while the chains are walked
	r := record()
	mu.Lock()
	if err := w.check(); err != nil { // it has expired meanwhile
		return err
	}
	switch a.Action {
	case observe.ActStep:
		if w.step == len(r.Steps) {
			w.letGo(w.flow.Decision, w.released())
			return nil
		}
		w.step++
		w.change()
	case observe.ActBack:
		if w.step == 0 {
			return w.conflict("has not taken a step yet: there is none to take back")
		}
		w.step--
		w.change()
	case observe.ActChoose:
		return w.choose(a.Endpoint, r)
	case observe.ActRelease:
		w.letGo(w.flow.Decision, w.released())
	case observe.ActDrop:
		d := w.drawn
		d.Verdict, d.Reason = decision.Drop, decision.DroppedByHand
		w.letGo(d, flow.HoldDropped)
	}
	return nil
}

// released is what became of the flow if it is let go as it is.
func (w *hold) released() string {
	if w.flow.Decision.Index != w.drawn.Index {
		return flow.HoldChosen
	}
	return flow.HoldReleased
}

// choose takes another endpoint than r has, which is the record as it is. It takes back
// the steps that are other ones then. holder.mu is held, but not all the time.
func (w *hold) choose(endpoint string, r *flow.Record) error {
	if w.drawn.Verdict != decision.DNAT {
		return w.conflict(fmt.Sprintf("has a flow that goes to no endpoint (%s, %s): release or drop it", r.Verdict, r.Reason))
	}
	f := w.flow
	d, ok := w.chosen(endpoint)
	if !ok {
		return &observe.Error{Status: http.StatusBadRequest, Field: "endpoint", Message: fmt.Sprintf("endpoint %q: want one of %s", endpoint, candidates(r))}
	}
	if d.Index == f.Decision.Index {
		return nil
	}
	f.Decision = d
	record := w.holder.recordOf(f)
	mu := &w.holder.mu
	mu.Unlock()
	same := commonSteps(r.Steps, record().Steps)
	mu.Lock()
	if err := w.check(); err != nil {
		return err
	}
	w.flow, w.record, w.step = f, record, min(w.step, same)
	w.change()
	return nil
}

// chosen is the decision for the endpoint.
func (w *hold) chosen(endpoint string) (decision.Decision, bool) {
	to, err := netip.ParseAddrPort(endpoint)
	if err != nil {
		return decision.Decision{}, false
	}
	i := slices.IndexFunc(w.drawn.ServicePort.Endpoints, func(e decision.Endpoint) bool { return e.AddrPort == to })
	switch {
	case i < 0:
		return decision.Decision{}, false
	case uint32(i) == w.drawn.Index:
		return w.drawn, true
	}
	return decision.Choose(w.flow.Table, &w.flow.Packet, &w.drawn, uint32(i))
}

// candidates lists what could be chosen.
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

// commonSteps is how many steps two walks begin with in common.
func commonSteps(a, b []steps.Step) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// giveUp ends it without anybody's doing anything to its flow, which goes on as it was
// drawn. In other states than those given it is left as it is. It takes holder.mu.
func (w *hold) giveUp(outcome string, in ...observe.HoldState) {
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
		w.letGo(w.drawn, outcome)
	}
}

// letGo lets the flow go with a decision, and ends the hold. holder.mu is held, but not
// all the time.
func (w *hold) letGo(d decision.Decision, outcome string) {
	w.leaving = true
	held, record := w.held, w.record
	told := flow.Hold{ID: w.id, Seconds: time.Since(w.flow.Time).Seconds(), Action: outcome}
	w.holder.mu.Unlock()
	gone := held.LetGo(d, told)
	r := *record()
	r.Held = &told
	if gone != nil && outcome != flow.HoldDropped {
		r = *w.holder.recordOfGone(gone, r.Steps)
	}
	w.holder.mu.Lock()
	w.record = func() *flow.Record { return &r }
	if outcome != flow.HoldDropped {
		w.step = len(r.Steps)
	}
	w.end(outcome)
}

// end ends it, when its flow has gone.
func (w *hold) end(outcome string) {
	w.timer.Stop()
	w.state, w.outcome = observe.HoldDone, outcome
	w.held, w.flow, w.drawn = nil, flow.Flow{}, decision.Decision{} // their table must not be kept
	w.change()
}
