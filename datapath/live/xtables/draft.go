package xtables

import (
	"errors"
	"fmt"
	"slices"
)

// Draft is a table that is being edited. Unedited parts stay byte for byte the same, except for
// the offsets that rules and hooks refer to.
type Draft struct {
	old *Table
	// Chains are the built-in chains in the order of their hooks, then the others. Rules that jump to a chain must be
	// deleted with it.
	Chains []*Chain
}

// Draft splits the table into chains and rules.
func (t *Table) Draft() (*Draft, error) {
	chains, err := t.Chains()
	return &Draft{t, chains}, err
}

// Chain returns a chain by its name; nil: there is none.
func (d *Draft) Chain(name string) *Chain {
	for _, c := range d.Chains {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// AddChain adds an empty chain in the place where iptables adds it: by its name.
func (d *Draft) AddChain(name string) *Chain {
	c := &Chain{Name: name, head: d.rule(Conditions{}, headTarget(name)), End: d.rule(Conditions{}, verdictTarget(Return))}
	at := slices.IndexFunc(d.Chains, func(o *Chain) bool { return !o.Base && o.Name > name })
	if at < 0 {
		at = len(d.Chains)
	}
	d.Chains = slices.Insert(d.Chains, at, c)
	return c
}

// Accept makes a rule that accepts.
func (d *Draft) Accept(c Conditions) Rule { return d.rule(c, verdictTarget(Accept)) }

// Jump makes a rule that jumps to a chain.
func (d *Draft) Jump(to *Chain, c Conditions) Rule {
	r := d.rule(c, verdictTarget(0))
	r.To = to
	return r
}

func (d *Draft) rule(c Conditions, target Extension) Rule {
	return Rule{Entry: &Entry{Raw: c.entry(d.old.Family, target)}, Old: -1}
}

// Table builds the table. from has for each entry its index in the old table; -1: it is new.
func (d *Draft) Table() (next *Table, from []int, err error) {
	t := d.old
	next = &Table{Family: t.Family, Name: t.Name, ValidHooks: t.ValidHooks}
	starts := make(map[*Chain]uint32)
	var blob []byte
	var rules []Rule
	add := func(r Rule) (offset uint32) {
		offset = uint32(len(blob))
		blob = append(blob, r.Raw...)
		rules, from = append(rules, r), append(from, r.Old)
		return offset
	}
	for _, c := range d.Chains {
		if !c.Base {
			add(c.head)
		}
		starts[c] = uint32(len(blob))
		for _, r := range c.Rules {
			add(r)
		}
		end := add(c.End)
		if h := slices.Index(hookNames[:], c.Name); c.Base {
			next.HookEntry[h], next.Underflow[h] = starts[c], end
		}
	}
	last := len(t.Entries) - 1
	add(Rule{Entry: &t.Entries[last], Old: last})
	if len(blob) > maxTableSize {
		return nil, nil, errors.New("the table is too large")
	}
	if err := next.ParseEntries(blob); err != nil {
		return nil, nil, err
	}
	for i, r := range rules {
		e := &next.Entries[i]
		switch place, known := starts[r.To]; {
		case r.To != nil && !known:
			return nil, nil, fmt.Errorf("a rule that stays jumps to chain %s, which does not", r.To.Name)
		case r.To != nil:
			e.SetVerdict(t.Family, place)
		case e.jumps(): // to the next one
			e.SetVerdict(t.Family, e.Offset+uint32(len(e.Raw)))
		}
	}
	return next, from, nil
}

// maxTableSize keeps verdicts, which are signed, from overflowing.
const maxTableSize = 1 << 30
