package hold

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Armed implements [datapath.Gate].
func (h *Holder) Armed() bool { return h.armed.Load() > 0 }

// Take implements [datapath.Gate]: the first hold that matches takes the flow.
func (h *Holder) Take(f datapath.HeldFlow) bool {
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

// Repeated implements [datapath.Gate].
func (h *Holder) Repeated(f datapath.HeldFlow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.holds {
		if w.held == f {
			w.retransmissions++
			w.change()
		}
	}
}

// Close implements [datapath.Gate]: it cancels all holds. New ones are refused from then on.
func (h *Holder) Close() {
	h.mu.Lock()
	h.closed = true
	holds := slices.Clone(h.holds)
	h.mu.Unlock()
	for _, w := range holds {
		w.giveUpSafely(flow.HoldCancelled, observe.HoldWaiting, observe.HoldHolding)
	}
}
