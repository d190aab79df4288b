package netfilter

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Work is the remaining budget for following packets. Rules can be written so that one packet
// meets exponentially many of them: chains that jump twice to the next chain. A walk without
// remaining work ends: see [Result.Cut]. It is not safe for concurrent use.
type Work struct {
	Visits int // rules to evaluate
	Steps  int // steps to keep

	walk *walk // of the last packet, for the memory
}

// walkFor is the memory for a walk. Surveys use it again: nothing keeps the walk of a packet.
func (w *Work) walkFor(m *Machine) *walk {
	if !m.options.Doubts {
		return new(walk)
	}
	if w.walk == nil {
		w.walk = new(walk)
	}
	return w.walk
}

// NewWork is enough for a walk in full detail through a dump of 200,000 rules, and for the 1,000
// ways of a packet through one of 50,000 rules. Steps need memory: some 300 bytes each.
func NewWork() *Work { return &Work{Visits: 50_000_000, Steps: 250_000} }

// sourceVisits is how many rules a [SourceNAT] evaluates for one packet.
const sourceVisits = 1_000_000

// maxDepth is how deep jumps may lead from chain to chain. Each level needs some of the
// stack. The nf_tables back end has 16 (NFT_JUMP_STACK_SIZE, nf_tables_core.c), the legacy
// one as many as there are chains (x_tables.c, xt_jumpstack_alloc).
const maxDepth = 50_000

// spent returns the limit that is reached; empty: none.
func (w *Work) spent() string {
	switch {
	case w.Visits <= 0:
		return "the limit of evaluated rules"
	case w.Steps <= 0:
		return "the limit of steps"
	}
	return ""
}

// cutOff ends a walk without remaining work, at the next rule.
func (w *walk) cutOff(c *chain, r *rule, limit string) exit {
	why := fmt.Sprintf("the walk is cut off at %s: %s is reached", lineOf(r.Rule), limit)
	w.end(Stopped, r.Rule, why)
	w.result.Cut = why
	if !w.quiet {
		w.passed = w.passed[:0]
		w.add(flow.Step{Table: c.table, Chain: c.name, File: c.file, Line: r.Line, Outcome: flow.StepUnknown, Text: "cut off: " + limit + " is reached"})
	}
	return ended
}

// checkNesting refuses chains that are nested too deep, and chains that lead back to themselves,
// which the kernel does not load (ELOOP).
func checkNesting(chains []chain) error {
	for i := range chains {
		chains[i].height = unvisited
	}
	for i := range chains {
		if err := chains[i].findHeight(0); err != nil {
			return err
		}
	}
	return nil
}

// The heights of chains that have none yet, and of those that are being visited.
const (
	unvisited = -1 - iota
	onTheWay
)

func (c *chain) findHeight(depth int) error {
	if c.height != unvisited {
		return nil
	}
	c.height = onTheWay
	height := 0
	for i := range c.rules {
		r := &c.rules[i]
		for next := range r.leadsTo(c) {
			if depth >= maxDepth {
				return tooDeep(r)
			}
			err := next.findHeight(depth + 1)
			switch {
			case err != nil:
				return err
			case next.height == onTheWay:
				return fmt.Errorf("%s: the chains lead in a circle: %s comes back to %s", lineOf(r.Rule), c.name, next.name)
			case next.height+1 > maxDepth:
				return tooDeep(r)
			}
			height = max(height, next.height+1)
		}
	}
	c.height = height
	return nil
}

func tooDeep(r *rule) error {
	return fmt.Errorf("%s: chains are nested deeper than %d jumps: want fewer", lineOf(r.Rule), maxDepth)
}
