package iptables

import (
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/listdiff"
)

// TableDiff is what differs in one table.
type TableDiff struct {
	Name string
	// Added and Removed: only one dump has the table. Then Chains has all of it.
	Added, Removed bool
	Chains         []ChainDiff // those that differ, in the order of the second dump
}

// ChainDiff is what differs in one chain.
type ChainDiff struct {
	Name string
	// Before and After are the chain's declarations, nil where it has none: it is added or removed
	// if just one is nil. For a built-in chain that was not declared both are nil.
	Before, After *Chain
	Rules         []RuleDiff // in order, removed rules before their replacement
}

// Policies are those of the chain. A built-in chain of which a dump has no table accepts.
func (c *ChainDiff) Policies() (before, after Policy) {
	of := func(c *Chain) Policy {
		if c == nil {
			return PolicyAccept
		}
		return c.Policy
	}
	return of(c.Before), of(c.After)
}

// PolicyChanged reports whether the policies differ, as far as the dumps show them.
func (c *ChainDiff) PolicyChanged() bool {
	before, after := c.Policies()
	return before != after && before != PolicyNone && after != PolicyNone
}

// RuleDiff is one rule that differs.
type RuleDiff struct {
	Before *Rule // nil: the rule is added
	After  *Rule // nil: it is removed; if neither is nil, it has moved among the others
}

// Moved reports whether the rule is in both dumps, in another order.
func (r *RuleDiff) Moved() bool { return r.Before != nil && r.After != nil }

// Diff returns the differences between two dumps: tables, chains and their policies, and rules
// with their order. Counters, comment lines, the order of chains and the spelling of quotes and
// spaces do not count. It takes n log n time.
func Diff(before, after *Dump) []TableDiff {
	var diffs []TableDiff
	for _, a := range after.Tables {
		d := diffTables(before.Table(a.Name), a)
		if d.Added || len(d.Chains) > 0 {
			diffs = append(diffs, d)
		}
	}
	for _, b := range before.Tables {
		if after.Table(b.Name) == nil {
			diffs = append(diffs, diffTables(b, nil))
		}
	}
	return diffs
}

// diffTables compares two tables of one name, of which one may be nil.
func diffTables(before, after *Table) TableDiff {
	d := TableDiff{Added: before == nil, Removed: after == nil}
	if d.Added {
		before = &Table{Name: after.Name}
	}
	if d.Removed {
		after = &Table{Name: before.Name}
	}
	d.Name = after.Name
	declared := func(t *Table) map[string]*Chain {
		chains := make(map[string]*Chain, len(t.Chains))
		for _, c := range t.Chains {
			chains[c.Name] = c
		}
		return chains
	}
	beforeChains, afterChains := declared(before), declared(after)
	beforeRules, afterRules := before.ByChain(), after.ByChain()
	for _, name := range chainNames(after, before) {
		c := ChainDiff{
			Name: name, Before: beforeChains[name], After: afterChains[name],
			Rules: diffRules(beforeRules[name], afterRules[name]),
		}
		if len(c.Rules) > 0 || (c.Before == nil) != (c.After == nil) && !Builtin(d.Name, name) || c.PolicyChanged() {
			d.Chains = append(d.Chains, c)
		}
	}
	return d
}

// Shown is the table without what may only be missing in a part of a host's rules: chains that the part does not have, and rules that
// it does not have in chains of which it shows some.
func (t *Table) Shown(part *Dump) *Table {
	all := *t
	has, open := make(map[string]bool), make(map[string]bool)
	for _, c := range part.Table(t.Name).Chains {
		open[c.Name] = c.Open
	}
	all.Chains = slices.DeleteFunc(slices.Clone(t.Chains), func(c *Chain) bool {
		has[c.Name] = open[c.Name] || part.Lists(t.Name, c.Name)
		return !has[c.Name]
	})
	shown := make(map[string]int)
	for _, r := range part.Table(t.Name).Rules {
		shown[spelling(r)]++
	}
	all.Rules = slices.DeleteFunc(slices.Clone(t.Rules), func(r *Rule) bool {
		if open[r.Chain] {
			shown[spelling(r)]--
			return shown[spelling(r)] < 0
		}
		return !has[r.Chain] && !part.Lists(t.Name, r.Chain)
	})
	return &all
}

// chainNames are the chains of the tables, each once.
func chainNames(tables ...*Table) []string {
	var names []string
	seen := make(map[string]bool)
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for _, t := range tables {
		for _, c := range t.Chains {
			add(c.Name)
		}
		for _, r := range t.Rules {
			add(r.Chain)
		}
	}
	return names
}

// diffRules compares the rules of a chain.
func diffRules(before, after []*Rule) []RuleDiff {
	var diffs []RuleDiff
	for _, d := range listdiff.Compare(before, after, spelling) {
		diffs = append(diffs, RuleDiff(d))
	}
	return diffs
}

// spelling is the rule's words as one text.
func spelling(r *Rule) string {
	var b strings.Builder
	for _, t := range r.Args() {
		b.WriteString(t.Text)
		b.WriteByte(0) // which no word has
	}
	return b.String()
}
