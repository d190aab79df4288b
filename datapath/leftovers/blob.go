package leftovers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// A table of iptables' legacy back end is one piece of memory: entries one after the
// other, each a rule. Chains are ranges of entries; places are offsets into the whole.
// The layouts are those of struct ipt_entry and ip6t_entry (linux/netfilter_ipv4/ip_tables.h,
// linux/netfilter_ipv6/ip6_tables.h) on machines of 64 bits.

const (
	hooks        = 5  // NF_INET_NUMHOOKS
	targetHeader = 32 // sizeof(struct xt_entry_target)
	counterSize  = 16 // sizeof(struct xt_counters)
	// standardTarget is the name of the target with a verdict: accept, drop, return, jump
	// or on to the next rule. errorTarget heads a chain, or ends the table.
	standardTarget, errorTarget = "", "ERROR"
)

// layout is what differs between the families.
type layout struct {
	header       int // sizeof the entry without matches and target
	targetOffset int // offset of target_offset, which next_offset follows
}

func (f family) layout() layout {
	if f == ipv4 {
		return layout{header: 112, targetOffset: 88}
	}
	return layout{header: 168, targetOffset: 140}
}

var hookNames = [hooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// byteOrder is the machine's.
var byteOrder = binary.NativeEndian

// blob is a table as the kernel gives and takes it.
type blob struct {
	family               family
	name                 string
	validHooks           uint32
	hookEntry, underflow [hooks]uint32
	entries              []entry
	size                 uint32
}

// entry is one rule or chain head.
type entry struct {
	offset  uint32
	raw     []byte // with next_offset its length
	target  string // the name of the target
	verdict int32  // valid iff target is standardTarget
	head    string // the chain's name, valid iff target is errorTarget
}

// jump is the offset that the entry goes to, if it goes anywhere.
func (e *entry) jump() (uint32, bool) {
	return uint32(e.verdict), e.target == standardTarget && e.verdict >= 0
}

// parseEntries takes the memory apart; it trusts no length in it.
func (b *blob) parseEntries(data []byte) error {
	l := b.family.layout()
	b.entries, b.size = nil, uint32(len(data))
	for offset := 0; offset < len(data); {
		rest := data[offset:]
		bad := func() error { return fmt.Errorf("the entry at %d is malformed", offset) }
		if len(rest) < l.header {
			return bad()
		}
		target := int(byteOrder.Uint16(rest[l.targetOffset:]))
		next := int(byteOrder.Uint16(rest[l.targetOffset+2:]))
		if target < l.header || next < target+targetHeader || next > len(rest) || next%8 != 0 {
			return bad()
		}
		e := entry{offset: uint32(offset), raw: rest[:next:next]}
		t := e.raw[target:]
		// u16 size, 29 bytes of name, u8 revision; then the target's own data.
		e.target = cString(t[2 : 2+29])
		switch e.target {
		case standardTarget:
			if len(t) < targetHeader+4 {
				return bad()
			}
			e.verdict = int32(byteOrder.Uint32(t[targetHeader:]))
		case errorTarget:
			e.head = cString(t[targetHeader:])
		}
		b.entries = append(b.entries, e)
		offset += next
	}
	if n := len(b.entries); n == 0 || b.entries[n-1].target != errorTarget {
		return errors.New("the table has no end")
	}
	return nil
}

// setVerdict changes the raw bytes.
func (e *entry) setVerdict(f family, verdict uint32) {
	target := byteOrder.Uint16(e.raw[f.layout().targetOffset:])
	byteOrder.PutUint32(e.raw[int(target)+targetHeader:], verdict)
}

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// span is a chain's range of entries, by index: from its first rule up to end. Its last
// entry is the policy of a base chain, or the return at the end of another.
type span struct {
	name       string
	base       bool
	first, end int
}

// spans finds the chains.
func (b *blob) spans() ([]span, error) {
	index := make(map[uint32]int, len(b.entries))
	for i := range b.entries {
		index[b.entries[i].offset] = i
	}
	var spans []span
	for h := range hooks {
		if b.validHooks&(1<<h) == 0 {
			continue
		}
		first, ok1 := index[b.hookEntry[h]]
		last, ok2 := index[b.underflow[h]]
		if !ok1 || !ok2 || last < first {
			return nil, fmt.Errorf("base chain %s is malformed", hookNames[h])
		}
		spans = append(spans, span{hookNames[h], true, first, last + 1})
	}
	for i := 0; i < len(b.entries)-1; i++ {
		if b.entries[i].target != errorTarget {
			continue
		}
		end := i + 1
		for b.entries[end].target != errorTarget {
			end++ // the last entry is one
		}
		spans = append(spans, span{b.entries[i].head, false, i + 1, end})
	}
	return spans, nil
}

// table gives the part of a table that planning is about.
func (b *blob) table() (*table, error) {
	spans, err := b.spans()
	if err != nil {
		return nil, err
	}
	t := &table{backend: legacy, family: b.family, name: b.name, chains: make(map[string]*chain)}
	starts := make(map[uint32]string)
	for _, s := range spans {
		if !s.base && s.first < s.end {
			starts[b.entries[s.first].offset] = s.name
		}
	}
	for _, s := range spans {
		c := &chain{base: s.base}
		for i := s.first; i < s.end-1; i++ {
			e := &b.entries[i]
			r := rule{id: uint64(e.offset)}
			// A rule without a target "jumps" to the one after it.
			if to, ok := e.jump(); ok && to != e.offset+uint32(len(e.raw)) {
				name, ok := starts[to]
				if !ok {
					return nil, fmt.Errorf("chain %s: a rule jumps to %d, where no chain begins", s.name, to)
				}
				r.targets = []string{name}
			}
			c.rules = append(c.rules, r)
		}
		t.chains[s.name] = c
	}
	return t, nil
}

// without gives the table without the chains and jumps of a removal, and for each
// entry of it the index it had. All else is byte for byte as it was, but for
// the places that rules and hooks refer to.
func (b *blob) without(r *removal) (*blob, []int, error) {
	spans, err := b.spans()
	if err != nil {
		return nil, nil, err
	}
	gone := make([]bool, len(b.entries))
	for _, name := range r.chains {
		for _, s := range spans {
			if s.name == name && !s.base {
				for i := s.first - 1; i < s.end; i++ { // with its head
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
	places := make(map[uint32]uint32, len(b.entries)+1)
	dead := make(map[uint32]bool)
	next := &blob{family: b.family, name: b.name, validHooks: b.validHooks}
	var from []int
	for i, e := range b.entries {
		places[e.offset] = next.size
		dead[e.offset] = gone[i]
		if gone[i] || byOffset[e.offset] {
			continue
		}
		kept := e
		kept.offset, kept.raw = next.size, bytes.Clone(e.raw)
		next.entries, from = append(next.entries, kept), append(from, i)
		next.size += uint32(len(e.raw))
	}
	for i := range next.entries {
		e := &next.entries[i]
		to, ok := e.jump()
		if !ok {
			continue
		}
		place, known := places[to]
		if !known || dead[to] {
			return nil, nil, fmt.Errorf("a rule that stays goes to %d, which does not", to)
		}
		e.verdict = int32(place)
		e.setVerdict(b.family, place)
	}
	for h := range hooks {
		if b.validHooks&(1<<h) != 0 {
			next.hookEntry[h], next.underflow[h] = places[b.hookEntry[h]], places[b.underflow[h]]
		}
	}
	return next, from, nil
}
