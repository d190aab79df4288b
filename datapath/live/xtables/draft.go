package xtables

import (
	"bytes"
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
	Chains []*DraftChain
}

// DraftChain is one chain of a draft.
type DraftChain struct {
	Name  string
	Base  bool
	Rules []*DraftRule
	// head names the chain and is nil for a base chain; end is the policy of a base chain
	// or the return at the end of another.
	head, end *DraftRule
}

// DraftRule is one rule of a draft.
type DraftRule struct {
	Old  int         // the index of the entry in the old table; -1: it is new
	To   *DraftChain // the chain that the rule jumps to; nil: none
	raw  []byte
	next bool // the rule has no target: it continues with the next one
}

// Draft splits the table into chains and rules.
func (t *Table) Draft() (*Draft, error) {
	chains, err := t.Chains()
	if err != nil {
		return nil, err
	}
	d := &Draft{old: t}
	named := make(map[string]*DraftChain)
	take := func(i int) *DraftRule { return &DraftRule{raw: bytes.Clone(t.Entries[i].Raw), Old: i} }
	for _, of := range chains {
		c := &DraftChain{Name: of.Name, Base: of.Base, end: take(of.first + len(of.Rules))}
		if !of.Base {
			c.head, named[of.Name] = take(of.first-1), c
		}
		d.Chains = append(d.Chains, c)
	}
	for i, of := range chains {
		for k, e := range of.Rules {
			to, err := e.To()
			if err != nil {
				return nil, fmt.Errorf("chain %s: %w", of.Name, err)
			}
			_, jumps := e.Jump()
			r := take(of.first + k)
			r.To, r.next = named[to], jumps && to == ""
			d.Chains[i].Rules = append(d.Chains[i].Rules, r)
		}
	}
	return d, nil
}

// Chain returns a chain by its name; nil: there is none.
func (d *Draft) Chain(name string) *DraftChain {
	for _, c := range d.Chains {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// AddChain adds an empty chain in the place where iptables adds it: by its name.
func (d *Draft) AddChain(name string) *DraftChain {
	c := &DraftChain{Name: name, head: d.rule(Conditions{}, headTarget(name)), end: d.rule(Conditions{}, verdictTarget(Return))}
	at := slices.IndexFunc(d.Chains, func(o *DraftChain) bool { return !o.Base && o.Name > name })
	if at < 0 {
		at = len(d.Chains)
	}
	d.Chains = slices.Insert(d.Chains, at, c)
	return c
}

// Accept makes a rule that accepts.
func (d *Draft) Accept(c Conditions) *DraftRule { return d.rule(c, verdictTarget(Accept)) }

// Jump makes a rule that jumps to a chain.
func (d *Draft) Jump(to *DraftChain, c Conditions) *DraftRule {
	r := d.rule(c, verdictTarget(0))
	r.To = to
	return r
}

func (d *Draft) rule(c Conditions, target Extension) *DraftRule {
	return &DraftRule{raw: c.entry(d.old.Family, target), Old: -1}
}

// Table builds the table. from has for each entry its index in the old table; -1: it is new.
func (d *Draft) Table() (next *Table, from []int, err error) {
	t := d.old
	next = &Table{Family: t.Family, Name: t.Name, ValidHooks: t.ValidHooks}
	starts := make(map[*DraftChain]uint32)
	var rules []*DraftRule
	add := func(r *DraftRule) (offset uint32) {
		offset = next.Size
		next.Entries = append(next.Entries, Entry{Offset: offset, Raw: r.raw})
		rules, from = append(rules, r), append(from, r.Old)
		next.Size += uint32(len(r.raw))
		return offset
	}
	for _, c := range d.Chains {
		if !c.Base {
			add(c.head)
		}
		starts[c] = next.Size
		for _, r := range c.Rules {
			add(r)
		}
		end := add(c.end)
		if h := slices.Index(hookNames[:], c.Name); c.Base {
			next.HookEntry[h], next.Underflow[h] = starts[c], end
		}
	}
	last := len(t.Entries) - 1
	add(&DraftRule{raw: bytes.Clone(t.Entries[last].Raw), Old: last})
	for i, r := range rules {
		e := &next.Entries[i]
		switch place, known := starts[r.To]; {
		case r.next:
			e.SetVerdict(t.Family, e.Offset+uint32(len(e.Raw)))
		case r.To != nil && !known:
			return nil, nil, fmt.Errorf("a rule that stays jumps to chain %s, which does not", r.To.Name)
		case r.To != nil:
			e.SetVerdict(t.Family, place)
		}
	}
	if next.Size > maxTableSize {
		return nil, nil, errors.New("the table is too large")
	}
	blob := make([]byte, 0, next.Size)
	for _, e := range next.Entries {
		blob = append(blob, e.Raw...)
	}
	return next, from, next.ParseEntries(blob)
}

// maxTableSize keeps verdicts, which are signed, from overflowing.
const maxTableSize = 1 << 30
