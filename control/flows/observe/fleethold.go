package observe

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
)

// rememberedHolds is how many holds that are done are remembered.
const rememberedHolds = 100

var errNoHolds = errors.New("flows cannot be held there")

// fleetHolds is the [Holder] of a fleet. A hold of it is one on each of some nodes, until
// one of them gets a flow: that one counts, and the others are cancelled.
type fleetHolds struct {
	fleet    *Fleet
	watching context.Context // until stop
	stop     context.CancelFunc
	watchers sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed when a hold changes
	holds   []*fleetHold  // the oldest first
}

// fleetHold is one hold. All but parts is guarded by mu.
type fleetHold struct {
	parts []*part
	hold  Hold  // as it is shown
	won   *part // the one that got a flow; nil: none did yet
}

// part is a fleet's hold at one node.
type part struct {
	Member
	holder Holder
	id     string
	// generation is that of what is known of it; guarded by mu, as done is.
	generation uint64
	done       bool
}

// Hold asks all of the nodes, or those that are named. All of these have to take it; of
// all, those that can be asked and hold flows.
func (h *fleetHolds) Hold(ctx context.Context, q HoldQuery) (*Hold, error) {
	filter, each, err := q.Parse()
	if err != nil {
		return nil, err
	}
	members, err := h.fleet.named(filter.Nodes)
	if e, ok := err.(*Error); ok {
		e.Field = "flow." + e.Field
		return nil, e
	}
	q.Flow.Source = h.fleet.addressList(q.Flow.Source)
	type armed struct {
		*part
		hold *Hold
	}
	replies := queryAll(members, func(m Member) (armed, error) {
		holder := m.Observer.Holder()
		if holder == nil {
			return armed{}, errNoHolds
		}
		hold, err := holder.Hold(ctx, q)
		var e *Error
		switch {
		case errors.As(err, &e) && e.Status == http.StatusNotFound: // a remote node that has no Holder
			return armed{}, errNoHolds
		case err != nil:
			return armed{}, err
		}
		return armed{&part{Member: m, holder: holder, id: hold.ID}, hold}, nil
	})
	good, err := answered(h.fleet, replies)
	if err == nil && len(filter.Nodes) > 0 && len(good) < len(members) {
		i := slices.IndexFunc(replies, func(r reply[armed]) bool { return r.err != nil })
		err = fmt.Errorf("node %s: %w", replies[i].Name, replies[i].err)
	}
	if errors.Is(err, errNoHolds) && len(good) == 0 {
		err = &Error{Status: http.StatusNotFound, Message: err.Error()}
	}
	if err != nil {
		for _, r := range replies {
			if r.err == nil {
				_ = r.answer.holder.Cancel(context.WithoutCancel(ctx), r.answer.id) // or it ends by itself
			}
		}
		return nil, err
	}
	f := &fleetHold{hold: *good[0].answer.hold}
	f.hold.ID, f.hold.Query, f.hold.Generation = strings.ToLower(rand.Text()[:12]), q, 1
	f.hold.State, f.hold.Record = HoldWaiting, nil // it may have got one meanwhile, as the watchers will see
	for _, r := range good {
		f.parts = append(f.parts, r.answer.part)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget()
	h.holds = append(h.holds, f)
	for _, p := range f.parts {
		h.watchers.Go(func() { h.watch(f, p, 2*each+lastWord) })
	}
	shown := f.hold
	return &shown, nil
}

// forget makes room for one more.
func (h *fleetHolds) forget() {
	done := 0
	for _, f := range h.holds {
		if f.hold.State == HoldDone {
			done++
		}
	}
	h.holds = slices.DeleteFunc(h.holds, func(f *fleetHold) bool {
		if f.hold.State != HoldDone {
			return false
		}
		done--
		return done >= rememberedHolds-1 // so many are left, and this one is older
	})
}

// watch follows what becomes of the part until it is done, which is no longer than the time.
func (h *fleetHolds) watch(f *fleetHold, p *part, longest time.Duration) {
	ctx, cancel := context.WithTimeout(h.watching, longest)
	defer cancel()
	last := new(Hold)
	for {
		got, err := p.holder.Get(ctx, p.id, last.Generation)
		var gone *Error
		switch {
		case h.watching.Err() != nil:
			return
		case errors.As(err, &gone) || ctx.Err() != nil && (err != nil || got.State != HoldDone):
			h.fleet.Log.Warn("a hold is lost: its flow goes on as decided", "node", p.Name, "error", err)
			lost := *last
			lost.State, lost.Outcome, lost.Expires, lost.Generation = HoldDone, "expired", nil, math.MaxUint64
			got = &lost
		case err != nil:
			h.fleet.Log.Warn("a hold cannot be asked for; trying again", "node", p.Name, "in", h.fleet.retry, "error", err)
			select {
			case <-time.After(h.fleet.retry):
			case <-ctx.Done():
			}
			continue
		}
		last = got
		if lost := h.note(f, p, got); len(lost) > 0 {
			h.watchers.Go(func() { _ = h.cancelParts(h.watching, f, lost) }) // what fails is logged
		}
		if got.State == HoldDone {
			return
		}
	}
}

// note takes in what a part is, and gives the parts that are to be cancelled for it.
func (h *fleetHolds) note(f *fleetHold, p *part, got *Hold) (cancel []*part) {
	shown := *got
	if shown.Record != nil {
		shown.Record = h.fleet.decorate(p.Name, shown.Record)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if got.Generation <= p.generation { // somebody was faster
		return nil
	}
	p.generation, p.done = got.Generation, got.State == HoldDone
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

// cancelTimeout is how long nodes may take to cancel a hold.
const cancelTimeout = 5 * time.Second

// cancelParts cancels at the nodes, all at a time. What is gone there needs none.
func (h *fleetHolds) cancelParts(ctx context.Context, f *fleetHold, parts []*part) error {
	ctx, cancel := context.WithTimeout(ctx, cancelTimeout)
	defer cancel()
	errs := make([]error, len(parts))
	var asking sync.WaitGroup
	for i, p := range parts {
		asking.Go(func() {
			err := p.holder.Cancel(ctx, p.id)
			var e *Error
			if err != nil && !(errors.As(err, &e) && e.Status == http.StatusNotFound) {
				h.fleet.Log.Warn("a hold could not be cancelled: it ends by itself", "node", p.Name, "error", err)
				errs[i] = fmt.Errorf("node %s: %w", p.Name, err)
				return
			}
			if got, err := p.holder.Get(ctx, p.id, 0); err == nil {
				h.note(f, p, got)
			}
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}

// find is called with mu held.
func (h *fleetHolds) find(id string) (*fleetHold, error) {
	for _, f := range h.holds {
		if f.hold.ID == id {
			return f, nil
		}
	}
	return nil, &Error{Status: http.StatusNotFound, Message: fmt.Sprintf("there is no hold %q: it may be over for long", id)}
}

// Holds gives those of the fleet.
func (h *fleetHolds) Holds(context.Context) ([]Hold, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := []Hold{}
	for _, f := range h.holds {
		list = append(list, f.hold)
	}
	return list, nil
}

// Get waits for the hold's next generation.
func (h *fleetHolds) Get(ctx context.Context, id string, after uint64) (*Hold, error) {
	for {
		h.mu.Lock()
		f, err := h.find(id)
		var shown Hold
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

// Act does it at the node that has the flow.
func (h *fleetHolds) Act(ctx context.Context, id string, a Act) (*Hold, error) {
	h.mu.Lock()
	f, err := h.find(id)
	var won *part
	if err == nil {
		if won = f.won; won == nil {
			err = &Error{Status: http.StatusConflict, Message: fmt.Sprintf("hold %s has no flow: it is %s", id, f.hold.State)}
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

// Cancel ends it at all nodes.
func (h *fleetHolds) Cancel(ctx context.Context, id string) error {
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

// idOf gives the fleet's id of a node's hold; the node's own if the fleet has none.
func (h *fleetHolds) idOf(node, id string) string {
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
