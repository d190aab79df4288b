package replay

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// through is the tuple that a packet of the form has on the other side of the
// translation.
func (f *trackedFlow) through(as form) Tuple {
	switch as {
	case asked:
		return f.translated
	case answeredFar:
		return f.original.reversed()
	}
	return f.translated.reversed()
}

// rewrite returns the packet another tuple, as nf_nat_manip_pkt does. Checksums are computed
// again, so that those of offloading are right, too; the checksum of a truncated packet is updated
// by the changes of the tuple. That is not possible for SCTP, whose checksum stays then.
func (p *packet) rewrite(to Tuple) {
	if p.tuple == to {
		return
	}
	before := p.covered(4)
	p.setAddresses(to.Source.Addr(), to.Destination.Addr())
	t := p.transport()
	binary.BigEndian.PutUint16(t, to.Source.Port())
	binary.BigEndian.PutUint16(t[2:], to.Destination.Port())
	p.tuple = to
	switch p.tuple.Protocol {
	case decision.TCP:
		p.setChecksum(16, before, p.covered(4))
	case decision.UDP:
		// 0 means no checksum (RFC 768).
		if len(t) >= 8 && t[6]|t[7] != 0 {
			p.setChecksum(6, before, p.covered(4))
			if t[6]|t[7] == 0 {
				t[6], t[7] = 0xff, 0xff
			}
		}
	case decision.SCTP:
		if p.whole() && len(t) >= 12 {
			clear(t[8:12])
			binary.LittleEndian.PutUint32(t[8:], crc32.Checksum(t, crc32.MakeTable(crc32.Castagnoli)))
		}
	}
}

func (p *packet) whole() bool { return !p.cut && !p.fragment }

// addresses is the part of the IP header that holds the source and destination.
func (p *packet) addresses() []byte {
	if p.is4() {
		return p.data[12:20]
	}
	return p.data[8:40]
}

// setAddresses changes the IP header only.
func (p *packet) setAddresses(source, destination netip.Addr) {
	a := p.addresses()
	copy(a, source.AsSlice())
	copy(a[len(a)/2:], destination.AsSlice())
	if !p.is4() {
		return
	}
	header := p.data[:int(p.data[0]&0xf)*4]
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], ^folded(sum(0, header)))
}

// covered copies the parts of the addresses and the first n bytes of the transport header that a
// transport checksum covers.
func (p *packet) covered(n int) []byte {
	t := p.transport()
	return slices.Concat(p.addresses(), t[:min(n, len(t))])
}

// setChecksum sets the transport checksum at an offset. before and after are the covered bytes
// that have changed.
func (p *packet) setChecksum(offset int, before, after []byte) {
	t := p.transport()
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
	s := sum(0, p.addresses()) + uint32(len(t)>>16) + uint32(len(t)&0xffff) + uint32(p.protocol)
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
func (p *packet) errorIn() (in packet, ok bool) {
	t := p.transport()
	if len(t) < 8 {
		return in, false
	}
	switch {
	case p.protocol == protoICMP && p.is4():
		// Destination unreachable, source quench, time exceeded, parameter problem.
		ok = slices.Contains([]byte{3, 4, 11, 12}, t[0])
	case p.protocol == protoICMPv6 && !p.is4():
		ok = t[0] < 128
	}
	if !ok || p.fragment {
		return in, false
	}
	in, err := decode(t[8:])
	return in, err == nil && in.is4() == p.is4()
}

// rewriteError translates an ICMP error, as nf_nat_icmp_reply_translation does. from is the tuple
// of packets in the error's direction, to their tuple after translation; in is the packet that the
// error is about: one of the other direction.
func (p *packet) rewriteError(in *packet, from, to Tuple) {
	before := p.covered(len(p.data))
	in.rewrite(to.reversed())
	source, destination := pairOf(p)
	if from.Source.Addr() != to.Source.Addr() {
		source = to.Source.Addr() // for any sender, as the kernel does
	}
	if from.Destination.Addr() == destination {
		destination = to.Destination.Addr()
	}
	p.setAddresses(source, destination)
	t := p.transport()
	after := p.covered(len(p.data))
	check := binary.BigEndian.Uint16(t[2:])
	if p.protocol == protoICMP { // covers no addresses
		n := len(p.addresses())
		before, after = before[n:], after[n:]
	}
	binary.BigEndian.PutUint16(t[2:], updated(check, before, after))
}

// pairOf returns the addresses of the IP header.
func pairOf(p *packet) (source, destination netip.Addr) {
	a := p.addresses()
	source, _ = netip.AddrFromSlice(a[:len(a)/2])
	destination, _ = netip.AddrFromSlice(a[len(a)/2:])
	return source, destination
}
