package iptables

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Packet is a packet, unfragmented: connection tracking reassembles fragments before any rule sees
// them (nf_defrag_ipv4.c).
type Packet struct {
	Protocol uint8 // IANA number
	// Source and Destination have ports with TCP, UDP, UDP-Lite, SCTP and DCCP only. The
	// unspecified source of a Local packet means the one that the host selects.
	Source, Destination netip.AddrPort
	// Local: originates on the host itself.
	Local bool
	// InInterface is the input device; empty if Local.
	InInterface string

	ICMPType, ICMPCode uint8    // valid iff ICMP or ICMPv6
	ICMPID             uint16   // of an echo or one of the older queries
	Flags              TCPFlags // valid iff TCP; SYN in the first packet
	TCPOptions         []uint8  // kinds
	MSS                uint16   // valid iff the maximum segment size, 2, is among TCPOptions
	Chunks             []ChunkType

	Length uint16 // with the IP header, in bytes
	TOS    uint8
	TTL    uint8
	Mark   uint32 // of the packet, not of its connection
	// Priority is its class of the traffic control (skb->priority).
	Priority uint32
	CPU      uint32 // the processor that handles it, for rules that match it, which record it

	// Owner is the owner of the sending socket; nil: none.
	Owner *SocketOwner
	// MAC is the source address of its frame; nil: no Ethernet frame.
	MAC  *MACAddress
	Link LinkType
	// PhysIn and PhysOut are the bridge ports of a packet that br_netfilter passes to
	PhysIn, PhysOut string
	Bridged         bool

	// Bytes are those of the packet on arrival, from its IP header on, perhaps truncated; nil:
	// only the other fields are known. If the fields contradict Bytes, the fields are valid.
	Bytes []byte
	// Payload is the payload of the transport protocol; valid iff Bytes is nil. nil: a TCP packet
	// has none, for others it is unknown.
	Payload []byte
	// Supposed are the assumed fields: a rule that matches them records the assumption, or has
	// an unknown result.
	Supposed Facts

	remade bool // Bytes have been changed, but for the transport's checksum
}

// SocketOwner is the user of a socket.
type SocketOwner struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
}

func hasICMP(protocol uint8) bool { return protocol == protoICMP || protocol == protoICMPv6 }

// HasPorts reports whether packets of the protocol have ports.
func HasPorts(protocol uint8) bool {
	switch protocol {
	case protoTCP, protoUDP, protoSCTP, protoDCCP, protoUDPLite:
		return true
	}
	return false
}

// Is4 reports whether it is a packet of IPv4.
func (p *Packet) Is4() bool { return p.Destination.Addr().Is4() }

var protocolNames = map[uint8]string{
	protoICMP: "ICMP", 2: "IGMP", 4: "IP in IP", protoTCP: "TCP", protoUDP: "UDP", protoDCCP: "DCCP", 41: "IPv6 in IP", 47: "GRE",
	50: "ESP", 51: "AH", protoICMPv6: "ICMPv6", 89: "OSPF", 103: "PIM", 112: "VRRP", protoSCTP: "SCTP", protoUDPLite: "UDP-Lite",
}

// ProtocolName returns the usual name of a protocol.
func ProtocolName(n uint8) string {
	if name, ok := protocolNames[n]; ok {
		return name
	}
	return "protocol " + strconv.Itoa(int(n))
}

// String is "TCP 10.244.1.9:40000 -> 10.96.0.1:443".
func (p *Packet) String() string {
	return fmt.Sprintf("%s %s -> %s", ProtocolName(p.Protocol), p.SourceText(), p.DestinationText())
}

// Tuple is one direction of a connection (struct nf_conntrack_tuple).
type Tuple struct {
	Protocol uint8
	// Source and Destination have the ports of protocols with ports. For ICMP the source's is the
	// id, and the destination's type*256 + code.
	Source, Destination netip.AddrPort
}

// String is "TCP 10.0.0.1:80 -> 10.0.0.2:40000".
func (t Tuple) String() string {
	p := Packet{Protocol: t.Protocol, Source: t.Source, Destination: t.Destination}
	return p.String()
}

// Tuple is that of the packet's direction.
func (p *Packet) Tuple() Tuple {
	t := Tuple{p.Protocol, p.Source, p.Destination}
	switch {
	case hasICMP(p.Protocol):
		t.Source = netip.AddrPortFrom(p.Source.Addr(), p.ICMPID)
		t.Destination = netip.AddrPortFrom(p.Destination.Addr(), uint16(p.ICMPType)<<8|uint16(p.ICMPCode))
	case !HasPorts(p.Protocol):
		t.Source = netip.AddrPortFrom(p.Source.Addr(), 0)
		t.Destination = netip.AddrPortFrom(p.Destination.Addr(), 0)
	}
	return t
}

// Connection is the part of a connection's entry that rules can match or change.
type Connection struct {
	Original, Reply Tuple
	Zone            uint16
	Mark            uint32
	// SNAT and DNAT: the source or destination is translated (IPS_SRC_NAT, IPS_DST_NAT).
	SNAT, DNAT bool
	SeenReply  bool
	Assured    bool
	// Confirmed: its first packet was accepted, and it is in the table.
	Confirmed bool
	// Labels are bits, the lowest one last; Helper is the name of the helper that a rule has set, or empty.
	Labels [16]byte
	Helper string
	// Timeouts are those in seconds that a rule has set, by the state's name in nft; the map is not changed.
	Timeouts map[string]uint32
	// SourceDone and DestinationDone: the rules for that side of the translation were evaluated (IPS_SRC_NAT_DONE,
	// IPS_DST_NAT_DONE).
	SourceDone, DestinationDone bool
	// Traffic is that of the original and of the reply direction (struct nf_conn_counter).
	Traffic [2]Counters
}

// SourceText returns the source, with the port if the protocol has ports.
func (p *Packet) SourceText() string { return addressText(p.Protocol, p.Source) }

// DestinationText returns the destination, with the port if the protocol has ports.
func (p *Packet) DestinationText() string { return addressText(p.Protocol, p.Destination) }

func addressText(protocol uint8, a netip.AddrPort) string {
	if HasPorts(protocol) {
		return a.String()
	}
	return a.Addr().String()
}
