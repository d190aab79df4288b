package netfilter

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// Protocols that have fields of their own, by their IANA numbers.
const (
	protoICMP    = 1
	protoTCP     = 6
	protoUDP     = 17
	protoICMPv6  = 58
	protoSCTP    = 132
	protoUDPLite = 136
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

	ICMPType, ICMPCode uint8             // valid iff ICMP or ICMPv6
	ICMPID             uint16            // of an echo or one of the older queries
	Flags              iptables.TCPFlags // valid iff TCP; SYN in the first packet
	TCPOptions         []uint8           // kinds
	MSS                uint16            // valid iff the maximum segment size, 2, is among TCPOptions
	Chunks             []iptables.ChunkType

	Length uint16 // with the IP header, in bytes
	TOS    uint8
	TTL    uint8
	Mark   uint32 // of the packet, not of its connection
	CPU    uint32 // the processor that handles it, for rules that match it, which record it

	// Owner is the owner of the sending socket; nil: none.
	Owner *Owner
	// MAC is the source address of its frame; nil: no Ethernet frame.
	MAC  *iptables.MACAddress
	Link iptables.LinkType
	// PhysIn and PhysOut are the bridge ports of a packet that br_netfilter passes to iptables.
	PhysIn, PhysOut string
	Bridged         bool

	// Bytes are those of the packet on arrival, from its IP header on, perhaps truncated; nil:
	// only the other fields are known. If the fields contradict Bytes, the fields are valid.
	Bytes []byte
	// Payload is the payload of the transport protocol; valid iff Bytes is nil. nil: a TCP packet
	// has none, for others it is unknown.
	Payload []byte
	// Supposed are the assumed fields: rules that match them are named in [Result.Assumptions], or
	// have an unknown result.
	Supposed Facts

	remade bool // Bytes have been changed, but for the transport's checksum
}

// Owner is the user of a socket.
type Owner struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
}

// HasPorts reports whether packets of the protocol have ports.
func HasPorts(protocol uint8) bool {
	switch protocol {
	case protoTCP, protoUDP, protoSCTP, 33, 136: // DCCP, UDP-Lite
		return true
	}
	return false
}

func (p *Packet) is4() bool { return p.Destination.Addr().Is4() }

var protocolNames = map[uint8]string{
	protoICMP: "ICMP", 2: "IGMP", 4: "IP in IP", protoTCP: "TCP", protoUDP: "UDP", 33: "DCCP", 41: "IPv6 in IP", 47: "GRE",
	50: "ESP", 51: "AH", protoICMPv6: "ICMPv6", 89: "OSPF", 103: "PIM", 112: "VRRP", protoSCTP: "SCTP", 136: "UDP-Lite",
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
