package replay

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
)

// through is the tuple that a packet of the form has on the other side of the
// translation.
func (f *trackedFlow) through(as form) conntrack.Tuple {
	switch as {
	case request:
		return f.translated
	case replyToNode:
		return f.original.Inverse()
	}
	return f.translated.Inverse()
}

// rewrite gives the packet another tuple, as nf_nat_manip_pkt does. Checksums are made anew,
// so that those a network card was to fill in are right; of a packet that is not all
// there, they are changed by what the tuple changes. SCTP's cannot be: it stays then.
func (p *captured) rewrite(to conntrack.Tuple) {
	if p.Tuple == to {
		return
	}
	before := p.covered(4)
	p.setAddresses(to.Source.Addr(), to.Destination.Addr())
	t := p.Transport()
	binary.BigEndian.PutUint16(t, to.Source.Port())
	binary.BigEndian.PutUint16(t[2:], to.Destination.Port())
	p.Tuple = to
	switch p.Tuple.Protocol {
	case packet.TCP:
		p.setChecksum(16, before, p.covered(4))
	case packet.UDP:
		// 0 means that there is none (RFC 768).
		if len(t) >= 8 && t[6]|t[7] != 0 {
			p.setChecksum(6, before, p.covered(4))
			if t[6]|t[7] == 0 {
				t[6], t[7] = 0xff, 0xff
			}
		}
	case packet.SCTP:
		if p.whole() && len(t) >= 12 {
			clear(t[8:12])
			binary.LittleEndian.PutUint32(t[8:], crc32.Checksum(t, crc32.MakeTable(crc32.Castagnoli)))
		}
	}
}

func (p *captured) whole() bool { return !p.Cut && !p.Fragment }

// addresses is the part of the IP header that holds the source and destination.
func (p *captured) addresses() []byte {
	if p.Is4() {
		return p.Data[12:20]
	}
	return p.Data[8:40]
}

// setAddresses changes the IP header only.
func (p *captured) setAddresses(source, destination netip.Addr) {
	a := p.addresses()
	copy(a, source.AsSlice())
	copy(a[len(a)/2:], destination.AsSlice())
	if !p.Is4() {
		return
	}
	header := p.Data[:int(p.Data[0]&0xf)*4]
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], ^folded(sum(0, header)))
}

// covered copies what a transport checksum covers of the addresses and the first n bytes
// of the transport header.
func (p *captured) covered(n int) []byte {
	t := p.Transport()
	return slices.Concat(p.addresses(), t[:min(n, len(t))])
}

// setChecksum sets the transport checksum at an offset. before and after are what it covers
// and has changed.
func (p *captured) setChecksum(offset int, before, after []byte) {
	t := p.Transport()
	if len(t) < offset+2 {
		return
	}
	field := t[offset : offset+2]
	if !p.whole() {
		binary.BigEndian.PutUint16(field, updated(binary.BigEndian.Uint16(field), before, after))
		return
	}
	field[0], field[1] = 0, 0
	// The pseudo header: addresses, length, protocol (RFC 9293, section 3.1; RFC 8200, section 8.1).
	s := sum(0, p.addresses()) + uint32(len(t)>>16) + uint32(len(t)&0xffff) + uint32(p.Protocol)
	binary.BigEndian.PutUint16(field, ^folded(sum(s, t)))
}

// sum adds up 16-bit words (RFC 1071).
func sum(s uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func folded(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// updated is a checksum of which some words have changed (RFC 1624).
func updated(check uint16, before, after []byte) uint16 {
	return ^folded(uint32(^check) + uint32(^folded(sum(0, before))) + uint32(folded(sum(0, after))))
}

// errorIn is the packet that an ICMP error is about, a window into the error.
func (p *captured) errorIn() (in captured, ok bool) {
	t := p.Transport()
	if len(t) < 8 {
		return in, false
	}
	switch {
	case p.Protocol == protoICMP && p.Is4():
		// Destination unreachable, source quench, time exceeded, parameter problem.
		ok = slices.Contains([]byte{3, 4, 11, 12}, t[0])
	case p.Protocol == protoICMPv6 && !p.Is4():
		ok = t[0] < 128
	}
	if !ok || p.Fragment {
		return in, false
	}
	inner, err := packet.Decode(t[8:])
	in.Packet = inner
	return in, err == nil && in.Is4() == p.Is4()
}

// rewriteError translates an ICMP error, as nf_nat_icmp_reply_translation does. from
// is the tuple of packets that go where the error goes, to what they become; in is
// the packet that the error is about: one of the other direction.
func (p *captured) rewriteError(in *captured, from, to conntrack.Tuple) {
	before := p.covered(len(p.Data))
	in.rewrite(to.Inverse())
	source, destination := pairOf(p)
	if from.Source.Addr() != to.Source.Addr() {
		source = to.Source.Addr() // of any sender, as the kernel does
	}
	if from.Destination.Addr() == destination {
		destination = to.Destination.Addr()
	}
	p.setAddresses(source, destination)
	t := p.Transport()
	after := p.covered(len(p.Data))
	check := binary.BigEndian.Uint16(t[2:])
	if p.Protocol == protoICMP { // covers no addresses
		n := len(p.addresses())
		before, after = before[n:], after[n:]
	}
	binary.BigEndian.PutUint16(t[2:], updated(check, before, after))
}

// pairOf gives the addresses of the IP header.
func pairOf(p *captured) (source, destination netip.Addr) {
	a := p.addresses()
	source, _ = netip.AddrFromSlice(a[:len(a)/2])
	destination, _ = netip.AddrFromSlice(a[len(a)/2:])
	return source, destination
}
