// Package reconcile removes UDP flows from the kernel's connection tracking that
// contradict the service table, so that long-lived clients move on: the next datagram
// of a removed flow is queued and decided again.
//
// It is level-triggered: a pass compares all flows with one table, independent of the change. As
// with kube-proxy (release 1.36, pkg/proxy/conntrack) this is for UDP only: TCP and SCTP
// connections end by themselves, and are never changed.
//
// # Removing a flow
//
// A flow has up to two elements in the sets of flows that need no decision (package ruleset),
// those of its packets and of its replies, and a connection entry. The steps, and the packets that
// may arrive between them:
//
//  1. The elements are removed. From now on its datagrams are queued. The worker finds
//     the entry and keeps it: the datagram goes where those before it went, and the
//     kernel learns the elements again.
//  2. The entry is removed, only if it is still translated as it was when checked: one that
//     a worker has created again stays. Workers need not be stopped for this.
//  3. The elements are removed again, for those learnt since 1. Where they are those of
//     an entry made since 2, one more datagram is queued, and they are learnt again.
//
// The next datagram is queued and gets a new entry. One that a worker accepted at 2, or that came
// between 2 and 3 by elements learnt before, finds no entry; the rules for undecided packets drop
// it and forget the flow. So a flow loses at most the datagrams that are in the node at that
// moment: one, if they come one after the other. If the service has no endpoints the rules pass it
// untranslated, as without a daemon; that flow, being unreplied, is removed by the next pass that
// sees it.
//
// A worker may still create an entry by the previous table after a pass: so [Reconciler.Loop]
// makes a second pass after each change. And workers may decide by the next table during a pass: it is announced
// ([Reconciler.Announce]) before it comes into force, and flows that are right by it stay.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Connections is the connection tracking table; see [conntrack.Table].
type Connections interface {
	Dump(conntrack.Filter, func(*conntrack.State)) error
	Delete([]conntrack.State, []error)
	Close() error
}

// Seen are the sets of UDP flows that need no decision; see ruleset.Connection.
type Seen interface {
	Forget([]conntrack.Tuple) error
}

// Config is the configuration of a Reconciler. Connections and Seen must be set, and are for the
// Reconciler only.
type Config struct {
	Connections Connections
	Seen        Seen
	// Interval is the longest time between two passes of Loop; 0: 30 s, as kube-proxy's
	// syncPeriod.
	Interval time.Duration
	// Observe, if set, is called for each family's part of each pass, by the goroutine that runs
	// it: for kube-proxy's conntrack_reconciler metrics, whose label is the family. err is nil or
	// the error of this part of [Reconciler.Run].
	Observe func(f decision.Family, r Result, err error)
}

// Result is the result of one pass.
type Result struct {
	// Examined is how many UDP flows there were.
	Examined int
	// Deleted is how many of them were removed, by reason.
	Deleted map[Reason]int
	// Failed is how many could not be removed.
	Failed int
	// Took is how long it took.
	Took time.Duration
}

// Total is how many flows were removed.
func (r *Result) Total() int {
	n := 0
	for _, d := range r.Deleted {
		n += d
	}
	return n
}

func (r *Result) add(part *Result) {
	r.Examined += part.Examined
	r.Failed += part.Failed
	r.Took += part.Took
	for why, n := range part.Deleted {
		r.Deleted[why] += n
	}
}

// Reconciler removes flows that contradict the table. Run and Loop must not run at the same time;
// SetTable and Announce may be called at any time.
type Reconciler struct {
	cfg     Config
	table   atomic.Pointer[decision.Table] // the one Loop follows
	next    atomic.Pointer[decision.Table] // the one that was announced last
	changed chan struct{}                  // the table was replaced; holds one token

	// last is the view of the previous pass; gone are frontends that are not in it, until a pass
	// has checked all flows for them.
	last *view
	gone frontends
}

// Close closes the Connections. It is to be called when Loop has ended.
func (r *Reconciler) Close() error { return r.cfg.Connections.Close() }

type staleFlow struct {
	state conntrack.State
	why   Reason
}

// New makes a Reconciler. It does nothing yet.
func New(cfg Config) *Reconciler {
	if cfg.Interval == 0 {
		cfg.Interval = 30 * time.Second
	}
	if cfg.Observe == nil {
		cfg.Observe = func(decision.Family, Result, error) {}
	}
	return &Reconciler{cfg: cfg, changed: make(chan struct{}, 1), gone: make(frontends)}
}

// Run makes one pass by a table, which must be in force already: it may miss flows that workers
// decide by an older one meanwhile. An error names what could not be read or removed; everything
// else is done, and a later pass can repeat the rest.
func (r *Reconciler) Run(t *decision.Table) (Result, error) {
	r.look(t)
	result := Result{Deleted: make(map[Reason]int)}
	var errs error
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		start := time.Now()
		part, err := r.reconcile(f)
		part.Took = time.Since(start)
		if err != nil {
			err = fmt.Errorf("reconcile %s flows: %w", f, err)
		}
		r.cfg.Observe(f, part, err)
		result.add(&part)
		errs = errors.Join(errs, err)
	}
	if errs == nil {
		// The flows to them are gone, and no new ones are created: workers' entries carry our
		// mark.
		r.gone = make(frontends)
	}
	return result, errs
}

// look takes the table for the next pass.
func (r *Reconciler) look(t *decision.Table) {
	if r.last != nil && r.last.sameAs(t) {
		r.last.table = t // and free the older one
		return
	}
	next := newView(t)
	if r.last != nil {
		r.gone.addRemoved(r.last.frontends, next.frontends)
	}
	r.last = next
}

// maxDumps is how often an interrupted dump is tried (kube-proxy's MaxAttemptsEINTR).
const maxDumps = 5

// reconcile makes the part of a pass that is about one family.
func (r *Reconciler) reconcile(f decision.Family) (Result, error) {
	result := Result{Deleted: make(map[Reason]int)}
	filter := conntrack.Filter{Family: conntrack.IPv4, Protocol: uint8(decision.UDP)}
	if f == decision.IPv6 {
		filter.Family = conntrack.IPv6
	}
	var stale []staleFlow
	var err error
	for range maxDumps {
		result.Examined, stale = 0, stale[:0]
		err = r.cfg.Connections.Dump(filter, func(s *conntrack.State) {
			result.Examined++
			if why := r.last.check(s, r.gone); why != Stays {
				stale = append(stale, staleFlow{*s, why})
			}
		})
		if !errors.Is(err, conntrack.ErrInterrupted) {
			break
		}
	}
	// Flows that are right by the table that was announced stay: workers may decide by it already.
	if t := r.next.Load(); t != nil && len(stale) > 0 && !r.last.sameAs(t) {
		next := newView(t)
		stale = slices.DeleteFunc(stale, func(s staleFlow) bool { return next.check(&s.state, r.gone) == Stays })
	}
	// The entries of an incomplete dump are valid.
	for some := range slices.Chunk(stale, batchSize) {
		err = errors.Join(err, r.remove(some, &result))
	}
	return result, err
}

// batchSize is how many flows are removed at once: few enough for the steps to follow
// each other within a millisecond.
const batchSize = 64

// remove removes flows, in the three steps the package comment explains.
func (r *Reconciler) remove(stale []staleFlow, result *Result) error {
	var states []conntrack.State
	var tuples []conntrack.Tuple
	for _, s := range stale {
		states = append(states, s.state)
		tuples = append(tuples, s.state.Original, s.state.Reply)
	}
	if err := r.cfg.Seen.Forget(tuples); err != nil {
		result.Failed += len(stale)
		return err // without this, more than one datagram of each would be lost
	}
	errs := make([]error, len(stale))
	r.cfg.Connections.Delete(states, errs)
	err := r.cfg.Seen.Forget(tuples)
	for i, e := range errs {
		switch {
		case e == nil:
			result.Deleted[stale[i].why]++
		case !conntrack.IsNotFound(e):
			result.Failed++
			if err == nil {
				err = e // one error is enough
			}
		}
	}
	return err
}

// Announce is to be called before a table comes into force; SetTable follows. A pass by the table before, which
// may be under way, does not remove flows that are right by this one.
func (r *Reconciler) Announce(t *decision.Table) { r.next.Store(t) }

// SetTable makes Loop follow a table, which must be in force already: the datapath's Apply comes
// first. It does not wait.
func (r *Reconciler) SetTable(t *decision.Table) {
	r.table.Store(t)
	select {
	case r.changed <- struct{}{}:
	default: // there is a token already: its receiver finds this table
	}
}

// gap is the shortest time between two passes of Loop, and the time until the second pass after a
// change, as kube-proxy's minSyncPeriod. It must be longer than a worker takes for a batch of packets.
const gap = time.Second

// Loop makes passes until the context ends: when a table with other results for UDP flows arrives,
// once more a second later, and then every Interval. Failed passes are repeated after one. Tables
// that arrive faster are coalesced; those without a change for UDP cause no dump. It makes none
// before the first table.
func (r *Reconciler) Loop(ctx context.Context) {
	due := time.NewTimer(0)
	due.Stop()
	var finished time.Time // the last pass
	for pass := false; ; pass = false {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
			pass = true
		case <-r.changed:
		}
		t := r.table.Load()
		changed := r.last == nil || !r.last.sameAs(t)
		wait := time.Until(finished.Add(gap))
		switch {
		case !pass && !changed:
			continue
		case !pass && !finished.IsZero() && wait > 0:
			due.Reset(wait)
			continue
		}
		_, err := r.Run(t)
		finished = time.Now()
		if changed || err != nil {
			due.Reset(gap)
		} else {
			due.Reset(r.cfg.Interval)
		}
	}
}
