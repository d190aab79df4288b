package hold

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Armed is [datapath.Gate]'s.
func (h *Holder) Armed() bool { return h.armed.Load() > 0 }

// Take is [datapath.Gate]'s: of the holds that wait for such a flow, the first gets it.
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

// Repeated is [datapath.Gate]'s.
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

// Close is [datapath.Gate]'s: it cancels all holds. There are none from then on.
func (h *Holder) Close() {
	h.mu.Lock()
	h.closed = true
	holds := slices.Clone(h.holds)
	h.mu.Unlock()
	for _, w := range holds {
		w.giveUpSafely(flow.HoldCancelled, observe.HoldWaiting, observe.HoldHolding)
	}
}
