package hold

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// Armed implements [engine.Gate].
func (h *Holder) Armed() bool { return h.armed.Load() > 0 }

// Take implements [engine.Gate]: the first hold that matches takes the flow.
func (h *Holder) Take(f engine.HeldFlow) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.holds {
		if w.state == observe.HoldWaiting && w.matches(f.Flow()) {
			w.take(f)
			return true
		}
	}
	return false
}

// Repeated implements [engine.Gate].
func (h *Holder) Repeated(f engine.HeldFlow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.holds {
		if w.held == f {
			w.retransmissions++
			w.change()
		}
	}
}

// Close implements [engine.Gate]: it cancels all holds. New ones are refused from then on.
func (h *Holder) Close() {
	h.mu.Lock()
	h.closed = true
	holds := slices.Clone(h.holds)
	h.mu.Unlock()
	for _, w := range holds {
		w.giveUpSafely(flow.HoldCancelled, observe.HoldWaiting, observe.HoldHolding)
	}
}
