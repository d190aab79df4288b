package engine

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
)

// ruleKeeper keeps the kernel rules correct.
type ruleKeeper struct {
	// reinstalled counts how often all rules were loaded again, repaired how often some
	// were repaired in place.
	reinstalled, repaired atomic.Uint64
	fault                 atomic.Pointer[string] // see [Engine.Fault]
	last                  time.Time              // of an audit; belongs to Run
	checked               RuleCheck              // the last one; belongs to Run
	comparing             time.Duration          // how long its comparison took; belongs to Run
}

// auditInterval is how often the kernel rules are compared with the expected ones without an
// event: as often as kube-proxy checks its chains. Damaged rules are retried with every tick.
const auditInterval = 30 * time.Second

// due reports whether it is time for an audit.
func (k *ruleKeeper) due(now time.Time) bool {
	return k.fault.Load() != nil || now.Sub(k.last) >= auditInterval
}

// Fault describes the damage of the kernel rules that could not be repaired; empty: none is known.
// Any goroutine may call it.
func (e *Engine) Fault() string {
	if f := e.keeper.fault.Load(); f != nil {
		return *f
	}
	return ""
}

// audit compares the kernel rules with the expected ones, and repairs them. A failed repair is a
// fault, until an audit repairs it. It reports whether the rules are correct now.
func (e *Engine) audit(lost *overflow, thorough bool) (ok bool) {
	e.keeper.last = time.Now()
	// Packets until here passed undecided, if the rules were missing.
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
	case errors.Is(err, nft.ErrChanged): // so the state of the rules is unknown
		e.log.Debug("cannot check the kernel rules", "error", err)
	case err != nil:
		text := err.Error()
		e.keeper.fault.Store(&text)
		if before == "" {
			e.raise(&Alert{Reason: "KernelRulesDamaged", Text: "The kernel rules are damaged: services may be unreachable. The repair is retried every second. " + text})
		}
	default:
		e.keeper.fault.Store(nil)
		if before != "" {
			e.raise(&Alert{Reason: "KernelRulesRepaired", Text: "The kernel rules are correct again.", Over: true})
		}
	}
	return err == nil
}
