package xtables

import (
	"encoding/binary"

	"github.com/nfqproxy/nfqproxy/datapath/iptables"
)

// Bits of xt_conntrack.h, XT_CONNTRACK_...
const (
	ctState = 1 << iota
	ctProtocol
	ctOriginalSource
	ctOriginalDestination
	ctReplySource
	ctReplyDestination
	ctStatus
	ctExpires
	ctOriginalSourcePort
	ctOriginalDestinationPort
	ctReplySourcePort
	ctReplyDestinationPort
	ctDirection
	ctStateAlias
)

// conntrack reads struct xt_conntrack_mtinfo1 to 3. The second widens the masks; the
// third has ranges of ports, in the order of the host.
func conntrack(r reader, rev uint8) iptables.Match {
	flags, inverted := uint32(r.u16(146)), uint32(r.u16(148))
	states, status := uint16(r.u8(150)), uint16(0)
	if rev == 1 {
		status = uint16(r.u8(151))
	} else {
		states, status = r.u16(150), r.u16(152)
	}
	// "-m state" is kept as a conntrack match.
	if flags == ctState|ctStateAlias {
		return iptables.State{States: iptables.States(states), Negated: inverted&ctState != 0}
	}
	ports := func(i int) iptables.PortRange {
		if rev == 3 {
			return iptables.PortRange{First: r.u16(138 + 2*i), Last: r.u16(154 + 2*i)}
		}
		p := binary.BigEndian.Uint16(r.data[138+2*i:])
		return iptables.PortRange{First: p, Last: p}
	}
	m := iptables.Conntrack{
		State:                   given(flags, inverted, ctState, iptables.States(states)),
		Protocol:                given(flags, inverted, ctProtocol, uint8(r.u16(136))),
		OriginalSource:          given(flags, inverted, ctOriginalSource, r.network(0)),
		OriginalDestination:     given(flags, inverted, ctOriginalDestination, r.network(32)),
		ReplySource:             given(flags, inverted, ctReplySource, r.network(64)),
		ReplyDestination:        given(flags, inverted, ctReplyDestination, r.network(96)),
		OriginalSourcePort:      given(flags, inverted, ctOriginalSourcePort, ports(0)),
		OriginalDestinationPort: given(flags, inverted, ctOriginalDestinationPort, ports(1)),
		ReplySourcePort:         given(flags, inverted, ctReplySourcePort, ports(2)),
		ReplyDestinationPort:    given(flags, inverted, ctReplyDestinationPort, ports(3)),
		Status:                  given(flags, inverted, ctStatus, iptables.CtStatus(status)),
		Expire:                  given(flags, inverted, ctExpires, iptables.Range[uint32]{First: r.u32(128), Last: r.u32(132)}),
	}
	if flags&ctDirection != 0 {
		// A direction is not negated but turned round.
		m.Direction = iptables.Condition[iptables.Direction]{Given: true, Value: iptables.Original}
		if inverted&ctDirection != 0 {
			m.Direction.Value = iptables.Reply
		}
	}
	return m
}

// state reads struct xt_state_info, which kernels before 3.x had a module for; its bit of
// untracked packets is another one (xt_state.h, XT_STATE_UNTRACKED).
func state(r reader) (iptables.Match, bool) {
	const untracked = 1 << 6
	const known = iptables.StateInvalid | iptables.StateEstablished | iptables.StateRelated | iptables.StateNew
	mask := r.u32(0)
	states := iptables.States(mask) & known
	if mask&untracked != 0 {
		states |= iptables.StateUntracked
	}
	return iptables.State{States: states}, mask&^(untracked|uint32(known)) == 0
}

// sctp reads struct xt_sctp_info. Its map has 64 words, of which 8 are enough for all types.
func sctp(r reader) (iptables.Match, bool) {
	const source, destination, chunks = 1, 2, 4 // XT_SCTP_...
	flags, inverted := r.u32(284), r.u32(288)
	any := iptables.Ports{Range: iptables.PortRange{First: 0, Last: 65535}}
	m := iptables.SCTP{Source: any, Destination: any}
	if flags&source != 0 {
		m.Source = iptables.Ports{Range: r.ports(4), Negated: inverted&source != 0}
	}
	if flags&destination != 0 {
		m.Destination = iptables.Ports{Range: r.ports(0), Negated: inverted&destination != 0}
	}
	if flags&chunks == 0 {
		return m, true
	}
	test := iptables.ChunkTest{}
	switch r.u32(264) { // SCTP_CHUNK_MATCH_...
	case 1:
		test.Mode = iptables.ChunksAny
	case 2:
		test.Mode = iptables.ChunksAll
	case 4:
		test.Mode = iptables.ChunksOnly
	default:
		return nil, false
	}
	count := int(int32(r.u32(280)))
	if count < 0 || count > 4 { // XT_NUM_SCTP_FLAGS
		return nil, false
	}
	for typ := range 256 {
		if r.u32(8+4*(typ/32))&(1<<(typ%32)) == 0 {
			continue
		}
		c := iptables.ChunkType{Type: uint8(typ)}
		for i := range count {
			if at := 268 + 3*i; r.u8(at) == c.Type {
				c.Flags, c.FlagMask = r.u8(at+1), r.u8(at+2)
			}
		}
		test.Types = append(test.Types, c)
	}
	m.Chunks = iptables.Condition[iptables.ChunkTest]{Given: true, Negated: inverted&chunks != 0, Value: test}
	return m, true
}

// ipset reads struct xt_set_info_match_v1, v3 and v4 (xt_set.h).
func ipset(r reader, rev uint8) (iptables.Match, bool) {
	const (
		maxDimensions  = 6      // IPSET_DIM_MAX
		keepCounters   = 1 << 3 // IPSET_FLAG_SKIP_COUNTER_UPDATE
		keepSub        = 1 << 4 // IPSET_FLAG_SKIP_SUBCOUNTER_UPDATE
		returnNomatch  = 1 << 7 // IPSET_FLAG_RETURN_NOMATCH, and IPSET_RETURN_NOMATCH of v2
		invertSelf     = 1 << 0 // IPSET_INV_MATCH
		matchesCounter = 1 << 5 // IPSET_FLAG_MATCH_COUNTERS
	)
	dimensions, flags := int(r.u8(2)), r.u8(3)
	if dimensions > maxDimensions || r.set == nil {
		return nil, false
	}
	name, ok := r.set(r.u16(0))
	m := iptables.SetMatch{Set: name, Negated: flags&invertSelf != 0, ReturnNomatch: rev == 2 && flags&returnNomatch != 0}
	for i := 1; i <= dimensions; i++ {
		d := iptables.SetDestination
		if flags&(1<<i) != 0 {
			d = iptables.SetSource
		}
		m.Directions = append(m.Directions, d)
	}
	if rev < 3 {
		return m, ok
	}
	more := r.u32(40)
	m.ReturnNomatch, m.KeepCounters, m.KeepSubcounters = more&returnNomatch != 0, more&keepCounters != 0, more&keepSub != 0
	test := func(at int) iptables.CounterTest {
		operation, value := at, at+8 // struct ip_set_counter_match0
		if rev == 4 {
			operation, value = at+8, at // struct ip_set_counter_match
		}
		if c := iptables.Comparison(r.u8(operation)); c != iptables.CompareNone && more&matchesCounter != 0 {
			ok = ok && c <= iptables.CompareGreater
			return iptables.CounterTest{Compare: c, Value: r.u64(value)}
		}
		return iptables.CounterTest{}
	}
	m.Packets, m.Bytes = test(8), test(24)
	return m, ok
}
