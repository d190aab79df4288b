package hostrules

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// compareCt translates comparisons of the packet's connection.
func (t *translator) compareCt(l *load, in interval, negated bool) answer {
	n, number := in.native()
	switch l.key {
	case unix.NFT_CT_STATE:
		return compareBits(l, n, number, negated, ctStates)
	case unix.NFT_CT_STATUS:
		return compareBits(l, n, number, negated, ctStatus)
	case unix.NFT_CT_MARK:
		if number {
			return matching(iptables.Connmark{Mark: iptables.MaskedValue{Value: n, Mask: l.nativeMask()}, Negated: negated})
		}
	case unix.NFT_CT_DIRECTION:
		if l.size == 1 && l.mask == nil && in.single() && in.first[0] <= 1 {
			d := iptables.Direction(in.first[0])
			if negated {
				d = 1 - d
			}
			return matching(iptables.Conntrack{Direction: iptables.Condition[iptables.Direction]{Given: true, Value: d}})
		}
	case unix.NFT_CT_PROTOCOL:
		if l.size == 1 && l.mask == nil && in.single() {
			return matching(iptables.Conntrack{Protocol: iptables.Condition[uint8]{Given: true, Negated: negated, Value: in.first[0]}})
		}
	case unix.NFT_CT_PROTO_SRC, unix.NFT_CT_PROTO_DST:
		if l.size == 2 && l.mask == nil {
			return ctPort(l, iptables.Condition[iptables.PortRange]{Given: true, Negated: negated, Value: portRange(in)})
		}
	case unix.NFT_CT_SRC, unix.NFT_CT_DST, ctSrcIP, ctDstIP, ctSrcIP6, ctDstIP6:
		return t.ctAddress(l, in, negated)
	}
	return unknownAnswer
}

// ctStates translates bits of "ct state" (nf_conntrack_common.h, NF_CT_STATE_BIT): but for
// that of untracked packets they are those of the module.
func ctStates(bits uint32, negated bool) (iptables.Conntrack, bool) {
	const untracked = 1 << 6 // NF_CT_STATE_UNTRACKED_BIT
	const same = iptables.StateInvalid | iptables.StateEstablished | iptables.StateRelated | iptables.StateNew
	s := iptables.States(bits) & same
	if bits&untracked != 0 {
		s |= iptables.StateUntracked
	}
	return iptables.Conntrack{State: iptables.Condition[iptables.States]{Given: true, Negated: negated, Value: s}}, bits&^(untracked|uint32(same)) == 0
}

// ctStatus translates bits of "ct status" (IPS_...). A translated connection is a state in
// iptables' terms.
func ctStatus(bits uint32, negated bool) (iptables.Conntrack, bool) {
	const snat, dnat = 1 << 4, 1 << 5 // IPS_SRC_NAT, IPS_DST_NAT
	const status = iptables.StatusExpected | iptables.StatusSeenReply | iptables.StatusAssured | iptables.StatusConfirmed
	if bits&^(snat|dnat) == 0 {
		var s iptables.States
		if bits&snat != 0 {
			s |= iptables.StateSNAT
		}
		if bits&dnat != 0 {
			s |= iptables.StateDNAT
		}
		return iptables.Conntrack{State: iptables.Condition[iptables.States]{Given: true, Negated: negated, Value: s}}, true
	}
	return iptables.Conntrack{Status: iptables.Condition[iptables.CtStatus]{Given: true, Negated: negated, Value: iptables.CtStatus(bits)}}, bits&^uint32(status) == 0
}

// compareBits translates a test whether any of some bits is set ("& mask != 0"), or none ("== 0");
// or, without a mask, a test of the state, a value with one bit.
func compareBits(l *load, n uint32, number, negated bool, translate func(bits uint32, negated bool) (iptables.Conntrack, bool)) answer {
	bits := n
	switch {
	case !number:
		return unknownAnswer
	case len(l.mask) == 4:
		bits = l.nativeMask()
		switch {
		case n == 0:
			negated = !negated
		case n != bits || bits&(bits-1) != 0: // all of several bits
			return unknownAnswer
		}
	case l.key != unix.NFT_CT_STATE || bits&(bits-1) != 0:
		return unknownAnswer
	}
	if bits == 0 {
		return unknownAnswer
	}
	m, ok := translate(bits, negated)
	if !ok {
		return unknownAnswer
	}
	return matching(m)
}

func ctPort(l *load, c iptables.Condition[iptables.PortRange]) answer {
	var m iptables.Conntrack
	ports := [2][2]*iptables.Condition[iptables.PortRange]{{&m.OriginalSourcePort, &m.OriginalDestinationPort}, {&m.ReplySourcePort, &m.ReplyDestinationPort}}
	if !setField(l, l.key == unix.NFT_CT_PROTO_SRC, ports, c) {
		return unknownAnswer
	}
	return matching(m)
}

// setField sets one of the fields for the original and the reply direction, each for the source and
// the destination; false: the load has no direction.
func setField[T any](l *load, source bool, fields [2][2]*T, value T) bool {
	if l.direction != 0 && l.direction != 1 {
		return false
	}
	field := fields[l.direction][1]
	if source {
		field = fields[l.direction][0]
	}
	*field = value
	return true
}

// ctAddress compares a whole address of the connection, or the beginning of one.
func (t *translator) ctAddress(l *load, in interval, negated bool) answer {
	length := 4
	if t.family == iptables.IPv6 {
		length = 16
	}
	keyed := map[uint32]int{ctSrcIP: 4, ctDstIP: 4, ctSrcIP6: 16, ctDstIP6: 16}[l.key]
	switch {
	case keyed != 0 && keyed != length: // the connection is of the other family (nft_ct.c, nft_ct_get_eval)
		return never
	case l.size != length:
		return unknownAnswer
	}
	first, _ := netip.AddrFromSlice(in.first)
	last, _ := netip.AddrFromSlice(in.last)
	var n iptables.Network
	if p, ok := (iptables.AddrRange{First: first, Last: last}).Prefix(); ok {
		n = networkOf(p)
	} else {
		return unknownAnswer
	}
	if l.mask != nil {
		mask, _ := netip.AddrFromSlice(l.mask)
		n = iptables.MaskedNetwork(first, mask)
	}
	c := iptables.Condition[iptables.Network]{Given: true, Negated: negated, Value: n}
	var m iptables.Conntrack
	addresses := [2][2]*iptables.Condition[iptables.Network]{{&m.OriginalSource, &m.OriginalDestination}, {&m.ReplySource, &m.ReplyDestination}}
	source := l.key == unix.NFT_CT_SRC || l.key == ctSrcIP || l.key == ctSrcIP6
	if !setField(l, source, addresses, c) {
		return unknownAnswer
	}
	return matching(m)
}
