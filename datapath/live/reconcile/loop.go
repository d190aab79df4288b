package reconcile

import (
	"context"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

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

// Loop makes passes until the context ends: when a table with other results for UDP flows arrives,
// once more a Gap later, and then every Interval. Failed passes are repeated after a Gap. Tables
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
		wait := time.Until(finished.Add(r.cfg.Gap))
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
			due.Reset(r.cfg.Gap)
		} else {
			due.Reset(r.cfg.Interval)
		}
	}
}
