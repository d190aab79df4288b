//go:build linux

package kubechains

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The number of a packet travels with it where neither NAT nor a router changes it:
// in TCP's sequence number, UDP's payload or SCTP's initiate tag.

const (
	ipv4Header  = 20
	ipv6Header  = 40
	udpHeader   = 8
	tcpHeader   = 20
	sctpHeader  = 12
	sctpInit    = 20 // INIT chunk, no parameters
	protoICMP   = 1
	protoICMPv6 = 58
)

// encode makes an IP packet that begins a flow, with all checksums right: conntrack
// takes others for invalid.
func encode(p *decision.Packet, number uint32) []byte {
	body := encodeTransport(p, number)
	src, dst := p.Source.Addr().AsSlice(), p.Destination.Addr().AsSlice()
	pseudo := append(append(append([]byte{}, src...), dst...), 0, byte(p.Protocol), 0, byte(len(body)))
	at := map[decision.Protocol]int{decision.TCP: 16, decision.UDP: 6}
	if i, ok := at[p.Protocol]; ok {
		binary.BigEndian.PutUint16(body[i:], checksum(append(pseudo, body...)))
	}
	var header []byte
	if p.Source.Addr().Is4() {
		header = make([]byte, ipv4Header)
		header[0], header[8], header[9] = 0x45, 64, byte(p.Protocol)
		binary.BigEndian.PutUint16(header[2:], uint16(ipv4Header+len(body)))
		binary.BigEndian.PutUint16(header[4:], uint16(number)|1)
		copy(header[12:], src)
		copy(header[16:], dst)
		binary.BigEndian.PutUint16(header[10:], checksum(header))
	} else {
		header = make([]byte, ipv6Header)
		header[0], header[6], header[7] = 0x60, byte(p.Protocol), 64
		binary.BigEndian.PutUint16(header[4:], uint16(len(body)))
		copy(header[8:], src)
		copy(header[24:], dst)
	}
	return append(header, body...)
}

func encodeTransport(p *decision.Packet, number uint32) []byte {
	var b []byte
	switch p.Protocol {
	case decision.TCP:
		b = make([]byte, tcpHeader)
		binary.BigEndian.PutUint32(b[4:], number)
		b[12], b[13] = tcpHeader/4<<4, 0x02 // SYN
		binary.BigEndian.PutUint16(b[14:], 0xffff)
	case decision.UDP:
		b = make([]byte, udpHeader+4)
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
		binary.BigEndian.PutUint32(b[udpHeader:], number)
	case decision.SCTP:
		b = make([]byte, sctpHeader+sctpInit)
		chunk := b[sctpHeader:]
		chunk[0], chunk[3] = 1, sctpInit
		binary.BigEndian.PutUint32(chunk[4:], number)
		binary.BigEndian.PutUint32(chunk[8:], 1<<16) // window
		chunk[13], chunk[15] = 1, 1                  // streams out and in
		binary.BigEndian.PutUint32(chunk[16:], 1)    // first TSN
	}
	binary.BigEndian.PutUint16(b, p.Source.Port())
	binary.BigEndian.PutUint16(b[2:], p.Destination.Port())
	if p.Protocol == decision.SCTP {
		// RFC 9260, appendix A: CRC32c, written the other way round.
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	}
	return b
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// captured is a packet that was seen on a wire.
type captured struct {
	number      uint32
	source      netip.AddrPort
	destination netip.AddrPort
	// refusal: it is an ICMP port unreachable, and the rest is about the packet in it.
	refusal bool
}

// decode reads what encode writes, and ICMP errors about it. There is other traffic,
// too: ok is false then.
func decode(b []byte) (c captured, ok bool) {
	proto, src, dst, body, ok := decodeIP(b)
	if !ok {
		return c, false
	}
	unreachable := map[byte][2]byte{protoICMP: {3, 3}, protoICMPv6: {1, 4}}
	if want, icmp := unreachable[proto]; icmp {
		if len(body) < 8 || body[0] != want[0] || body[1] != want[1] {
			return c, false
		}
		c, ok = decode(body[8:])
		ok = ok && !c.refusal
		c.refusal = true
		return c, ok
	}
	offset, known := map[decision.Protocol]int{decision.TCP: 4, decision.UDP: udpHeader, decision.SCTP: sctpHeader + 4}[decision.Protocol(proto)]
	if !known || len(body) < offset+4 {
		return c, false
	}
	c.number = binary.BigEndian.Uint32(body[offset:])
	c.source = netip.AddrPortFrom(src, binary.BigEndian.Uint16(body))
	c.destination = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(body[2:]))
	return c, true
}

func decodeIP(b []byte) (proto byte, src, dst netip.Addr, body []byte, ok bool) {
	switch {
	case len(b) >= ipv4Header && b[0] == 0x45:
		src, _ = netip.AddrFromSlice(b[12:16])
		dst, _ = netip.AddrFromSlice(b[16:20])
		return b[9], src, dst, b[ipv4Header:], true
	case len(b) >= ipv6Header && b[0]>>4 == 6:
		src, _ = netip.AddrFromSlice(b[8:24])
		dst, _ = netip.AddrFromSlice(b[24:40])
		return b[6], src, dst, b[ipv6Header:], true
	}
	return 0, src, dst, nil, false
}
