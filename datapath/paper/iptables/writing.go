package iptables

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// This file is what statements of nftables write to a packet.

// WriteHeader writes bytes of the network header or, with transport, of the transport header, at an offset in bytes. false:
// they say where other parts of the packet are, which is not supported.
func (p *Packet) WriteHeader(transport bool, offset int, b []byte) bool {
	m := p.image()
	at, end := offset, offset+len(b)
	if transport {
		begin := p.transportAt(m.bytes)
		at, end = begin+offset, begin+end
	}
	within := func(from, to int) bool { return offset < to && offset+len(b) > from }
	switch {
	case transport && p.Protocol == protoTCP && within(12, 13): // its length
		return false
	case !transport && p.Is4() && (within(0, 1) || within(2, 4) || within(9, 10)), !transport && !p.Is4() && within(4, 7): // lengths and the protocol
		return false
	case offset < 0 || end > len(m.bytes):
		return true // there is no such byte
	}
	m.set(at, b...)
	if p.Bytes != nil {
		p.Bytes, p.remade = m.bytes[:min(len(p.Bytes), len(m.bytes))], true
	}
	p.readFields(&m, transport, at-offset)
	return true
}

// readFields sets the fields that are in the header at a place of the image.
func (p *Packet) readFields(m *image, transport bool, begin int) {
	h := m.bytes[begin:]
	address := func(from, size int) netip.Addr {
		a, _ := netip.AddrFromSlice(h[from : from+size])
		return a
	}
	switch {
	case transport && HasPorts(p.Protocol) && len(h) >= 4:
		p.Source = netip.AddrPortFrom(p.Source.Addr(), binary.BigEndian.Uint16(h))
		p.Destination = netip.AddrPortFrom(p.Destination.Addr(), binary.BigEndian.Uint16(h[2:]))
		if p.Protocol == protoTCP && len(h) >= 14 && m.known[begin+13] {
			p.Flags = TCPFlags(h[13])
		}
	case transport && hasICMP(p.Protocol) && len(h) >= 6:
		p.ICMPType, p.ICMPCode, p.ICMPID = h[0], h[1], binary.BigEndian.Uint16(h[4:])
	case transport:
	case p.Is4() && len(h) >= lengthIPv4:
		p.TOS, p.TTL = h[1], h[8]
		p.Source, p.Destination = netip.AddrPortFrom(address(12, 4), p.Source.Port()), netip.AddrPortFrom(address(16, 4), p.Destination.Port())
	case !p.Is4() && len(h) >= lengthIPv6:
		p.TOS, p.TTL = h[0]<<4|h[1]>>4, h[7]
		p.Source, p.Destination = netip.AddrPortFrom(address(8, 16), p.Source.Port()), netip.AddrPortFrom(address(24, 16), p.Destination.Port())
	}
}

// WriteTCPOption writes bytes of a TCP option, if the packet has it.
func (p *Packet) WriteTCPOption(kind uint8, offset int, b []byte) {
	if at, size := p.tcpOption(kind); offset+len(b) <= size {
		p.Bytes, p.remade = slices.Clone(p.Bytes), true
		copy(p.Bytes[at+offset:], b)
	}
}

// StripTCPOption puts no operations in place of a TCP option.
func (p *Packet) StripTCPOption(kind uint8) {
	at, size := p.tcpOption(kind)
	if size > 0 {
		p.Bytes, p.remade = slices.Clone(p.Bytes), true
		for i := range size {
			p.Bytes[at+i] = 1
		}
	}
	p.TCPOptions = slices.DeleteFunc(slices.Clone(p.TCPOptions), func(k uint8) bool { return k == kind })
}

// tcpOption finds a TCP option in Bytes; size is 0 if it is not there (nft_exthdr_tcp_eval).
func (p *Packet) tcpOption(kind uint8) (at, size int) {
	begin := p.transportAt(p.Bytes)
	if p.Protocol != protoTCP || len(p.Bytes) < begin+lengthTCP || !p.Is4() && p.Bytes[6] != protoTCP {
		return 0, 0
	}
	end := min(len(p.Bytes), begin+int(p.Bytes[begin+12]>>4)*4)
	for i := begin + lengthTCP; i < end-1; i += size {
		if size = int(p.Bytes[i+1]); p.Bytes[i] <= 1 || size == 0 {
			size = 1
		}
		if p.Bytes[i] != kind {
			continue
		}
		if i+size > end {
			break
		}
		return i, size
	}
	return 0, 0
}
