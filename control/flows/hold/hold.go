package hold

import (
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// hold is one hold. What changes is guarded by holder.mu.
type hold struct {
	holder   *Holder
	id       string
	query    observe.HoldQuery
	patience time.Duration // of waiting, and of holding
	matches  func(*flow.Flow) bool
	acting   sync.Mutex // held while somebody acts on it; taken before holder.mu

	state      observe.HoldState
	generation uint64
	changed    chan struct{} // closed, and made anew, at each change
	expires    time.Time
	timer      *time.Timer

	// Valid iff it is holding: the flow, as it would go on, what was drawn for it, and
	// whether it is being let go.
	held    datapath.HeldFlow
	flow    flow.Flow
	drawn   decision.Decision
	leaving bool

	record          func() *flow.Record // nil: no flow came; not to be called with holder.mu held
	step            int
	retransmissions int
	outcome         string
}

// change begins a new generation. holder.mu is held, as with all that follow and do not
// take it.
func (w *hold) change() {
	w.generation++
	close(w.changed)
	w.changed = make(chan struct{})
}

// expireIn has it end by itself if it stays in its state.
func (w *hold) expireIn(d time.Duration) {
	if w.timer != nil {
		w.timer.Stop()
	}
	state := w.state
	w.expires = time.Now().Add(d)
	w.timer = time.AfterFunc(d, func() { w.giveUpSafely(flow.HoldExpired, state) })
}

// giveUpSafely is giveUp for goroutines in which a panic would end the proxy, as net/http's do
// not: a fault in what is shown of a flow must not.
func (w *hold) giveUpSafely(outcome string, in ...observe.HoldState) {
	defer func() {
		if p := recover(); p != nil {
			w.holder.config.Log.Error("the end of a hold panics", "hold", w.id, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	w.giveUp(outcome, in...)
}

// take holds a flow.
func (w *hold) take(f datapath.HeldFlow) {
	w.holder.armed.Add(-1)
	w.state, w.held, w.flow = observe.HoldHolding, f, *f.Flow()
	w.drawn, w.record = w.flow.Decision, w.holder.recordOf(w.flow)
	w.expireIn(w.patience)
	w.change()
}

// view gives it as it is, but for the record.
func (w *hold) view() *observe.Hold {
	v := &observe.Hold{
		ID: w.id, Generation: w.generation, Query: w.query, State: w.state,
		Step: w.step, Retransmissions: w.retransmissions, Outcome: w.outcome,
	}
	if w.state != observe.HoldDone {
		expires := w.expires
		v.Expires = &expires
	}
	return v
}

// show gives it as it is. It takes holder.mu.
func (w *hold) show() *observe.Hold {
	v, record := w.viewAndRecord()
	if record != nil {
		r := *record()
		v.Record = &r
	}
	return v
}

func (w *hold) viewAndRecord() (*observe.Hold, func() *flow.Record) {
	w.holder.mu.Lock()
	defer w.holder.mu.Unlock()
	return w.view(), w.record
}

// check says why nothing can be done to the flow; nil: it is held.
func (w *hold) check() error {
	switch {
	case w.state == observe.HoldWaiting:
		return w.conflict("waits for a flow: until one comes it can only be cancelled")
	case w.state == observe.HoldDone && w.record == nil:
		return w.conflict("is over (" + w.outcome + "): no flow came")
	case w.state == observe.HoldDone:
		return w.conflict("is over (" + w.outcome + "): its flow has gone")
	case w.leaving:
		return w.conflict("is over: its flow is being let go")
	}
	return nil
}

func (w *hold) conflict(why string) error {
	return &observe.Error{Status: http.StatusConflict, Message: "hold " + w.id + " " + why}
}
