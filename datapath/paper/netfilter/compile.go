package netfilter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// Hook is a place in the kernel where tables are evaluated.
type Hook uint8

// The hooks, in the order of enum nf_inet_hooks.
const (
	Prerouting Hook = iota
	Input
	Forward
	Output
	Postrouting
)

var hookNames = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

func (h Hook) String() string { return hookNames[h] }

// table is one of the kernel's tables.
type table uint8

const (
	raw table = iota
	mangle
	nat
	filter
	security
	tables
)

var tableNames = [tables]string{"raw", "mangle", "nat", "filter", "security"}

func (t table) String() string { return tableNames[t] }

// chain is a chain whose jumps are resolved.
type chain struct {
	table   string            // its name; that of nftables with the family: "inet filter"
	in      map[string]*chain // the chains of its table
	nat     bool              // it is in iptables' table nat
	file    string            // see [iptables.Rule.File]
	name    string
	line    int
	builtin bool // it ends with a policy: built in, or a base chain
	open    bool // it may have more rules
	policy  iptables.Policy
	rules   []rule
	index   *index // nil: it is short
	height  int    // how deep jumps lead from here; see checkNesting
}

type rule struct {
	*iptables.Rule
	jump  *chain // of a Jump or Goto; nil: the dump has no such chain
	mixed bool   // not all generic matches stand first
}

// matches are those of the rule as the kernel evaluates them: of iptables, the generic ones first, as it compares the IP header
// before it calls modules.
func (r *rule) matches() []iptables.Match {
	if !r.mixed {
		return r.Matches
	}
	sorted := slices.Clone(r.Matches)
	slices.SortStableFunc(sorted, func(a, b iptables.Match) int { return rank(a) - rank(b) })
	return sorted
}

// compile resolves the jumps of a table. A jump to a missing chain is an error, except in
// listings, which may show only some of the chains.
func (b *backend) compile(t *iptables.Table) error {
	if !slices.Contains(tableNames[:], t.Name) && !b.native() {
		return fmt.Errorf("line %d: table %s is none of iptables'", t.Line, t.Name)
	}
	builtin := iptables.BuiltinChains(t.Name)
	if b.native() {
		builtin = nil
	}
	// One allocation for all: a table may have a hundred thousand chains.
	all := make([]chain, 0, len(builtin)+len(t.Chains))
	chains := make(map[string]*chain, cap(all))
	of := func(name string) *chain {
		all = append(all, chain{table: t.Name, in: chains, name: name, nat: t.Name == nat.String()})
		c := &all[len(all)-1]
		chains[name] = c
		return c
	}
	for _, name := range builtin {
		c := of(name)
		c.builtin, c.policy = true, iptables.PolicyAccept
	}
	for _, c := range t.Chains {
		known := chains[c.Name]
		if known == nil {
			known = of(c.Name)
		}
		if c.Base != nil {
			known.builtin, known.policy = true, iptables.PolicyAccept
		}
		known.line, known.open = c.Line, c.Open
		if c.Policy != iptables.PolicyNone {
			known.policy = c.Policy
		}
	}
	b.chains[t.Name] = chains
	var c *chain
	rules := make([]rule, len(t.Rules)) // those of a chain follow one another in most files
	for i, r := range t.Rules {
		if c == nil || c.name != r.Chain {
			if c = chains[r.Chain]; c == nil {
				return fmt.Errorf("line %d: the rule is for chain %s of table %s, which is not declared; want a line \":%s - [0:0]\"", r.Line, r.Chain, t.Name, r.Chain)
			}
			if c.rules == nil {
				end := i + 1
				for end < len(t.Rules) && t.Rules[end].Chain == c.name {
					end++
				}
				c.rules = rules[i:i:end]
			}
		}
		compiled := rule{Rule: r, mixed: !b.native() && !slices.IsSortedFunc(r.Matches, func(a, b iptables.Match) int { return rank(a) - rank(b) })}
		if name := r.JumpsTo(); name != "" {
			compiled.jump = chains[name]
			if compiled.jump == nil && b.dump.Listing == nil {
				return fmt.Errorf("line %d: there is no chain %s in table %s", r.Line, name, t.Name)
			}
			if compiled.jump != nil && compiled.jump.builtin {
				return fmt.Errorf("line %d: a rule cannot jump to the built-in chain %s", r.Line, name)
			}
		}
		c.rules = append(c.rules, compiled)
	}
	file := ""
	if len(t.Rules) > 0 {
		file = t.Rules[0].File
	}
	for i := range all {
		c := &all[i]
		c.file, c.index = file, newIndex(c.rules)
	}
	return checkNesting(all)
}

// native reports whether the rules are those of nftables itself.
func (b *backend) native() bool { return b.dump.Backend == iptables.BackendNative }

// ofNFTables reports whether the header above a table is that of iptables-save's nf_tables back
// end.
func ofNFTables(t *iptables.Table) bool {
	return slices.ContainsFunc(t.Before, func(line string) bool {
		return strings.Contains(line, "(nf_tables)")
	})
}

func rank(m iptables.Match) int {
	if iptables.ModuleOf(m) == "" {
		return 0
	}
	return 1
}
