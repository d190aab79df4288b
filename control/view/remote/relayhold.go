package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// rememberedHolds is the maximum number of holds that are done and kept.
const rememberedHolds = 100

// noHolds is the error of a node without a Holder, which says why.
type noHolds string

func (e noHolds) Error() string { return string(e) }

func isNoHolds(err error) bool {
	_, ok := errors.AsType[noHolds](err)
	return ok
}

// relayHolds is the [Holder] of a relay. It arms a hold on several nodes until one of them holds a
// flow; the others are then cancelled.
type relayHolds struct {
	relay    *Relay
	watching context.Context // until stop
	stop     context.CancelFunc
	watchers sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed when a hold changes
	holds   []*relayHold  // the oldest first
}

// relayHold is one hold. All but parts is guarded by mu.
type relayHold struct {
	parts []*part
	hold  observe.Hold // as it is shown
	won   *part        // the one that holds a flow; nil: none yet
}

// part is a relay's hold at one node.
type part struct {
	Member
	holder observe.Holder
	id     string
	// generation is the last one received; guarded by mu, as done is.
	generation uint64
	done       bool
}

// Hold arms the hold on the named nodes, which must all accept it, or else on all nodes that are
// reachable and support holds.
func (h *relayHolds) Hold(ctx context.Context, q observe.HoldQuery) (*observe.Hold, error) {
	filter, each, err := q.Parse()
	if err != nil {
		return nil, err
	}
	members, _ := h.relay.all()
	members, err = named(members, filter.Nodes)
	if e, ok := errors.AsType[*observe.Error](err); ok {
		e.Field = "flow." + e.Field
		return nil, e
	}
	q.Flow.Source = h.relay.addressList(q.Flow.Source)
	type armed struct {
		*part
		hold *observe.Hold
	}
	replies := queryAll(members, func(m Member) (armed, error) {
		holder := m.Observer.Holder()
		if holder == nil {
			return armed{}, noHolds("holding flows is not available: the daemon requires --flow-api-holds")
		}
		hold, err := holder.Hold(ctx, q)
		if e, ok := errors.AsType[*observe.Error](err); ok && e.Status == http.StatusNotFound { // a remote node that has no Holder
			return armed{}, noHolds(e.Message)
		}
		if err != nil {
			return armed{}, err
		}
		return armed{&part{Member: m, holder: holder, id: hold.ID}, hold}, nil
	})
	good, err := answered(h.relay, replies)
	if err == nil && len(filter.Nodes) > 0 && len(good) < len(members) {
		i := slices.IndexFunc(replies, func(r reply[armed]) bool { return r.err != nil })
		err = fmt.Errorf("node %s: %w", replies[i].Name, replies[i].err)
	}
	if len(good) == 0 && len(replies) > 0 && !slices.ContainsFunc(replies, func(r reply[armed]) bool { return !isNoHolds(r.err) }) {
		err = &observe.Error{Status: http.StatusNotFound, Message: replies[0].err.Error()}
	}
	if err != nil {
		for _, r := range replies {
			if r.err == nil {
				_ = r.answer.holder.Cancel(context.WithoutCancel(ctx), r.answer.id) // else it ends by its timeout
			}
		}
		return nil, err
	}
	f := &relayHold{hold: *good[0].answer.hold}
	f.hold.ID, f.hold.Query, f.hold.Generation = strings.ToLower(rand.Text()[:12]), q, 1
	f.hold.State, f.hold.Record = observe.HoldWaiting, nil // it may hold one by now: the watchers update it
	for _, r := range good {
		f.parts = append(f.parts, r.answer.part)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget()
	h.holds = append(h.holds, f)
	for _, p := range f.parts {
		h.watchers.Go(func() { h.watch(f, p, 2*each+finalStateTimeout) })
	}
	shown := f.hold
	return &shown, nil
}

// forget removes a finished hold to make space for one more.
func (h *relayHolds) forget() {
	done := 0
	for _, f := range h.holds {
		if f.hold.State == observe.HoldDone {
			done++
		}
	}
	h.holds = slices.DeleteFunc(h.holds, func(f *relayHold) bool {
		if f.hold.State != observe.HoldDone {
			return false
		}
		done--
		return done >= rememberedHolds-1 // so many are left, and this one is older
	})
}

// watch follows the part until it is done, at most until its timeout.
func (h *relayHolds) watch(f *relayHold, p *part, longest time.Duration) {
	ctx, cancel := context.WithTimeout(h.watching, longest)
	defer cancel()
	last := new(observe.Hold)
	for {
		got, err := p.holder.Get(ctx, p.id, last.Generation)
		var gone *observe.Error
		switch {
		case h.watching.Err() != nil:
			return
		case errors.As(err, &gone) || ctx.Err() != nil && (err != nil || got.State != observe.HoldDone):
			h.relay.Log.Warn("hold lost: its flow is released as decided", "node", p.Name, "error", err)
			lost := *last
			lost.State, lost.Outcome, lost.Expires, lost.Generation = observe.HoldDone, "expired", nil, math.MaxUint64
			got = &lost
		case err != nil:
			h.relay.Log.Warn("cannot read the state of a hold; retrying", "node", p.Name, "in", h.relay.retry, "error", err)
			select {
			case <-time.After(h.relay.retry):
			case <-ctx.Done():
			}
			continue
		}
		last = got
		if lost := h.note(f, p, got); len(lost) > 0 {
			h.watchers.Go(func() { _ = h.cancelParts(h.watching, f, lost) }) // what fails is logged
		}
		if got.State == observe.HoldDone {
			return
		}
	}
}

// note records the state of a part, and returns the parts to cancel because of it.
func (h *relayHolds) note(f *relayHold, p *part, got *observe.Hold) (cancel []*part) {
	shown := *got
	if shown.Record != nil {
		shown.Record = h.relay.fillIn(p.Name, shown.Record)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if got.Generation <= p.generation { // a newer state is already known
		return nil
	}
	p.generation, p.done = got.Generation, got.State == observe.HoldDone
	all := !slices.ContainsFunc(f.parts, func(p *part) bool { return !p.done })
	switch {
	case f.won == nil && got.Record != nil:
		f.won = p
		for _, other := range f.parts {
			if other != p && !other.done {
				cancel = append(cancel, other)
			}
		}
	case f.won == nil && all:
	case f.won == p:
	default:
		return nil
	}
	shown.ID, shown.Query, shown.Generation = f.hold.ID, f.hold.Query, f.hold.Generation+1
	f.hold = shown
	close(h.changed)
	h.changed = make(chan struct{})
	return cancel
}

// cancelTimeout is the timeout for nodes to cancel a hold.
const cancelTimeout = 5 * time.Second

// cancelParts cancels the parts concurrently. Parts that no longer exist need none.
func (h *relayHolds) cancelParts(ctx context.Context, f *relayHold, parts []*part) error {
	ctx, cancel := context.WithTimeout(ctx, cancelTimeout)
	defer cancel()
	errs := make([]error, len(parts))
	var queries sync.WaitGroup
	for i, p := range parts {
		queries.Go(func() {
			err := p.holder.Cancel(ctx, p.id)
			var e *observe.Error
			if err != nil && !(errors.As(err, &e) && e.Status == http.StatusNotFound) {
				h.relay.Log.Warn("cannot cancel a hold: it ends by its timeout", "node", p.Name, "error", err)
				errs[i] = fmt.Errorf("node %s: %w", p.Name, err)
				return
			}
			if got, err := p.holder.Get(ctx, p.id, 0); err == nil {
				h.note(f, p, got)
			}
		})
	}
	queries.Wait()
	return errors.Join(errs...)
}

// find is called with mu held.
func (h *relayHolds) find(id string) (*relayHold, error) {
	for _, f := range h.holds {
		if f.hold.ID == id {
			return f, nil
		}
	}
	return nil, &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("hold %q not found: it may have ended long ago", id)}
}

// Holds returns the holds of the relay.
func (h *relayHolds) Holds(context.Context) ([]observe.Hold, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := []observe.Hold{}
	for _, f := range h.holds {
		list = append(list, f.hold)
	}
	return list, nil
}

// Get waits for the hold's next generation.
func (h *relayHolds) Get(ctx context.Context, id string, after uint64) (*observe.Hold, error) {
	for {
		h.mu.Lock()
		f, err := h.find(id)
		var shown observe.Hold
		if err == nil {
			shown = f.hold
		}
		changed := h.changed
		h.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if after == 0 || shown.Generation > after || ctx.Err() != nil {
			return &shown, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Act acts on the node that holds the flow.
func (h *relayHolds) Act(ctx context.Context, id string, a observe.Act) (*observe.Hold, error) {
	h.mu.Lock()
	f, err := h.find(id)
	var won *part
	if err == nil {
		if won = f.won; won == nil {
			err = &observe.Error{Status: http.StatusConflict, Message: fmt.Sprintf("hold %s has no flow: it is %s", id, f.hold.State)}
		}
	}
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	got, err := won.holder.Act(ctx, won.id, a)
	if err != nil {
		return nil, err
	}
	h.note(f, won, got)
	return h.Get(ctx, id, 0)
}

// Cancel ends the hold on all nodes.
func (h *relayHolds) Cancel(ctx context.Context, id string) error {
	h.mu.Lock()
	f, err := h.find(id)
	var open []*part
	if err == nil {
		for _, p := range f.parts {
			if !p.done {
				open = append(open, p)
			}
		}
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	return h.cancelParts(ctx, f, open)
}

// idOf returns the relay's ID of a node's hold, or the node's own ID if the relay has none.
func (h *relayHolds) idOf(node, id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.holds {
		for _, p := range f.parts {
			if p.Name == node && p.id == id {
				return f.hold.ID
			}
		}
	}
	return id
}
