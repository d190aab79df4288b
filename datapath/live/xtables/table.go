// Package xtables handles the tables of iptables' legacy back end as the kernel keeps them: it
// reads ([Chains]) and edits them as a whole ([Edit]). Their matches and targets are
// extensions with name, revision and bytes ([Extension]), which iptables' nft back end also has,
// in its expressions "match" and "target".
//
// The layouts are those of the kernel's headers for user space (linux/netfilter/x_tables.h,
// xt_*.h, linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h) on machines of 64
// bits. No length or offset from outside is trusted.
package xtables

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

const (
	// hooks is NF_INET_NUMHOOKS.
	hooks = 5
	// StandardTarget is the name of the target with a verdict: accept, drop, return, jump
	// or on to the next rule.
	StandardTarget = ""
	// ErrorTarget is the name of the target that heads a chain, or ends the table.
	ErrorTarget = "ERROR"

	extensionHeader = 32 // sizeof(struct xt_entry_target), and xt_entry_match
	counterSize     = 16 // sizeof(struct xt_counters)
)

// layout is the differences between the families.
type layout struct {
	generic      int // sizeof struct ipt_ip, ip6t_ip6, which is at the beginning
	protocol     int // the offset of the protocol in it
	header       int // sizeof the entry without matches and target
	targetOffset int // offset of target_offset, which next_offset follows
}

func layoutOf(f decision.Family) layout {
	if f == decision.IPv6 {
		return layout{generic: 136, protocol: 128, header: 168, targetOffset: 140}
	}
	return layout{generic: 84, protocol: 80, header: 112, targetOffset: 88}
}

var hookNames = [hooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// byteOrder is the machine's.
var byteOrder = binary.NativeEndian

// Table is a table of the legacy back end in the kernel's form: entries one after the other, each
// a rule. Chains are ranges of entries; positions are offsets into the whole.
type Table struct {
	Family decision.Family
	Name   string
	// ValidHooks has a bit for each hook that the table has a base chain for.
	ValidHooks uint32
	// HookEntry and Underflow are the offsets of the first and the last entry (the policy) of each
	// base chain.
	HookEntry, Underflow [hooks]uint32
	Entries              []Entry
	Size                 uint32 // of all entries, in bytes
}

// ParseEntries parses the memory and sets Entries and Size.
func (t *Table) ParseEntries(data []byte) error {
	l := layoutOf(t.Family)
	t.Entries, t.Size = nil, uint32(len(data))
	for offset := 0; offset < len(data); {
		rest := data[offset:]
		bad := func() error { return fmt.Errorf("the entry at %d is malformed", offset) }
		if len(rest) < l.header {
			return bad()
		}
		target := int(byteOrder.Uint16(rest[l.targetOffset:]))
		next := int(byteOrder.Uint16(rest[l.targetOffset+2:]))
		if target < l.header || next < target+extensionHeader || next > len(rest) || next%8 != 0 {
			return bad()
		}
		e := Entry{Offset: uint32(offset), Raw: rest[:next:next]}
		data := e.Raw[target:]
		// u16 size, 29 bytes of name, u8 revision; then the target's own data.
		e.Target = cString(data[2 : 2+29])
		switch e.Target {
		case StandardTarget:
			if len(data) < extensionHeader+4 {
				return bad()
			}
			e.Verdict = int32(byteOrder.Uint32(data[extensionHeader:]))
		case ErrorTarget:
			e.Head = cString(data[extensionHeader:])
		}
		t.Entries = append(t.Entries, e)
		offset += next
	}
	if n := len(t.Entries); n == 0 || t.Entries[n-1].Target != ErrorTarget {
		return errors.New("the table has no end")
	}
	return nil
}

func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// Chain is a chain of a table.
type Chain struct {
	Name  string
	Base  bool
	Rules []Rule
	End   Rule // the policy of a base chain, or the return at the end of another

	head Rule // names the chain; not valid for a base chain
}

// Rule is the entry of a rule.
type Rule struct {
	*Entry
	To  *Chain // the chain that the rule jumps to; nil: none
	Old int    // the index of the entry in the table that was read; -1: it is new
}

// Chains finds the chains, the built-in ones first.
func (t *Table) Chains() ([]*Chain, error) {
	index := func(offset uint32) (int, bool) {
		return slices.BinarySearchFunc(t.Entries, offset, func(e Entry, offset uint32) int { return cmp.Compare(e.Offset, offset) })
	}
	var chains []*Chain
	starts := make(map[uint32]*Chain) // by the offsets that jumps to them have
	rule := func(i int) Rule { return Rule{Entry: &t.Entries[i], Old: i} }
	add := func(name string, base bool, first, end int) {
		c := &Chain{Name: name, Base: base, End: rule(end - 1)}
		for i := first; i < end-1; i++ {
			c.Rules = append(c.Rules, rule(i))
		}
		if !base {
			c.head, starts[t.Entries[first].Offset] = rule(first-1), c
		}
		chains = append(chains, c)
	}
	for h := range hooks {
		if t.ValidHooks&(1<<h) == 0 {
			continue
		}
		first, ok1 := index(t.HookEntry[h])
		last, ok2 := index(t.Underflow[h])
		if !ok1 || !ok2 || last < first {
			return nil, fmt.Errorf("base chain %s is malformed", hookNames[h])
		}
		add(hookNames[h], true, first, last+1)
	}
	for i := 0; i < len(t.Entries)-1; i++ {
		if t.Entries[i].Target != ErrorTarget {
			continue
		}
		end := i + 1
		for t.Entries[end].Target != ErrorTarget {
			end++ // the last entry is one
		}
		if end == i+1 {
			return nil, fmt.Errorf("chain %s has no end", t.Entries[i].Head)
		}
		add(t.Entries[i].Head, false, i+1, end)
	}
	for _, c := range chains {
		for i := range c.Rules {
			r := &c.Rules[i]
			to := uint32(r.Verdict)
			if !r.jumps() || to == r.Offset+uint32(len(r.Raw)) {
				continue
			}
			if r.To = starts[to]; r.To == nil {
				return nil, fmt.Errorf("chain %s, rule %d: a jump to %d, where no chain begins", c.Name, i+1, to)
			}
		}
	}
	return chains, nil
}

// Backend is a back end of the iptables programs.
type Backend string

// The back ends.
const (
	Legacy Backend = "legacy" // x_tables
	NFT    Backend = "nft"    // nftables' tables with the names of iptables
)

// Place is one table of iptables.
type Place struct {
	Backend Backend
	Family  decision.Family
	Table   string
}

// String describes the table.
func (p Place) String() string {
	return fmt.Sprintf("iptables (%s), %s, table %s", p.Backend, p.Family, p.Table)
}
