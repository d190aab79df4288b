package iptables

import (
	"encoding/binary"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// This file is what conditions of nftables read of a packet, besides the fields of a Packet.

// ReadHeader reads bytes of the network header or, with transport, of the transport header and what follows; the offset
// and the size are in bytes. Bytes that the packet has, but whose values are not given, are not known. false: the packet
// ends before.
func (p *Packet) ReadHeader(transport bool, offset, size int) (b rules.Bits, ok bool) {
	m := p.image()
	if len(m.bytes) == 0 {
		return rules.UnknownBits(size), false
	}
	from := offset
	if transport {
		from += p.transportAt(m.bytes)
	}
	if b = rules.UnknownBits(size); from < 0 || from+b.Size > len(m.bytes) {
		return b, false
	}
	for i := range b.Size {
		if m.known[from+i] {
			b.Data[i], b.Known[i] = m.bytes[from+i], 0xff
		}
	}
	return b, true
}

// ServicePort is the port of a service by its name; false: it is none of those that listings have.
func ServicePort(name string) (port uint16, ok bool) {
	port, ok = services[name]
	return port, ok
}

// Recall is what is kept under a key; nil: nothing is.
func (c *Context) Recall(key any) any { return c.Host.Memory().kept[key] }

// Keep keeps a value under a key, for later packets.
func (c *Context) Keep(key, value any) { c.keep(key, value) }

// LinkType is how the packet was addressed on the link.
func (c *Context) LinkType() LinkType { return c.linkType() }

// TCPOption is a TCP option from its kind on. nil: it is not there, or its bytes are not given.
func (p *Packet) TCPOption(kind uint8) (b []byte, there bool) {
	if p.Bytes == nil {
		there = p.Protocol == protoTCP && slices.Contains(p.TCPOptions, kind)
		if there && kind == tcpOptionMSS {
			b = []byte{kind, 4, byte(p.MSS >> 8), byte(p.MSS)}
		}
		return b, there
	}
	at, size := p.tcpOption(kind)
	return p.Bytes[at : at+size], size > 0
}

// Chunk is a chunk of SCTP; see TCPOption.
func (p *Packet) Chunk(typ uint8) (b []byte, there bool) {
	if p.Protocol != protoSCTP {
		return nil, false
	}
	if p.Bytes == nil {
		return nil, slices.ContainsFunc(p.Chunks, func(c ChunkType) bool { return c.Type == typ })
	}
	const header = 12
	for at := p.transportAt(p.Bytes) + header; at+4 <= len(p.Bytes); { // nft_exthdr_sctp_eval
		size := int(binary.BigEndian.Uint16(p.Bytes[at+2:]))
		if p.Bytes[at] == typ {
			return p.Bytes[at:min(at+size, len(p.Bytes))], true
		}
		at += max(4, (size+3)&^3)
	}
	return nil, false
}

// IPOption is an option of IPv4; see TCPOption. A packet without Bytes has none.
func (p *Packet) IPOption(typ uint8) (b []byte, there bool) {
	if !p.Is4() || len(p.Bytes) == 0 {
		return nil, false
	}
	end := min(len(p.Bytes), int(p.Bytes[0]&0xf)*4)
	for at := lengthIPv4; at < end && p.Bytes[at] != 0; { // ipv4_find_option
		size := 1
		if p.Bytes[at] != 1 {
			if at+1 >= end || p.Bytes[at+1] < 2 || at+int(p.Bytes[at+1]) > end {
				return nil, false
			}
			size = int(p.Bytes[at+1])
		}
		if p.Bytes[at] == typ {
			return p.Bytes[at : at+size], true
		}
		at += size
	}
	return nil, false
}

// Extension is an extension header of IPv6, by the number of its protocol; see TCPOption. A packet without Bytes has none.
func (p *Packet) Extension(protocol uint8) (b []byte, there bool) {
	if p.Is4() || len(p.Bytes) < lengthIPv6 {
		return nil, false
	}
	next, at := p.Bytes[6], lengthIPv6
	for slices.Contains([]uint8{0, 43, 44, 60, 135}, next) && at+8 <= len(p.Bytes) { // ipv6_find_hdr
		size := 8 * (1 + int(p.Bytes[at+1]))
		if next == 44 {
			size = 8
		}
		if next == protocol {
			return p.Bytes[at:min(at+size, len(p.Bytes))], true
		}
		next, at = p.Bytes[at], at+size
	}
	return nil, false
}
