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

// Packet is a packet, unfragmented: connection tracking puts fragments together before
// any rule sees them (nf_defrag_ipv4.c).
type Packet struct {
	Protocol uint8 // IANA number
	// Source and Destination have ports with TCP, UDP, UDP-Lite, SCTP and DCCP only. The
	// unspecified source of a Local packet stands for the one the host chooses.
	Source, Destination netip.AddrPort
	// Local: made on the host itself.
	Local bool
	// InInterface is the device it came in by; empty if Local.
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
	CPU    uint32 // the processor that handles it, for rules that look at it, which name it

	// Owner is whose socket sent it; nil: none did.
	Owner *Owner
	// MAC is the source address of the frame it came in; nil: in no Ethernet frame.
	MAC  *iptables.MACAddress
	Link iptables.LinkType
	// PhysIn and PhysOut are the ports of a bridge, of a packet that br_netfilter shows.
	PhysIn, PhysOut string
	Bridged         bool

	// Bytes are those of the packet as it came, from its IP header on, perhaps cut short; nil:
	// only what the other fields say is known. Where they contradict it, the fields hold.
	Bytes []byte
	// Payload is what is behind the transport header; valid iff Bytes is nil. nil: a TCP packet has
	// none, of others it is not known.
	Payload []byte
	// Supposed are the fields that are made up: rules that look at them are named among
	// [Result.Assumptions], or cannot be told.
	Supposed Facts

	remade bool // Bytes have been changed, but for the transport's checksum
}

// Owner is the user of a socket.
type Owner struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
}

// HasPorts reports whether packets of the protocol have ports where [netip.AddrPort] has them.
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

// ProtocolName is the name of a protocol as people write it.
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

// SourceText is the source, with the port if the protocol has ports.
func (p *Packet) SourceText() string { return addressText(p.Protocol, p.Source) }

// DestinationText is the destination, with the port if the protocol has ports.
func (p *Packet) DestinationText() string { return addressText(p.Protocol, p.Destination) }

func addressText(protocol uint8, a netip.AddrPort) string {
	if HasPorts(protocol) {
		return a.String()
	}
	return a.Addr().String()
}
