// Package hold holds new flows of one node at the queue, to step them through the chains: it is the
// [observe.Holder] behind a daemon's flow API, and the [engine.Gate] of its engine.
package hold

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// The limits of holds.
const (
	MaxOpen    = 8  // that wait for a flow or hold one; further ones are refused
	Remembered = 64 // in all: the oldest ended ones are removed
)

// Config is the configuration of a Holder.
type Config struct {
	Node  string       // the node's name
	Names flow.Names   // owners of addresses
	Log   *slog.Logger // nil: none
}

// Holder holds flows. It is safe for concurrent use.
type Holder struct {
	config Config
	prefix string       // of IDs: different in each run of the program
	armed  atomic.Int32 // number of holds that wait for a flow

	mu     sync.Mutex
	holds  []*hold // in the order of their creation
	made   uint64
	closed bool
}

var (
	_ observe.Holder = (*Holder)(nil)
	_ engine.Gate    = (*Holder)(nil)
)

// New returns a holder. It holds flows only as the gate of an engine.
func New(c Config) *Holder {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Holder{config: c, prefix: "hold-" + strconv.FormatUint(rand.Uint64N(1<<30)|1<<30, 32)}
}

// Hold starts to wait for a flow.
func (h *Holder) Hold(_ context.Context, q observe.HoldQuery) (*observe.Hold, error) {
	f, timeout, err := q.Parse()
	if err != nil {
		return nil, err
	}
	if !f.MatchNode(h.config.Node) {
		return nil, &observe.Error{Status: http.StatusNotFound, Field: "flow.node", Message: "node " + q.Flow.Node + " is not observed by this server: it observes " + h.config.Node}
	}
	q.Seconds = int(timeout / time.Second)

	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.checkLimits(); err != nil {
		return nil, err
	}
	h.made++
	w := &hold{
		holder: h, id: fmt.Sprintf("%s-%d", h.prefix, h.made), query: q, timeout: timeout,
		matches: func(fl *flow.Flow) bool { return f.Match(fl, 0, 0, h.config.Names) },
		state:   observe.HoldWaiting, changed: make(chan struct{}),
	}
	w.change()
	w.expireIn(timeout)
	h.holds = append(h.holds, w)
	h.armed.Add(1)
	return w.view(), nil
}

// checkLimits removes an ended hold if needed for one more. h.mu is held.
func (h *Holder) checkLimits() error {
	if h.closed {
		return &observe.Error{Status: http.StatusServiceUnavailable, Message: "the datapath of node " + h.config.Node + " has stopped"}
	}
	var open []string
	for _, w := range h.holds {
		if w.state != observe.HoldDone {
			open = append(open, w.id)
		}
	}
	if len(open) >= MaxOpen {
		return &observe.Error{Status: http.StatusConflict, Message: fmt.Sprintf("limit of %d active holds reached: cancel one of %s, or wait for its end", len(open), strings.Join(open, ", "))}
	}
	if len(h.holds) >= Remembered { // and fewer are open: one is done
		i := slices.IndexFunc(h.holds, func(w *hold) bool { return w.state == observe.HoldDone })
		h.holds = slices.Delete(h.holds, i, i+1)
	}
	return nil
}

// Holds lists the holds in the order of their creation.
func (h *Holder) Holds(context.Context) ([]observe.Hold, error) {
	h.mu.Lock()
	holds := slices.Clone(h.holds)
	h.mu.Unlock()
	list := make([]observe.Hold, len(holds))
	for i, w := range holds {
		list[i] = *w.show()
	}
	return list, nil
}

// Get waits for a generation after the given one. If the context ends first, it returns the present
// state.
func (h *Holder) Get(ctx context.Context, id string, after uint64) (*observe.Hold, error) {
	w, err := h.find(id)
	if err != nil {
		return nil, err
	}
	for after > 0 && ctx.Err() == nil {
		h.mu.Lock()
		generation, changed := w.generation, w.changed
		h.mu.Unlock()
		if generation > after {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return w.show(), nil
}

// Act acts on a held flow.
func (h *Holder) Act(_ context.Context, id string, a observe.Act) (*observe.Hold, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	w, err := h.find(id)
	if err != nil {
		return nil, err
	}
	if err := w.act(a); err != nil {
		return nil, err
	}
	return w.show(), nil
}

// Cancel ends a hold. It has no effect on one that is done.
func (h *Holder) Cancel(_ context.Context, id string) error {
	w, err := h.find(id)
	if err != nil {
		return err
	}
	w.giveUp(flow.HoldCancelled, observe.HoldWaiting, observe.HoldHolding)
	return nil
}

func (h *Holder) find(id string) (*hold, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.holds {
		if w.id == id {
			return w, nil
		}
	}
	return nil, &observe.Error{Status: http.StatusNotFound, Field: "id", Message: fmt.Sprintf("hold %s not found: only the last %d holds are kept", id, Remembered)}
}

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
