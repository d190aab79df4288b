package replay

import (
	"encoding/binary"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/packet"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// captured is an IP packet of a capture. Its memory is that of the capture, so that
// translating it in place is enough.
type captured struct{ packet.Packet }

// ICMP for both families.
const (
	protoICMP   = 1
	protoICMPv6 = 58
)

// length is that of the packet, of which not all may have been captured.
func (p *captured) length() int {
	total := 40
	if p.Is4() {
		total = int(binary.BigEndian.Uint16(p.Data[2:]))
	} else {
		total += int(binary.BigEndian.Uint16(p.Data[4:]))
	}
	return max(total, len(p.Data))
}

// flags are those of a TCP packet; 0 if it was cut before them.
func (p *captured) flags() iptables.TCPFlags {
	if t := p.Transport(); len(t) > 13 {
		return iptables.TCPFlags(t[13])
	}
	return 0
}

// SCTP chunks (RFC 9260).
const (
	chunkInit             = 1
	chunkAbort            = 6
	chunkShutdownComplete = 14
)

// chunk is the type of the first chunk of an SCTP packet; -1 if it was cut before it.
func (p *captured) chunk() int {
	if t := p.Transport(); len(t) > 12 {
		return int(t[12])
	}
	return -1
}

// begins reports whether the packet may be a flow's first, as the daemon's rules see it
// (package ruleset, chain new_flows).
func (p *captured) begins() bool {
	switch p.Tuple.Protocol {
	case packet.TCP:
		return p.flags()&(iptables.FIN|iptables.SYN|iptables.RST|iptables.ACK) == iptables.SYN
	case packet.SCTP:
		return p.chunk() == chunkInit
	}
	to := p.Tuple.Destination.Addr()
	return !to.IsMulticast() && to != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// headerLength is how much of a transport header has to be there to know whether the packet
// begins a flow.
func (p *captured) headerLength() int {
	switch p.Tuple.Protocol {
	case packet.TCP:
		return 14
	case packet.SCTP:
		return 13
	}
	return 8
}

// fragmentKey is that of a fragment.
func (p *captured) fragmentKey() fragmentKey {
	source, destination := pairOf(p)
	return fragmentKey{source, destination, p.Protocol, p.ID}
}
