package rules

// This file is what rules of iptables compare, read from a listing or from the kernel.

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

// Properties of a packet and of its connection.
var (
	Protocol   = Meta{Key: "l4proto", ByteSize: 1} // behind the network header
	Length     = Meta{Key: "length", ByteSize: 4}
	PacketMark = Meta{Key: "mark", ByteSize: 4}
	InDevice   = Meta{Key: "iifname", ByteSize: DeviceSize}
	OutDevice  = Meta{Key: "oifname", ByteSize: DeviceSize}
	LinkType   = Meta{Key: "pkttype", ByteSize: 1} // PACKET_... (if_packet.h)

	ConnectionState     = Ct{Key: "state", ByteSize: 4}  // bits: NF_CT_STATE_BIT (nf_conntrack_common.h)
	ConnectionStatus    = Ct{Key: "status", ByteSize: 4} // bits: enum ip_conntrack_status
	ConnectionMark      = Ct{Key: "mark", ByteSize: 4}
	ConnectionDirection = Ct{Key: "direction", ByteSize: 1}
)

// ConnectionField is a property of one direction of the connection: "saddr", "daddr", "proto-src", "proto-dst", "protocol".
func ConnectionField(key string, reply bool, size int) Ct {
	return Ct{Key: key, Reply: reply, Directed: true, ByteSize: size}
}

// StateBits splits the states of --ctstate (XT_CONNTRACK_STATE_..., xt_conntrack.h) into bits of [ConnectionState] and of
// [ConnectionStatus]. The packet has one of the states if it has one of all these bits.
func StateBits(states uint32) (state, status uint32) {
	const snat, dnat, untracked = 1 << 6, 1 << 7, 1 << 8 // XT_CONNTRACK_STATE_SNAT, _DNAT and _UNTRACKED
	state = states & 0xf
	if states&untracked != 0 {
		state |= 1 << 6 // NF_CT_STATE_UNTRACKED_BIT
	}
	if states&snat != 0 {
		status |= 1 << 4 // IPS_SRC_NAT
	}
	if states&dnat != 0 {
		status |= 1 << 5 // IPS_DST_NAT
	}
	return state, status
}
