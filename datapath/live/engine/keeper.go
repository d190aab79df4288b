package engine

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
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

// Alert is a message of the datapath for the operator.
type Alert struct {
	Reason string // one word for programs
	Text   string // a sentence or two
	Over   bool   // the condition is over
}

// tableWatch raises an alert when the connection table is full, and another when it no longer is.
type tableWatch struct {
	refused uint64    // entries that the table refused so far
	last    time.Time // when that number last grew
	full    bool
}

// recovered is the time without a refused entry after which the table counts as not full.
const recovered = 10 * time.Second

// look takes the number of refused entries at intervals. It returns nil if nothing changed.
func (w *tableWatch) look(now time.Time, refused uint64) *Alert {
	if refused > w.refused {
		w.refused, w.last = refused, now
		if w.full {
			return nil
		}
		w.full = true
		return &Alert{Reason: "ConntrackFull", Text: "The connection table is full: packets of new flows to services are dropped until the clients retransmit them. Raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore in the configuration file), or find the clients that open so many connections."}
	}
	if w.full && now.Sub(w.last) >= recovered {
		w.full = false
		return &Alert{Reason: "ConntrackRecovered", Text: "The connection table accepts new flows again.", Over: true}
	}
	return nil
}

// raise passes an alert to the operator; nil: there is none.
func (e *Engine) raise(a *Alert) {
	if a == nil {
		return
	}
	e.log.Warn(a.Text, "reason", a.Reason)
	if e.cfg.Alert != nil {
		e.cfg.Alert(*a)
	}
}
