package leftovers

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/xtables"
)

// byteOrder is the machine's.
var byteOrder = binary.NativeEndian

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

// without gives the table without the chains and jumps of a removal, and for each
// entry of it the index it had. All else is byte for byte as it was, but for
// the places that rules and hooks refer to.
func (b *blob) without(r *removal) (*blob, []int, error) {
	spans, err := b.Spans()
	if err != nil {
		return nil, nil, err
	}
	gone := make([]bool, len(b.Entries))
	for _, name := range r.chains {
		for _, s := range spans {
			if s.Name == name && !s.Base {
				for i := s.First - 1; i < s.End; i++ { // with its head
					gone[i] = true
				}
			}
		}
	}
	byOffset := make(map[uint32]bool)
	for _, j := range r.jumps {
		byOffset[uint32(j.id)] = true
	}
	// places maps old offsets to new ones; what is gone, to what comes after it.
	places := make(map[uint32]uint32, len(b.Entries)+1)
	dead := make(map[uint32]bool)
	next := &blob{b.family, xtables.Table{Family: b.Family, Name: b.Name, ValidHooks: b.ValidHooks}}
	var from []int
	for i, e := range b.Entries {
		places[e.Offset] = next.Size
		dead[e.Offset] = gone[i]
		if gone[i] || byOffset[e.Offset] {
			continue
		}
		kept := e
		kept.Offset, kept.Raw = next.Size, bytes.Clone(e.Raw)
		next.Entries, from = append(next.Entries, kept), append(from, i)
		next.Size += uint32(len(e.Raw))
	}
	for i := range next.Entries {
		e := &next.Entries[i]
		to, ok := e.Jump()
		if !ok {
			continue
		}
		place, known := places[to]
		if !known || dead[to] {
			return nil, nil, fmt.Errorf("a rule that stays goes to %d, which does not", to)
		}
		e.Verdict = int32(place)
		e.SetVerdict(b.Family, place)
	}
	for h := range xtables.Hooks {
		if b.ValidHooks&(1<<h) != 0 {
			next.HookEntry[h], next.Underflow[h] = places[b.HookEntry[h]], places[b.Underflow[h]]
		}
	}
	return next, from, nil
}
