package hold

import (
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// hold is one hold. Mutable fields are guarded by holder.mu.
type hold struct {
	holder  *Holder
	id      string
	query   observe.HoldQuery
	timeout time.Duration // of waiting, and of holding
	matches func(*flow.Flow) bool
	acting  sync.Mutex // held during an action; locked before holder.mu

	state      observe.HoldState
	generation uint64
	changed    chan struct{} // closed, and made anew, at each change
	expires    time.Time
	timer      *time.Timer

	// Valid iff it is holding: the flow with its present decision, the original decision, and
	// whether it is being released.
	held    engine.HeldFlow
	flow    flow.Flow
	drawn   decision.Decision
	leaving bool

	record          func() *flow.Record // nil: no flow yet; must not be called with holder.mu held
	step            int
	retransmissions int
	outcome         string
}

// change starts a new generation. holder.mu is held, as for all following methods that do not lock
// it.
func (w *hold) change() {
	w.generation++
	close(w.changed)
	w.changed = make(chan struct{})
}

// expireIn starts the timeout of the present state.
func (w *hold) expireIn(d time.Duration) {
	if w.timer != nil {
		w.timer.Stop()
	}
	state := w.state
	w.expires = time.Now().Add(d)
	w.timer = time.AfterFunc(d, func() { w.giveUpSafely(flow.HoldExpired, state) })
}

// giveUpSafely is giveUp for goroutines in which a panic would end the proxy: a bug in the
// rendering of a flow must not do that.
func (w *hold) giveUpSafely(outcome string, in ...observe.HoldState) {
	defer func() {
		if p := recover(); p != nil {
			w.holder.config.Log.Error("panic at the end of a hold", "hold", w.id, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	w.giveUp(outcome, in...)
}

// take holds a flow.
func (w *hold) take(f engine.HeldFlow) {
	w.holder.armed.Add(-1)
	w.state, w.held, w.flow = observe.HoldHolding, f, *f.Flow()
	w.drawn, w.record = w.flow.Decision, w.holder.recordOf(w.flow)
	w.expireIn(w.timeout)
	w.change()
}

// view returns the present state, without the record.
func (w *hold) view() *observe.Hold {
	v := &observe.Hold{
		ID: w.id, Generation: w.generation, Query: w.query, State: w.state,
		Step: w.step, Retransmissions: w.retransmissions, Outcome: w.outcome,
	}
	if w.state != observe.HoldDone {
		v.Expires = new(w.expires)
	}
	return v
}

// show returns the present state. It locks holder.mu.
func (w *hold) show() *observe.Hold {
	w.holder.mu.Lock()
	v, record := w.view(), w.record
	w.holder.mu.Unlock()
	if record != nil {
		v.Record = new(*record())
	}
	return v
}

// check returns why no action is possible; nil: a flow is held.
func (w *hold) check() error {
	switch {
	case w.state == observe.HoldWaiting:
		return w.conflict("is waiting for a flow: it can only be cancelled")
	case w.state == observe.HoldDone && w.record == nil:
		return w.conflict("has ended (" + w.outcome + "): no flow matched")
	case w.state == observe.HoldDone:
		return w.conflict("has ended (" + w.outcome + "): its flow is released")
	case w.leaving:
		return w.conflict("has ended: its flow is being released")
	}
	return nil
}

func (w *hold) conflict(why string) error {
	return &observe.Error{Status: http.StatusConflict, Message: "hold " + w.id + " " + why}
}

// recordOf makes the record of a held flow, with all steps, at the first request: a worker must not
// wait for a long walk.
func (h *Holder) recordOf(f flow.Flow) func() *flow.Record {
	return sync.OnceValue(func() *flow.Record {
		r := flow.New(f.Table, &f.Packet, &f.Decision)
		r.Time, r.Queue, r.TableAge = &f.Time, &f.Queue, f.TableAge.Seconds()
		r.AddNames(h.config.Names)
		r.Steps = kubechains.Walk(f.Table, &f.Packet, &f.Decision)
		return r
	})
}
