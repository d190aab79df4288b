// Package hold holds new flows of one node at the queue, so that somebody can lead them
// through the chains step by step: it is the [observe.Holder] behind a daemon's flow API,
// and the [datapath.Gate] of its engine.
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

	"github.com/nfqproxy/nfqproxy/control/flows/journal"
	"github.com/nfqproxy/nfqproxy/control/flows/match"
	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/datapath"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// How many holds there may be.
const (
	MaxOpen    = 8  // that wait for a flow or hold one; another one is refused
	Remembered = 64 // in all: those that ended longest ago are forgotten
)

// Config says whose flows are held.
type Config struct {
	Node  string        // the node's name
	Names journal.Names // whose addresses are; it may be nil
	Log   *slog.Logger  // nil: none
}

// Holder holds flows. It is safe for concurrent use.
type Holder struct {
	config Config
	prefix string       // of IDs: different in each run of the program
	armed  atomic.Int32 // how many holds wait for a flow

	mu     sync.Mutex
	holds  []*hold // in the order in which they were asked for
	made   uint64
	closed bool
}

var (
	_ observe.Holder = (*Holder)(nil)
	_ datapath.Gate  = (*Holder)(nil)
)

// New makes a holder. It holds nothing until the engine has it as its gate.
func New(c Config) *Holder {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Holder{config: c, prefix: "hold-" + strconv.FormatUint(rand.Uint64N(1<<30)|1<<30, 32)}
}

// Hold begins to wait for a flow.
func (h *Holder) Hold(_ context.Context, q observe.HoldQuery) (*observe.Hold, error) {
	f, patience, err := q.Parse()
	if err != nil {
		return nil, err
	}
	node := match.Node{Name: h.config.Node, Names: h.config.Names}
	if !node.Passes(f) {
		return nil, &observe.Error{Status: http.StatusNotFound, Field: "flow.node", Message: "node " + q.Flow.Node + " is not observed here, but " + h.config.Node + " is"}
	}
	q.Seconds = int(patience / time.Second)
	matches := node.Flows(f)

	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.checkLimits(); err != nil {
		return nil, err
	}
	h.made++
	w := &hold{
		holder: h, id: fmt.Sprintf("%s-%d", h.prefix, h.made), query: q, patience: patience,
		matches: func(f *flow.Flow) bool { return matches(f, "", "") },
		state:   observe.HoldWaiting, changed: make(chan struct{}),
	}
	w.change()
	w.expireIn(patience)
	h.holds = append(h.holds, w)
	h.armed.Add(1)
	return w.view(), nil
}

// room makes room for one more hold, if that can be. h.mu is held.
func (h *Holder) checkLimits() error {
	if h.closed {
		return &observe.Error{Status: http.StatusServiceUnavailable, Message: "the datapath of node " + h.config.Node + " has stopped: no flow will come"}
	}
	var open []string
	for _, w := range h.holds {
		if w.state != observe.HoldDone {
			open = append(open, w.id)
		}
	}
	if len(open) >= MaxOpen {
		return &observe.Error{Status: http.StatusConflict, Message: fmt.Sprintf("%d flows are waited for or held already, and there may be no more: cancel one of %s, or wait for it to end", len(open), strings.Join(open, ", "))}
	}
	if len(h.holds) >= Remembered { // and fewer are open: one is done
		i := slices.IndexFunc(h.holds, func(w *hold) bool { return w.state == observe.HoldDone })
		h.holds = slices.Delete(h.holds, i, i+1)
	}
	return nil
}

// Holds lists the holds that are remembered, in the order in which they were asked for.
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

// Get waits for the generation after the one given. If the context ends first, it gives
// the hold as it is.
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

// Act does something to a held flow.
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

// Cancel ends a hold. One that is done already is left as it is.
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
	return nil, &observe.Error{Status: http.StatusNotFound, Field: "id", Message: fmt.Sprintf("no hold %s is known: it was never asked for here, or is one of those that ended before the last %d", id, Remembered)}
}
