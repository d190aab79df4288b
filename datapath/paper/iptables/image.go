package iptables

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// image is the known bytes of a packet from its IP header on.
type image struct {
	bytes   []byte
	known   []bool // of each byte
	payload int    // where it begins
}

// Lengths of headers.
const (
	lengthIPv4 = 20
	lengthIPv6 = 40
	lengthTCP  = 20
	lengthUDP  = 8
)

// image returns the packet's bytes as rules see them.
func (p *Packet) image() image {
	m := image{bytes: slices.Clone(p.Bytes), known: make([]bool, len(p.Bytes))}
	for i := range m.known {
		m.known[i] = true
	}
	if more := int(p.Length) - len(m.bytes); more > 0 {
		m.bytes, m.known = append(m.bytes, make([]byte, more)...), append(m.known, make([]bool, more)...)
	}
	transport := lengthIPv6
	if p.Is4() {
		transport = m.ipv4(p)
	} else {
		m.ipv6(p)
	}
	if p.Bytes != nil && !p.Is4() && p.Bytes[min(6, len(p.Bytes)-1)] != p.Protocol {
		return m // after extension headers, as in Bytes
	}
	m.transport(p, transport)
	return m
}

// transportAt is where the transport header begins in bytes of the packet.
func (p *Packet) transportAt(bytes []byte) int {
	if p.Is4() && len(bytes) > 0 {
		return int(bytes[0]&0xf) * 4
	}
	return lengthIPv6
}

// ReadTCPHeader sets Flags, TCPOptions and MSS from Bytes, as far as they go.
func (p *Packet) ReadTCPHeader() {
	p.Flags, p.TCPOptions = 0, nil
	at := p.transportAt(p.Bytes)
	if len(p.Bytes) < at+lengthTCP || !p.Is4() && p.Bytes[6] != protoTCP {
		return
	}
	p.Flags = TCPFlags(p.Bytes[at+13])
	end := min(len(p.Bytes), at+int(p.Bytes[at+12]>>4)*4)
	for i := at + lengthTCP; i < end && p.Bytes[i] != 0; {
		kind := p.Bytes[i]
		if kind == 1 { // no operation
			i++
			continue
		}
		if i+1 >= end || p.Bytes[i+1] < 2 || i+int(p.Bytes[i+1]) > end {
			return
		}
		if kind == tcpOptionMSS && p.Bytes[i+1] == 4 {
			p.MSS = binary.BigEndian.Uint16(p.Bytes[i+2:])
		}
		p.TCPOptions = append(p.TCPOptions, kind)
		i += int(p.Bytes[i+1])
	}
}

// set writes bytes at an offset, and reports whether they changed.
func (m *image) set(at int, b ...byte) (changed bool) {
	if at+len(b) > len(m.bytes) {
		return false
	}
	changed = !bytes.Equal(m.bytes[at:at+len(b)], b)
	copy(m.bytes[at:], b)
	for i := range b {
		m.known[at+i] = true
	}
	return changed
}

// forget marks changed bytes as unknown.
func (m *image) forget(at, n int) {
	for i := at; i < min(at+n, len(m.known)); i++ {
		m.known[i] = false
	}
}

// ipv4 writes the header and returns its length.
func (m *image) ipv4(p *Packet) int {
	length := lengthIPv4
	if len(p.Bytes) > 0 {
		length = int(p.Bytes[0]&0xf) * 4
	}
	m.set(0, 0x40|byte(length/4), p.TOS)
	m.set(2, byte(len(m.bytes)>>8), byte(len(m.bytes)))
	m.set(8, p.TTL, p.Protocol)
	m.set(12, p.Source.Addr().AsSlice()...)
	m.set(16, p.Destination.Addr().AsSlice()...)
	m.forget(10, 2)
	if length <= len(m.bytes) && m.allKnown(0, 10) && m.allKnown(12, length) {
		m.set(10, 0, 0)
		sum := uint32(0)
		for i := 0; i+1 < length; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(m.bytes[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		m.set(10, byte(^sum>>8), byte(^sum))
	}
	return length
}

func (m *image) ipv6(p *Packet) {
	flow := byte(0)
	if len(p.Bytes) > 1 {
		flow = p.Bytes[1] & 0xf
	}
	m.set(0, 0x60|p.TOS>>4, p.TOS<<4|flow)
	length := len(m.bytes) - lengthIPv6
	m.set(4, byte(length>>8), byte(length))
	m.set(7, p.TTL)
	if p.Bytes == nil {
		m.set(6, p.Protocol)
	}
	m.set(8, p.Source.Addr().AsSlice()...)
	m.set(24, p.Destination.Addr().AsSlice()...)
}

// transport writes the known part of the transport header, and the payload.
func (m *image) transport(p *Packet, at int) {
	source, destination := p.Source.Port(), p.Destination.Port()
	changed, header, checksum := false, lengthUDP, 0
	switch {
	case HasPorts(p.Protocol):
		changed = m.set(at, byte(source>>8), byte(source), byte(destination>>8), byte(destination))
		checksum = 6
		if p.Protocol == protoTCP {
			header, checksum = m.tcp(p, at), 16
		} else if p.Protocol != protoUDP && p.Protocol != protoUDPLite {
			header, checksum = len(m.bytes)-at, 8
		}
	case hasICMP(p.Protocol):
		changed = m.set(at, p.ICMPType, p.ICMPCode)
		changed = m.set(at+4, byte(p.ICMPID>>8), byte(p.ICMPID)) || changed
		checksum = 2
	default:
		header = 0
	}
	// The checksum covers the addresses, too.
	if p.Bytes != nil && checksum > 0 && (changed || p.remade || p.otherAddresses()) {
		size := 2
		if p.Protocol == protoSCTP {
			size = 4
		}
		m.forget(at+checksum, size)
	}
	m.payload = at + header
	if p.Bytes == nil {
		m.set(at+header, p.Payload[:max(0, min(len(p.Payload), len(m.bytes)-at-header))]...)
	}
}

// otherAddresses reports whether the packet's addresses differ from those of Bytes.
func (p *Packet) otherAddresses() bool {
	at := 8
	if p.Is4() {
		at = 12
	}
	addresses := append(p.Source.Addr().AsSlice(), p.Destination.Addr().AsSlice()...)
	return len(p.Bytes) < at+len(addresses) || !bytes.Equal(p.Bytes[at:at+len(addresses)], addresses)
}

// tcp writes the flags and the header's length, and returns the length: a packet with an unknown
// payload has none.
func (m *image) tcp(p *Packet, at int) int {
	if p.Bytes != nil {
		return lengthTCP
	}
	header := max(lengthTCP, min(60, len(m.bytes)-at-len(p.Payload))) &^ 3
	m.set(at+12, byte(header/4)<<4, byte(p.Flags))
	return header
}

func (m *image) allKnown(from, to int) bool {
	return to <= len(m.known) && !slices.Contains(m.known[from:to], false)
}

// partial is a number of which only some bits are known.
type partial struct{ value, known uint32 }

// at reads this many bytes, at most 4; ok is false if the packet does not have them.
func (m *image) at(offset uint64, size int) (n partial, ok bool) {
	if offset+uint64(size) > uint64(len(m.bytes)) {
		return n, false
	}
	n.known = ^uint32(0)
	for i := range uint64(size) {
		n.value = n.value<<8 | uint32(m.bytes[offset+i])
		n.known <<= 8
		if m.known[offset+i] {
			n.known |= 0xff
		}
	}
	return n, true
}
