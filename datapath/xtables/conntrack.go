package xtables

import (
	"encoding/binary"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
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
