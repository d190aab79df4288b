package replay

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The reasons why a packet has no flow.
var (
	errNotIP    = errors.New("neither IPv4 nor IPv6")
	errCut      = errors.New("truncated before its ports")
	errFragment = errors.New("not the first fragment: it has no ports")
	errNoPorts  = errors.New("protocol without ports")
)

// Tuple is one direction of a flow.
type Tuple struct {
	Protocol            decision.Protocol
	Source, Destination netip.AddrPort
}

// reversed is the tuple of the replies.
func (t Tuple) reversed() Tuple { return Tuple{t.Protocol, t.Destination, t.Source} }

// packet is an IP packet of a capture. Its data are slices of the capture, so that a translation
// in place is enough.
type packet struct {
	data     []byte // from the IP header to the end of the packet, or to its truncation
	cut      bool   // not all of it was captured
	fragment bool   // the first fragment of a larger packet; later ones have no tuple
	protocol byte   // of the transport
	id       uint32 // of the fragments of one packet; valid iff fragment
	at       int    // where the transport header begins in data
	tuple    Tuple  // valid iff it has ports
}

// ICMP for both families.
const (
	protoICMP   = 1
	protoICMPv6 = 58
)

// decode reads an IP packet. err is errNotIP, errCut, errFragment, errNoPorts or nil. With
// errFragment and errNoPorts, all but the tuple is valid.
func decode(b []byte) (p packet, err error) {
	if len(b) == 0 {
		return p, errCut
	}
	var source, destination netip.Addr
	switch b[0] >> 4 {
	case 4:
		source, destination, err = p.decodeIPv4(b)
	case 6:
		source, destination, err = p.decodeIPv6(b)
	default:
		return p, errNotIP
	}
	if err != nil {
		return p, err
	}
	switch proto := decision.Protocol(p.protocol); proto {
	case decision.TCP, decision.UDP, decision.SCTP:
		t := p.transport()
		if len(t) < 4 {
			return p, errCut
		}
		p.tuple = Tuple{
			proto,
			netip.AddrPortFrom(source, binary.BigEndian.Uint16(t)),
			netip.AddrPortFrom(destination, binary.BigEndian.Uint16(t[2:])),
		}
		return p, nil
	}
	return p, errNoPorts
}

// transport is the packet from its transport header on.
func (p *packet) transport() []byte { return p.data[p.at:] }

func (p *packet) is4() bool { return p.data[0]>>4 == 4 }

// length is that of the packet, which may be captured only in part.
func (p *packet) length() int {
	total := 40
	if p.is4() {
		total = int(binary.BigEndian.Uint16(p.data[2:]))
	} else {
		total += int(binary.BigEndian.Uint16(p.data[4:]))
	}
	return max(total, len(p.data))
}

// limit removes data after the packet in its frame: Ethernet pads short frames. A length of 0 is
// that of a packet that the network card was to segment.
func (p *packet) limit(b []byte, length int) {
	p.data, p.cut = b, false
	switch {
	case length == 0:
	case length <= len(b):
		p.data = b[:length]
	default:
		p.cut = true
	}
}

// decodeIPv4 reads the header of RFC 791, section 3.1.
func (p *packet) decodeIPv4(b []byte) (source, destination netip.Addr, err error) {
	if len(b) < 20 {
		return source, destination, errCut
	}
	p.at = int(b[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	if p.at < 20 || total != 0 && total < p.at {
		return source, destination, errNotIP
	}
	if len(b) < p.at {
		return source, destination, errCut
	}
	p.limit(b, total)
	p.protocol, p.id = b[9], uint32(binary.BigEndian.Uint16(b[4:]))
	part := binary.BigEndian.Uint16(b[6:])
	p.fragment = part&0x3fff != 0 // an offset, or more to come
	source, destination = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	if part&0x1fff != 0 {
		return source, destination, errFragment
	}
	return source, destination, nil
}

// maxIPv6Headers bounds the work for one packet.
const maxIPv6Headers = 8

// IPv6 extension headers (RFC 8200, section 4, and RFC 4302).
const (
	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extAuth        = 51
	extDestination = 60
)

// decodeIPv6 reads the header of RFC 8200, section 3, and follows its extensions.
func (p *packet) decodeIPv6(b []byte) (source, destination netip.Addr, err error) {
	if len(b) < 40 {
		return source, destination, errCut
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	if length > 0 {
		length += 40
	}
	p.limit(b, length)
	source, destination = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	p.protocol, p.at = b[6], 40
	for range maxIPv6Headers {
		size := 0
		switch p.protocol {
		case extHopByHop, extRouting, extDestination, extAuth, extFragment:
			if len(p.data) < p.at+8 {
				return source, destination, errCut
			}
			size = (int(p.data[p.at+1]) + 1) * 8
		}
		switch p.protocol {
		case extHopByHop, extRouting, extDestination:
		case extAuth:
			size = (int(p.data[p.at+1]) + 2) * 4
		case extFragment:
			size = 8
			part := binary.BigEndian.Uint16(p.data[p.at+2:])
			p.id = binary.BigEndian.Uint32(p.data[p.at+4:])
			p.fragment = p.fragment || part&^6 != 0
			if part&^7 != 0 {
				// The next header of the first fragment is that of all.
				p.protocol = p.data[p.at]
				return source, destination, errFragment
			}
		default:
			return source, destination, nil
		}
		if len(p.data) < p.at+size {
			return source, destination, errCut
		}
		p.protocol, p.at = p.data[p.at], p.at+size
	}
	return source, destination, errNoPorts
}

// TCP flags (RFC 9293).
const (
	flagFIN = 1
	flagSYN = 2
	flagRST = 4
	flagACK = 16
)

// flags returns those of a TCP packet; 0 if it was truncated before them.
func (p *packet) flags() byte {
	if t := p.transport(); len(t) > 13 {
		return t[13]
	}
	return 0
}

// SCTP chunks (RFC 9260).
const (
	chunkInit             = 1
	chunkAbort            = 6
	chunkShutdownComplete = 14
)

// chunk returns the type of the first chunk of an SCTP packet; -1 if it was truncated before it.
func (p *packet) chunk() int {
	if t := p.transport(); len(t) > 12 {
		return int(t[12])
	}
	return -1
}

// begins reports whether the packet may be a flow's first, as the daemon's rules see it (package
// ruleset, chain new_flows).
func (p *packet) begins() bool {
	switch p.tuple.Protocol {
	case decision.TCP:
		return p.flags()&(flagFIN|flagSYN|flagRST|flagACK) == flagSYN
	case decision.SCTP:
		return p.chunk() == chunkInit
	}
	to := p.tuple.Destination.Addr()
	return !to.IsMulticast() && to != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// headerLength is how many bytes of a transport header are needed to know whether the packet
// begins a flow.
func (p *packet) headerLength() int {
	switch p.tuple.Protocol {
	case decision.TCP:
		return 14
	case decision.SCTP:
		return 13
	}
	return 8
}

// fragmentKey is that of a fragment.
func (p *packet) fragmentKey() fragmentKey {
	source, destination := pairOf(p)
	return fragmentKey{source, destination, p.protocol, p.id}
}
