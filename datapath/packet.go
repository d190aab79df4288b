package datapath

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The reasons why a packet is undecidable.
var (
	errNotIP      = errors.New("not an IPv4 or IPv6 packet")
	errTruncated  = errors.New("truncated packet")
	errFragment   = errors.New("not the first fragment: it has no ports")
	errNoPorts    = errors.New("protocol without ports")
	errExtensions = errors.New("too many IPv6 extension headers")
)

// decode reads addresses, protocol and ports from a packet that starts with its IP header and may
// be cut off anywhere. It neither allocates nor keeps b. Checksums are ignored: offloading leaves
// them unfinished.
func decode(b []byte) (decision.Packet, error) {
	if len(b) == 0 {
		return decision.Packet{}, errTruncated
	}
	switch b[0] >> 4 {
	case 4:
		return decodeIPv4(b)
	case 6:
		return decodeIPv6(b)
	}
	return decision.Packet{}, errNotIP
}

// decodeIPv4 reads the header of RFC 791, section 3.1.
func decodeIPv4(b []byte) (decision.Packet, error) {
	if len(b) < 20 {
		return decision.Packet{}, errTruncated
	}
	headerLen := int(b[0]&0xf) * 4
	if headerLen < 20 {
		return decision.Packet{}, errNotIP
	}
	if binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
		return decision.Packet{}, errFragment
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	return decodePorts(b, headerLen, b[9], src, dst)
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
func decodeIPv6(b []byte) (decision.Packet, error) {
	if len(b) < 40 {
		return decision.Packet{}, errTruncated
	}
	src, dst := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	next, offset := b[6], 40
	for range maxIPv6Headers {
		switch next {
		case extHopByHop, extRouting, extDestination, extAuth, extFragment:
		default:
			return decodePorts(b, offset, next, src, dst)
		}
		if len(b) < offset+8 {
			return decision.Packet{}, errTruncated
		}
		size := (int(b[offset+1]) + 1) * 8
		switch next {
		case extAuth:
			size = (int(b[offset+1]) + 2) * 4
		case extFragment:
			size = 8
			if binary.BigEndian.Uint16(b[offset+2:])&^7 != 0 {
				return decision.Packet{}, errFragment
			}
		}
		next, offset = b[offset], offset+size
	}
	return decision.Packet{}, errExtensions
}

// decodePorts reads the ports, which TCP, UDP and SCTP have in the same place.
func decodePorts(b []byte, offset int, proto byte, src, dst netip.Addr) (decision.Packet, error) {
	switch p := decision.Protocol(proto); p {
	case decision.TCP, decision.UDP, decision.SCTP:
		if len(b) < offset+4 {
			return decision.Packet{}, errTruncated
		}
		return decision.Packet{
			Protocol:    p,
			Source:      netip.AddrPortFrom(src, binary.BigEndian.Uint16(b[offset:])),
			Destination: netip.AddrPortFrom(dst, binary.BigEndian.Uint16(b[offset+2:])),
		}, nil
	}
	return decision.Packet{}, errNoPorts
}
