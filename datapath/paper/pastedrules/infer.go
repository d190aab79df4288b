package pastedrules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// The costs of a table for lines that do not name it: the tables of a run of lines are those with the least sum. Only
// their order of size has a meaning.
const (
	costImpossible = 1 << 20 // the kernel does not have such a rule there
	costUnusual    = 700     // for a chain of a known program
	costOtherJump  = 250     // chains that jump to one another are of one table
	costSwitch     = 600     // another table begins between two rules
	costSameChain  = 1200    // between two rules of a chain
	costPrior      = 5       // of the less usual tables, times their rank
)

// inferredOrder are the tables, the most usual one first.
var inferredOrder = []string{"filter", "nat", "mangle", "raw", "security"}

// inferTables chooses the tables of lines that are in none: by what the kernel has in one table only, by the chains of
// known programs, and by jumps. Other tables begin where lines show it.
func inferTables(lines []*statement) {
	homes := make(map[string]string) // the table of a chain after a first pass, by which jumps are judged
	for range 2 {
		path := cheapest(lines, homes)
		clear(homes)
		for i, s := range lines {
			s.table = inferredOrder[path[i]]
			if s.chain == "" {
				continue
			}
			if home, ok := homes[s.chain]; ok && home != s.table {
				homes[s.chain] = "" // in several tables
			} else {
				homes[s.chain] = s.table
			}
			if target := jumpWord(s); target != "" && homes[target] == "" {
				if _, known := homes[target]; !known {
					homes[target] = s.table
				}
			}
		}
	}
}

// cheapest returns the position in inferredOrder of each line's table.
func cheapest(lines []*statement, homes map[string]string) []int {
	const n = 5
	policies := policySets(lines)
	var sum [n]int
	from := make([][n]uint8, len(lines))
	for i, s := range lines {
		change := costSwitch
		switch {
		case i == 0 || beginsTable(lines[i-1], s) || policies[i] != nil: // a chain has one policy
			change = 0
		case s.rule != nil && lines[i-1].rule != nil && s.chain == lines[i-1].chain:
			change = costSameChain
		}
		least := 0
		for t := range n {
			if sum[t] < sum[least] {
				least = t
			}
		}
		var next [n]int
		for t := range n {
			from[i][t] = uint8(t)
			next[t] = sum[t]
			if sum[least]+change < sum[t] {
				from[i][t], next[t] = uint8(least), sum[least]+change
			}
			next[t] += t*costPrior + s.costOf(inferredOrder[t], homes)
			if set := policies[i]; set != nil {
				next[t] += costOfPolicies(inferredOrder[t], set)
			}
		}
		sum = next
	}
	path := make([]int, len(lines))
	for t := range n {
		if len(lines) > 0 && sum[t] < sum[path[len(lines)-1]] {
			path[len(lines)-1] = t
		}
	}
	for i := len(lines) - 1; i > 0; i-- {
		path[i-1] = int(from[i][path[i]])
	}
	return path
}

// beginsTable reports whether a line can only be the first one of a table: a policy or a declaration below rules.
func beginsTable(above, s *statement) bool {
	switch s.op {
	case opPolicy:
		return above.op != opPolicy
	case opDeclare, opNew:
		return above.rule != nil
	}
	return false
}

// policySets are the built-in chains of each run of policies and declarations with one, at the first line of it.
func policySets(lines []*statement) map[int][]string {
	sets := make(map[int][]string)
	first := -1
	for i, s := range lines {
		if s.op != opPolicy && (s.op != opDeclare || s.chainUp.Policy == iptables.PolicyNone) {
			first = -1
			continue
		}
		if first < 0 || slices.Contains(sets[first], s.chain) {
			first = i
		}
		sets[first] = append(sets[first], s.chain)
	}
	return sets
}

// costOfPolicies compares the chains that have a policy with the table's.
func costOfPolicies(table string, set []string) int {
	of := len(iptables.BuiltinChains(table))
	return costOtherJump * (max(of, len(set)) - min(of, len(set)))
}

func (s *statement) costOf(table string, homes map[string]string) int {
	cost := 0
	if isBuiltinAnywhere(s.chain) && !iptables.Builtin(table, s.chain) {
		cost += costImpossible
	}
	if home := iptables.UsualTable(s.chain); home != "" && home != table {
		cost += costUnusual
	}
	if home := homes[s.chain]; home != "" && home != table && !isBuiltinAnywhere(s.chain) {
		cost += costOtherJump
	}
	target := jumpWord(s)
	if target == "" {
		return cost
	}
	switch only := iptables.TargetTable(target); {
	case only != "" && only != table:
		cost += costImpossible
	case target == "DROP" && table == "nat": // iptables refuses it
		cost += costUnusual
	}
	if home := iptables.UsualTable(target); home != "" && home != table {
		cost += costUnusual
	}
	if home := homes[target]; home != "" && home != table {
		cost += costOtherJump
	}
	return cost
}

// jumpWord is the word behind -j or -g; empty: there is none.
func jumpWord(s *statement) string {
	if s.rule == nil {
		return ""
	}
	args := s.rule.Args()
	for i := 0; i+1 < len(args); i++ {
		if args[i].Is("-j", "--jump", "-g", "--goto") {
			return args[i+1].Text
		}
	}
	return ""
}

func isBuiltinAnywhere(chain string) bool {
	return slices.ContainsFunc(inferredOrder, func(table string) bool { return iptables.Builtin(table, chain) })
}

// whyTable is the reason for the table of some lines.
func whyTable(lines []*statement, table string) string {
	for _, s := range lines {
		if target := jumpWord(s); iptables.TargetTable(target) == table {
			return fmt.Sprintf("the only one that may have the target %s (line %d)", target, s.number)
		}
	}
	for _, s := range lines {
		for _, chain := range []string{s.chain, jumpWord(s)} {
			if iptables.UsualTable(chain) == table {
				return fmt.Sprintf("the one where chain %s is usual", chain)
			}
		}
	}
	var chains []string
	for _, s := range lines {
		if isBuiltinAnywhere(s.chain) && !slices.Contains(chains, s.chain) {
			chains = append(chains, s.chain)
		}
	}
	if len(chains) > 0 {
		return "by the built-in chains " + strings.Join(chains, ", ")
	}
	return "the most usual one"
}
