package session

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

// held is the packet that a step holds until its question is answered.
type held struct {
	holder observe.Holder
	cancel context.CancelFunc
	ended  chan struct{} // the goroutine of Session.hold has ended
	facts  []string      // what the student sees; guarded by Session.mu

	mu     sync.Mutex
	hold   *observe.Hold // holding; nil: no packet yet
	caught chan struct{} // closed when there is one
	// revealed: the packet has been released with an answer. The next one is held by another held.
	revealed bool
}

// hold waits for the packet of a step, again and again until the question is answered. The caller holds mu.
func (s *Session) hold(w *work, step *learn.Step) *held {
	ctx, cancel := context.WithCancel(w.ctx)
	h := &held{holder: w.lab.Observer.Holder(), cancel: cancel, ended: make(chan struct{}), caught: make(chan struct{})}
	show := func(facts []string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.held == h {
			h.facts = facts
			s.publish()
		}
	}
	// Whoever reads the step may send the packet at once.
	hold, err := h.request(ctx, step)
	go func() {
		defer close(h.ended)
		for {
			if err == nil { // it ends the hold, also if the step has ended already
				err = h.wait(ctx, hold, step, show)
			}
			if err != nil && ctx.Err() == nil {
				show([]string{"cannot hold a packet: " + err.Error()})
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
			if ctx.Err() != nil || h.isRevealed() {
				return
			}
			hold, err = h.request(ctx, step)
		}
	}()
	return h
}

// request also ends if the step does: a hold without its ID would keep the packets of later steps.
func (h *held) request(ctx context.Context, step *learn.Step) (*observe.Hold, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), catchTimeout)
	defer cancel()
	return h.holder.Hold(ctx, observe.HoldQuery{Flow: step.Hold.Flow, Seconds: observe.MaxHoldSeconds})
}

// wait holds one packet, until it is released.
func (h *held) wait(ctx context.Context, hold *observe.Hold, step *learn.Step, show func([]string)) (err error) {
	defer h.release(ctx, hold.ID)
	for hold.State != observe.HoldDone && ctx.Err() == nil {
		if hold.State == observe.HoldHolding && hold.Record != nil && h.take(hold) {
			show(fieldLines(hold.Record, step.Hold.Show))
		}
		if hold, err = h.holder.Get(ctx, hold.ID, hold.Generation); err != nil {
			return err
		}
	}
	h.mu.Lock()
	if h.hold != nil { // its time is over
		h.hold, h.caught = nil, make(chan struct{})
	}
	h.mu.Unlock()
	show(nil)
	return nil
}

// release ends a hold, where it has not ended.
func (h *held) release(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), catchTimeout)
	defer cancel()
	_ = h.holder.Cancel(ctx, id)
}

// take notes the held packet; false: it has been noted.
func (h *held) take(hold *observe.Hold) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := h.hold == nil
	h.hold = hold
	if first {
		close(h.caught)
	}
	return first
}

// fieldLines are fields of a record, in a line for each.
func fieldLines(r *flow.Record, paths []string) []string {
	text, err := json.Marshal(r)
	if err != nil {
		return []string{err.Error()}
	}
	facts := []string{"held: " + r.Protocol + " " + r.Source + " -> " + r.Destination}
	for _, path := range paths {
		value, err := fieldOf(text, path)
		if err != nil {
			value = err.Error()
		}
		facts = append(facts, path+": "+value)
	}
	return facts
}

// catchTimeout is how long a request may take to reach the queue.
const catchTimeout = 5 * time.Second

// field is a field of the record of the held packet.
func (h *held) field(ctx context.Context, path string) (string, error) {
	h.mu.Lock()
	caught := h.caught
	h.mu.Unlock()
	select {
	case <-caught:
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(catchTimeout):
		return "", invalid("no packet is held yet: send the request first, for example in the background with &")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hold == nil {
		return "", invalid("the packet was held for %d s and has been released: send another request", observe.MaxHoldSeconds)
	}
	text, err := json.Marshal(h.hold.Record)
	if err != nil {
		return "", err
	}
	return fieldOf(text, path)
}

// reveal releases the packet, and returns what was decided.
func (h *held) reveal(ctx context.Context) string {
	h.mu.Lock()
	hold := h.hold
	h.revealed = hold != nil
	h.mu.Unlock()
	if hold == nil {
		return ""
	}
	style := text.Style{}
	text := style.Line(hold.Record) + "\n" + style.Steps(hold.Record.Steps, "  ", text.WalkWords)
	if _, err := h.holder.Act(ctx, hold.ID, observe.Act{Action: observe.ActRelease}); err != nil {
		return text + fmt.Sprintf("cannot release the packet: %v\n", err)
	}
	return text
}

func (h *held) isRevealed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revealed
}

// stop ends the hold, and releases its packet.
func (h *held) stop() { h.cancel() }
