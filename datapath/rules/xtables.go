package rules

import (
	"encoding/binary"
	"net/netip"
)

// This file is the conditions of iptables' modules as tests of values. The matches of a listing and those that the kernel
// hands out are both made of them.

// Words writes numbers of the machine - marks, bits of a connection's state - as a [Packet] has them: of the kernel's rules in
// the machine's order, of listings in network byte order.
type Words struct{ binary.AppendByteOrder }

// Word is a number of 32 bits.
func (w Words) Word(n uint32) []byte { return w.AppendUint32(nil, n) }

// Is tests whether a value is in one of the ranges.
func Is(v Value, negated bool, ranges ...Range) Compare {
	return Compare{Values: []Value{v}, Ranges: ranges, Negated: negated}
}

// AddressField is the source or the destination in the header of IPv4, or of IPv6.
func AddressField(six, source bool) Payload {
	switch {
	case six && source:
		return Payload{Six: true, Offset: 8, ByteSize: 16}
	case six:
		return Payload{Six: true, Offset: 24, ByteSize: 16}
	case source:
		return Payload{Offset: 12, ByteSize: 4}
	}
	return Payload{Offset: 16, ByteSize: 4}
}

// PortField is the port of the source or the destination, of protocols with ports.
func PortField(source bool) Payload {
	if source {
		return Payload{Transport: true, Offset: 0, ByteSize: 2}
	}
	return Payload{Transport: true, Offset: 2, ByteSize: 2}
}

// FlagsField is the flags of a TCP header.
var FlagsField = Payload{Transport: true, Offset: 13, ByteSize: 1}

// Ports is a range of ports.
func Ports(first, last uint16) Range {
	return Range{First: binary.BigEndian.AppendUint16(nil, first), Last: binary.BigEndian.AppendUint16(nil, last)}
}

// Protocol is the protocol behind the network header.
var Protocol = Meta{Key: "l4proto", ByteSize: 1}

// Marks of the packet and of its connection.
var (
	PacketMark     = Meta{Key: "mark", ByteSize: 4}
	ConnectionMark = Ct{Key: "mark", ByteSize: 4}
)

// IsMasked tests whether a value equals another in the bits of a mask.
func IsMasked(v Value, mask, value []byte, negated bool) Compare {
	return Is(Masked{Of: v, Mask: mask}, negated, Exactly(value))
}

// AnyBit tests whether a number has one of the bits.
func AnyBit(v Value, bits []byte, negated bool) Compare {
	return IsMasked(v, bits, make([]byte, len(bits)), !negated)
}

// ConnectionField is a value of one direction of the connection: "saddr", "daddr", "proto-src", "proto-dst".
func ConnectionField(key string, reply bool, size int) Ct {
	return Ct{Key: key, Reply: reply, Directed: true, ByteSize: size}
}

// Direction tests in which direction of its connection the packet goes.
func Direction(reply bool) Compare {
	want := []byte{0}
	if reply {
		want[0] = 1
	}
	return Is(Ct{Key: "direction", ByteSize: 1}, false, Exactly(want))
}

// Status tests whether the connection has one of the bits of enum ip_conntrack_status.
func (w Words) Status(bits uint32, negated bool) Compare {
	return AnyBit(Ct{Key: "status", ByteSize: 4}, w.Word(bits), negated)
}

// The bits of --ctstate are those of nft's "ct state"; that of untracked packets, SNAT and DNAT come from elsewhere
// (xt_conntrack.h).
const (
	xtStateSNAT, xtStateDNAT = 1 << 6, 1 << 7 // XT_CONNTRACK_STATE_SNAT, XT_CONNTRACK_STATE_DNAT
	xtStateUntracked         = 1 << 8         // XT_CONNTRACK_STATE_UNTRACKED
	stateUntracked           = 1 << 6         // NF_CT_STATE_UNTRACKED_BIT
	statusSNAT, statusDNAT   = 1 << 4, 1 << 5 // IPS_SRC_NAT, IPS_DST_NAT
)

// States tests whether the packet has one of the states, with the bits of --ctstate (XT_CONNTRACK_STATE_...).
func (w Words) States(states uint32, negated bool) Test {
	bits := states & 0xf
	if states&xtStateUntracked != 0 {
		bits |= stateUntracked
	}
	status := uint32(0)
	if states&xtStateSNAT != 0 {
		status |= statusSNAT
	}
	if states&xtStateDNAT != 0 {
		status |= statusDNAT
	}
	state := Ct{Key: "state", ByteSize: 4}
	if status == 0 {
		return AnyBit(state, w.Word(bits), negated)
	}
	return Any{Tests: []Test{AnyBit(state, w.Word(bits), false), w.Status(status, false)}, Negated: negated}
}

// Network tests whether an address is in a network, whose mask need not be a prefix. Both are of the family of v.
func Network(v Value, a, mask netip.Addr, negated bool) Compare {
	return IsMasked(v, mask.AsSlice(), a.AsSlice(), negated)
}
