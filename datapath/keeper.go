package datapath

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/nft"
)

// ruleKeeper is about the kernel rules being what they should be.
type ruleKeeper struct {
	// reinstalled counts how often all rules were loaded again, repaired how often some
	// were repaired in place.
	reinstalled, repaired atomic.Uint64
	fault                 atomic.Pointer[string] // see [Engine.Fault]
	last                  time.Time              // of an audit; belongs to Run
}

// auditInterval is how often the kernel rules are compared with what they should be, though
// no event said that they changed: as often as kube-proxy looks for its chains. Rules at fault
// are tried with every tick.
const auditInterval = 30 * time.Second

// due reports whether it is time for an audit.
func (k *ruleKeeper) due(now time.Time) bool {
	return k.fault.Load() != nil || now.Sub(k.last) >= auditInterval
}

// Fault describes what is wrong with the kernel rules, as long as it cannot be repaired;
// it is empty if nothing is known to be. It may be called by any goroutine.
func (e *Engine) Fault() string {
	if f := e.keeper.fault.Load(); f != nil {
		return *f
	}
	return ""
}

// audit compares the kernel rules with what they should be, and repairs them. What it cannot
// repair is a fault, until an audit repairs it. It reports whether the rules are what they
// should be now.
func (e *Engine) audit(lost *overflow, thorough bool) (ok bool) {
	e.keeper.last = time.Now()
	// Whatever came until here passed undecided, if the rules are gone.
	arrived := e.enqueued()
	done, err := e.rules.Audit(e.applied, thorough)
	if done.Recounted {
		lost.restart(arrived)
	}
	found := strings.Join(done.Found, ", ")
	switch {
	case done.None():
	case done.Reinstalled:
		e.keeper.reinstalled.Add(1)
		e.log.Warn("another program removed the kernel rules (nft flush ruleset?); installed the kernel rules again", "found", found)
	default:
		e.keeper.repaired.Add(1)
		e.log.Warn("another program changed the kernel rules; repaired the kernel rules", "found", found)
	}
	before := e.Fault()
	switch {
	case errors.Is(err, nft.ErrChanged): // so it is not known
		e.log.Debug("the kernel rules could not be compared with what they should be", "error", err)
	case err != nil:
		text := err.Error()
		e.keeper.fault.Store(&text)
		if before == "" {
			e.raise(&Alert{Reason: "KernelRulesDamaged", Text: "The kernel rules are not what they should be: services may not be reachable. It is tried again every second. " + text})
		}
	default:
		e.keeper.fault.Store(nil)
		if before != "" {
			e.raise(&Alert{Reason: "KernelRulesRepaired", Text: "The kernel rules are what they should be again.", Over: true})
		}
	}
	return err == nil
}
