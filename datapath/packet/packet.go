// Package packet reads the addresses, protocol and ports of IP packets.
//
// It is a ground package.
package packet

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// The errors of [Decode].
var (
	ErrNotIP      = errors.New("not an IPv4 or IPv6 packet")
	ErrTruncated  = errors.New("packet is cut short before its ports")
	ErrFragment   = errors.New("not the first fragment: it has no ports")
	ErrNoPorts    = errors.New("protocol without ports")
	ErrExtensions = errors.New("too many IPv6 extension headers")
)

// Protocols by their IANA numbers.
const (
	TCP  = 6
	UDP  = 17
	SCTP = 132
)

// Packet is a decoded IP packet.
type Packet struct {
	// Data is the packet from its IP header on, without what follows it in its frame: the
	// caller's memory.
	Data []byte
	// Cut: not all of the packet is there.
	Cut bool
	// Fragment: the packet is a fragment of a larger one. Only the first has a Tuple.
	Fragment bool
	// Protocol is that of the transport header.
	Protocol uint8
	// ID is the same in all fragments of one packet; valid iff Fragment.
	ID uint32
	// Offset is where the transport header begins in Data.
	Offset int
	Tuple  conntrack.Tuple
}

// Decode reads a packet that starts with its IP header and may be cut off anywhere. It neither
// allocates nor verifies checksums: offloading leaves them unfinished. With [ErrFragment],
// [ErrNoPorts] and [ErrExtensions] all but the Tuple is valid, with other errors nothing.
func Decode(b []byte) (p Packet, err error) {
	if len(b) == 0 {
		return p, ErrTruncated
	}
	var source, destination netip.Addr
	switch b[0] >> 4 {
	case 4:
		source, destination, err = p.decodeIPv4(b)
	case 6:
		source, destination, err = p.decodeIPv6(b)
	default:
		return p, ErrNotIP
	}
	if err != nil {
		return p, err
	}
	switch p.Protocol {
	case TCP, UDP, SCTP: // whose ports are in the same place
		t := p.Transport()
		if len(t) < 4 {
			return p, ErrTruncated
		}
		p.Tuple = conntrack.Tuple{
			Source:      netip.AddrPortFrom(source, binary.BigEndian.Uint16(t)),
			Destination: netip.AddrPortFrom(destination, binary.BigEndian.Uint16(t[2:])),
			Protocol:    p.Protocol,
		}
		return p, nil
	}
	return p, ErrNoPorts
}

// Transport is the packet from its transport header on; empty if it was cut before.
func (p *Packet) Transport() []byte { return p.Data[min(p.Offset, len(p.Data)):] }

// Is4 reports whether the packet is of IPv4.
func (p *Packet) Is4() bool { return p.Data[0]>>4 == 4 }

// limit removes what follows the packet in its frame: Ethernet fills short frames up. A length
// of 0 is that of a packet the network card was to cut in pieces.
func (p *Packet) limit(b []byte, length int) {
	p.Data, p.Cut = b, false
	switch {
	case length == 0:
	case length <= len(b):
		p.Data = b[:length]
	default:
		p.Cut = true
	}
}

// decodeIPv4 reads the header of RFC 791, section 3.1.
func (p *Packet) decodeIPv4(b []byte) (source, destination netip.Addr, err error) {
	if len(b) < 20 {
		return source, destination, ErrTruncated
	}
	p.Offset = int(b[0]&0xf) * 4
	total := int(binary.BigEndian.Uint16(b[2:]))
	if p.Offset < 20 || total != 0 && total < p.Offset {
		return source, destination, ErrNotIP
	}
	if len(b) < p.Offset {
		return source, destination, ErrTruncated
	}
	p.limit(b, total)
	p.Protocol, p.ID = b[9], uint32(binary.BigEndian.Uint16(b[4:]))
	part := binary.BigEndian.Uint16(b[6:])
	p.Fragment = part&0x3fff != 0 // an offset, or more to come
	source, destination = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	if part&0x1fff != 0 {
		return source, destination, ErrFragment
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
func (p *Packet) decodeIPv6(b []byte) (source, destination netip.Addr, err error) {
	if len(b) < 40 {
		return source, destination, ErrTruncated
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	if length > 0 {
		length += 40
	}
	p.limit(b, length)
	source, destination = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	p.Protocol, p.Offset = b[6], 40
	for range maxIPv6Headers {
		switch p.Protocol {
		case extHopByHop, extRouting, extDestination, extAuth, extFragment:
		default:
			return source, destination, nil
		}
		if len(p.Data) < p.Offset+8 {
			return source, destination, ErrTruncated
		}
		size := (int(p.Data[p.Offset+1]) + 1) * 8
		switch p.Protocol {
		case extAuth:
			size = (int(p.Data[p.Offset+1]) + 2) * 4
		case extFragment:
			size = 8
			part := binary.BigEndian.Uint16(p.Data[p.Offset+2:])
			p.ID = binary.BigEndian.Uint32(p.Data[p.Offset+4:])
			p.Fragment = p.Fragment || part&^6 != 0
			if part&^7 != 0 {
				// What is next in the first fragment is so in all.
				p.Protocol = p.Data[p.Offset]
				return source, destination, ErrFragment
			}
		}
		if len(p.Data) < p.Offset+size {
			return source, destination, ErrTruncated
		}
		p.Protocol, p.Offset = p.Data[p.Offset], p.Offset+size
	}
	return source, destination, ErrExtensions
}
