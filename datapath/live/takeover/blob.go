package takeover

import (
	"fmt"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
)

// legacyTable returns the parts of a legacy table that plan uses. The ids of its rules are the
// offsets of their entries.
func legacyTable(b *xtables.Table) (*table, error) {
	chains, err := b.Chains()
	if err != nil {
		return nil, err
	}
	t := &table{Place: xtables.Place{Backend: xtables.Legacy, Family: b.Family, Table: b.Name}, chains: make(map[string]*chain)}
	for _, of := range chains {
		c := &chain{base: of.Base}
		for _, e := range of.Rules {
			r := rule{id: uint64(e.Offset)}
			to, err := e.To()
			if err != nil {
				return nil, fmt.Errorf("chain %s: %w", of.Name, err)
			}
			if to != "" {
				r.targets = []string{to}
			}
			c.rules = append(c.rules, r)
		}
		t.chains[of.Name] = c
	}
	return t, nil
}

// without is the table without the chains and jumps of a removal.
func without(b *xtables.Table, r *removal) (*xtables.Draft, error) {
	d, err := b.Draft()
	if err != nil {
		return nil, err
	}
	gone := make(map[uint64]bool)
	for _, j := range r.jumps {
		gone[j.id] = true
	}
	for _, c := range d.Chains {
		c.Rules = slices.DeleteFunc(c.Rules, func(rl *xtables.DraftRule) bool { return gone[uint64(b.Entries[rl.Old()].Offset)] })
	}
	for _, name := range r.chains {
		if c := d.Chain(name); c != nil && !c.Base {
			d.DeleteChain(c)
		}
	}
	return d, nil
}
