package engine

import (
	"context"
	"errors"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// RuleCheck is the state of the kernel rules; see [Engine.CheckRules].
type RuleCheck struct {
	// Queued: new flows of the family are queued now. If not, the kernel's copy of the service table decides them.
	Queued map[decision.Family]bool
	// Audited is when the engine last checked and repaired the rules; zero: not yet.
	Audited time.Time
	// Compared is when the rules and all elements were compared with the service table. Comparison is
	// the result, valid iff Err is nil.
	Compared   time.Time
	Comparison ruleset.Comparison
	// Err is why the rules could not be read.
	Err error
}

// A comparison reads all elements of the sets, and meanwhile no change of the service table is applied to the rules. So
// comparisons take at most a share of the time, and there is at most one per compareInterval.
const (
	compareInterval = 5 * time.Second
	compareShare    = 10 // a tenth
)

var (
	errStopped  = errors.New("the datapath has stopped")
	errHandover = errors.New("another nfqproxy takes the kernel rules over")
)

// CheckRules reads the state of the kernel rules, and compares them with the service table. A
// comparison is reused for a few seconds. It fails if the context ends, or Run has
// ended. Any goroutine may call it.
func (e *Engine) CheckRules(ctx context.Context) (RuleCheck, error) {
	reply := make(chan RuleCheck, 1)
	select {
	case e.checks <- reply:
	case <-e.ended:
		return RuleCheck{}, errStopped
	case <-ctx.Done():
		return RuleCheck{}, ctx.Err()
	}
	select {
	case c := <-reply:
		return c, nil
	case <-ctx.Done():
		return RuleCheck{}, ctx.Err()
	}
}

// checkRules checks the rules for CheckRules. Only Run may call it, which has the network namespace
// and the rules.
func (e *Engine) checkRules(now time.Time) RuleCheck {
	if e.heir != nil {
		return RuleCheck{Audited: e.keeper.last, Compared: now, Err: errHandover}
	}
	k := &e.keeper
	c := &k.checked
	if c.Compared.IsZero() || now.Sub(c.Compared) >= max(compareInterval, compareShare*k.comparing) {
		c.Compared = now
		c.Comparison, c.Err = e.rules.Compare(e.applied)
		k.comparing = time.Since(now)
	}
	checked := *c
	checked.Audited, checked.Queued = k.last, make(map[decision.Family]bool)
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		queued, err := e.rules.IsAlive(f)
		if err != nil {
			checked.Err = errors.Join(checked.Err, err)
			continue
		}
		checked.Queued[f] = queued
	}
	return checked
}
