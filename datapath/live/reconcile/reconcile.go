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
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

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

	stale  []staleFlow
	states []conntrack.State
	tuples []conntrack.Tuple
	errs   []error

	close func() error // nil: there is nothing to close
}

// Close closes what [Open] opened.
func (r *Reconciler) Close() error {
	if r.close == nil {
		return nil
	}
	return r.close()
}

type staleFlow struct {
	state conntrack.State
	why   Reason
}

// New makes a Reconciler. It does nothing yet.
func New(cfg Config) *Reconciler {
	if cfg.Mark == 0 {
		cfg.Mark = conntrack.DefaultMark
	}
	if cfg.Interval == 0 {
		cfg.Interval = 30 * time.Second
	}
	if cfg.Gap == 0 {
		cfg.Gap = time.Second
	}
	if cfg.Observe == nil {
		cfg.Observe = func(decision.Family, Result, error) {}
	}
	return &Reconciler{cfg: cfg, changed: make(chan struct{}, 1), gone: newFrontends()}
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
		r.gone = newFrontends()
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
		r.gone.addRemoved(&r.last.frontends, &next.frontends)
	}
	r.last = next
}

// maxDumps is how often an interrupted dump is tried (kube-proxy's MaxAttemptsEINTR).
const maxDumps = 5

// reconcile makes the part of a pass that is about one family.
func (r *Reconciler) reconcile(f decision.Family) (Result, error) {
	result := Result{Deleted: make(map[Reason]int)}
	filter := conntrack.Filter{IPv6: f == decision.IPv6, Protocol: uint8(decision.UDP)}
	var err error
	for range maxDumps {
		result.Examined, r.stale = 0, r.stale[:0]
		err = r.cfg.Connections.Dump(filter, func(s *conntrack.State) {
			result.Examined++
			if why := r.last.check(s, &r.gone, r.cfg.Mark); why != Stays {
				r.stale = append(r.stale, staleFlow{*s, why})
			}
		})
		if !errors.Is(err, conntrack.ErrInterrupted) {
			break
		}
	}
	r.keepAnnounced()
	// The entries of an incomplete dump are valid.
	for stale := r.stale; len(stale) > 0; {
		n := min(len(stale), batchSize)
		err = errors.Join(err, r.remove(stale[:n], &result))
		stale = stale[n:]
	}
	r.stale = nil // free the memory of a large dump
	return result, err
}

// keepAnnounced keeps the flows that are right by the table that was announced: workers may decide by it already.
func (r *Reconciler) keepAnnounced() {
	t := r.next.Load()
	if t == nil || len(r.stale) == 0 || r.last.sameAs(t) {
		return
	}
	next := newView(t)
	r.stale = slices.DeleteFunc(r.stale, func(s staleFlow) bool { return next.check(&s.state, &r.gone, r.cfg.Mark) == Stays })
}

// batchSize is how many flows are removed at once: few enough for the steps to follow
// each other within a millisecond.
const batchSize = 64

// remove removes flows, in the three steps the package comment explains.
func (r *Reconciler) remove(stale []staleFlow, result *Result) error {
	r.states, r.tuples, r.errs = r.states[:0], r.tuples[:0], append(r.errs[:0], make([]error, len(stale))...)
	for i := range stale {
		s := &stale[i].state
		r.states = append(r.states, *s)
		r.tuples = append(r.tuples, s.Original, s.Reply)
	}
	if err := r.cfg.Seen.Forget(r.tuples); err != nil {
		result.Failed += len(stale)
		return err // without this, more than one datagram of each would be lost
	}
	r.cfg.Connections.Delete(r.states, r.errs)
	err := r.cfg.Seen.Forget(r.tuples)
	for i, e := range r.errs {
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
