package pastedrules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// draft is a table while its lines are applied.
type draft struct {
	*block
	chains []*iptables.Chain
	names  map[string]*iptables.Chain
	rules  []*iptables.Rule
	// known are the chains of which all rules are there.
	known map[string]bool
	// undeclared are chains that have rules and no declaration.
	undeclared []string
	notes      []iptables.Note
	greps      []string // of blocks that were added
}

func newDraft(b *block) *draft {
	d := &draft{block: b, names: make(map[string]*iptables.Chain), known: make(map[string]bool)}
	for _, s := range b.lines {
		d.apply(s)
	}
	complete := b.complete()
	for _, c := range d.chains {
		d.known[c.Name] = complete
	}
	if b.form == formSaved && !b.committed {
		d.cut()
	}
	if b.form == formSaved {
		d.doubtNames()
	}
	return d
}

// doubtNames is for rules of a chain that is neither declared nor used, while others are declared: the name may be damaged, and
// the rules may be of any chain.
func (d *draft) doubtNames() {
	if !slices.ContainsFunc(d.lines, func(s *statement) bool { return s.op == opDeclare && !iptables.Builtin(d.table, s.chain) }) {
		return
	}
	for _, name := range d.undeclared {
		if slices.ContainsFunc(d.lines, func(s *statement) bool { return jumpWord(s) == name }) {
			continue
		}
		d.note(d.names[name].Line, "chain %.40s of table %s is neither declared nor used: its name may be damaged, and any chain of the table may have more rules", name, d.table)
		for chain := range d.known {
			d.known[chain] = false
		}
	}
}

func (d *draft) note(line int, format string, args ...any) {
	d.notes = append(d.notes, iptables.Note{Line: line, Text: fmt.Sprintf(format, args...)})
}

func (d *draft) declare(c iptables.Chain, explicit bool) {
	if old := d.names[c.Name]; old != nil {
		if explicit && c.Policy != iptables.PolicyNone {
			old.Policy = c.Policy
		}
		return
	}
	if !iptables.Builtin(d.table, c.Name) {
		c.Policy = iptables.PolicyNone
	}
	d.names[c.Name] = &c
	d.chains = append(d.chains, &c)
}

func (d *draft) apply(s *statement) {
	switch s.op {
	case opDeclare, opPolicy:
		if d.declare(s.chainUp, true); iptables.Builtin(d.table, s.chainUp.Name) && s.chainUp.Policy == iptables.PolicyNone {
			d.note(s.number, "the policy of chain %s of table %s is neither ACCEPT nor DROP, and iptables takes no other: ACCEPT is assumed", s.chainUp.Name, d.table)
		}
	case opNew:
		d.declare(iptables.Chain{Name: s.chain, Line: s.number}, true)
	case opAppend, opInsert:
		if d.names[s.chain] == nil {
			d.declare(iptables.Chain{Name: s.chain, Line: s.number}, false)
			if !iptables.Builtin(d.table, s.chain) {
				d.undeclared = append(d.undeclared, s.chain)
			}
		}
		at := len(d.rules)
		if s.op == opInsert {
			at = d.position(s.chain, max(s.at, 1))
		}
		var rules []*iptables.Rule
		for _, args := range iptables.Separate(s.rule.Args()) {
			one := *s.rule
			one.SetArgs(args)
			rules = append(rules, &one)
		}
		d.rules = slices.Insert(d.rules, at, rules...)
	case opDelete, opReplace:
		d.replace(s)
	case opFlush:
		before := len(d.rules)
		d.rules = slices.DeleteFunc(d.rules, func(r *iptables.Rule) bool { return s.chain == "" || r.Chain == s.chain })
		if gone := before - len(d.rules); gone > 0 {
			d.note(s.number, "-F removes %d rules above it", gone)
		}
	case opRemove:
		d.remove(s)
	}
}

// remove is -X: it removes chains that have no rules.
func (d *draft) remove(s *statement) {
	used := make(map[string]bool)
	for _, r := range d.rules {
		used[r.Chain] = true
	}
	d.chains = slices.DeleteFunc(d.chains, func(c *iptables.Chain) bool {
		gone := !used[c.Name] && !iptables.Builtin(d.table, c.Name) && (s.chain == "" || s.chain == c.Name)
		if gone {
			delete(d.names, c.Name)
		}
		return gone
	})
}

// position is where the rule with that number in its chain is, or the end.
func (d *draft) position(chain string, number int) int {
	for i, r := range d.rules {
		if r.Chain == chain {
			if number--; number == 0 {
				return i
			}
		}
	}
	return len(d.rules)
}

// replace is -D and -R.
func (d *draft) replace(s *statement) {
	at := len(d.rules)
	if s.at > 0 {
		at = d.position(s.chain, s.at)
	} else {
		text := s.rule.String()
		if i := slices.IndexFunc(d.rules, func(r *iptables.Rule) bool { return r.Chain == s.chain && r.String() == text }); i >= 0 {
			at = i
		}
	}
	switch {
	case at == len(d.rules):
		d.note(s.number, "%s has no effect: the rule is not in the text", firstWord(s.text))
	case s.op == opDelete:
		d.rules = slices.Delete(d.rules, at, at+1)
	default:
		d.rules[at] = s.rule
	}
}

func firstWord(text string) string {
	for _, w := range strings.Fields(text) {
		if operations[w] != opRemark {
			return w
		}
	}
	return "the line"
}

// cut notes a table without its end. If nothing follows it, the text may have been cut off: the last line may be half a rule,
// the last chain may go on, and the rules of those declared behind it are not known.
func (d *draft) cut() {
	if d.ended {
		d.note(d.number, "table %s has no COMMIT", d.table)
		return
	}
	half := d.halfRule()
	used := make(map[string]bool)
	last := -1
	for _, r := range d.rules {
		used[r.Chain] = true
	}
	if n := len(d.rules); n > 0 {
		last = slices.IndexFunc(d.chains, func(c *iptables.Chain) bool { return c.Name == d.rules[n-1].Chain })
		d.known[d.rules[n-1].Chain] = false
	}
	var kept []*iptables.Chain
	var lost []string
	for i, c := range d.chains {
		behind := i > last && !used[c.Name]
		if behind {
			lost = append(lost, c.Name)
			d.known[c.Name] = false
		}
		if behind && !iptables.Builtin(d.table, c.Name) {
			delete(d.names, c.Name)
		} else {
			kept = append(kept, c)
		}
	}
	d.chains = kept
	text := fmt.Sprintf("table %s has no COMMIT: the text may have been cut off", d.table)
	if half != nil {
		text += fmt.Sprintf(" in line %d", half.Line)
	}
	if n := len(d.rules); n > 0 {
		text += fmt.Sprintf(", so chain %s may have more rules", d.rules[n-1].Chain)
	}
	if len(lost) > 0 {
		text += fmt.Sprintf(", and the rules of these chains are not known: %s", quantity.Some(lost, mostNamed))
	}
	d.note(d.number, "%s", text)
}

// halfRule marks the last line as a fault if it ends within a rule, or leaves it out if it ends within the name of its chain.
// nil: it is a whole rule.
func (d *draft) halfRule() *iptables.Rule {
	n := len(d.rules)
	if n == 0 {
		return nil
	}
	r := d.rules[n-1]
	args := r.Args()
	if jumpIndex(args) >= 0 && !endsOpen(args) {
		return nil
	}
	i := slices.IndexFunc(d.lines, func(s *statement) bool { return s.rule != nil && s.number == r.Line })
	if len(args) == 0 && len(d.undeclared) > 0 && d.undeclared[len(d.undeclared)-1] == r.Chain {
		d.rules, d.undeclared = d.rules[:n-1], d.undeclared[:len(d.undeclared)-1]
		delete(d.names, r.Chain)
		d.chains = slices.DeleteFunc(d.chains, func(c *iptables.Chain) bool { return c.Name == r.Chain })
	} else if i >= 0 && d.lines[i].fault == nil {
		d.lines[i].fault = &iptables.Error{Line: r.Line, Problem: "the line is cut off"}
	}
	return r
}

// endsOpen reports whether the last word is an option that needs a value.
func endsOpen(args []iptables.Token) bool {
	return len(args) > 0 && valueWanted.MatchString(args[len(args)-1].Text)
}

// span names the lines of the block.
func (b *block) span() string {
	first, last := b.number, b.number
	for _, s := range b.lines {
		last = max(last, s.number)
	}
	if first == last {
		return fmt.Sprintf("line %d", first)
	}
	return fmt.Sprintf("lines %d to %d", first, last)
}
