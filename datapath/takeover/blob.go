package takeover

import (
	"fmt"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/xtables"
)

// blob is a table of iptables' legacy back end.
type blob struct {
	family family
	xtables.Table
}

// table gives the part of a table that planning is about.
func (b *blob) table() (*table, error) {
	spans, err := b.Spans()
	if err != nil {
		return nil, err
	}
	t := &table{backend: legacy, family: b.family, name: b.Name, chains: make(map[string]*chain)}
	starts := b.Starts(spans)
	for _, s := range spans {
		c := &chain{base: s.Base}
		for i := s.First; i < s.End-1; i++ {
			e := &b.Entries[i]
			r := rule{id: uint64(e.Offset)}
			// A rule without a target "jumps" to the one after it.
			if to, ok := e.Jump(); ok && to != e.Offset+uint32(len(e.Raw)) {
				name, ok := starts[to]
				if !ok {
					return nil, fmt.Errorf("chain %s: a rule jumps to %d, where no chain begins", s.Name, to)
				}
				r.targets = []string{name}
			}
			c.rules = append(c.rules, r)
		}
		t.chains[s.Name] = c
	}
	return t, nil
}

// without is the table without the chains and jumps of a removal.
func (b *blob) without(r *removal) (*xtables.Draft, error) {
	d, err := b.Draft()
	if err != nil {
		return nil, err
	}
	// The ids of a table's jumps are the offsets of its entries.
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
