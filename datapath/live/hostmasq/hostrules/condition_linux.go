package hostrules

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// condition is one test of a rule: a match, or a test of the transport header, whose
// meaning depends on the protocol that another condition names.
type condition struct {
	match     iptables.Match
	transport *transportTest // nil: match is valid
}

// interval is what a value is compared with, both ends included, in the order of bytes.
type interval struct{ first, last []byte }

func exactly(data []byte) interval { return interval{data, data} }

func (i interval) single() bool { return bytes.Equal(i.first, i.last) }

// answer is a comparison in iptables' terms.
type answer struct {
	conditions []condition
	never      bool // the comparison is false for each packet of the family
	// unknown is set if there is no exact counterpart; the other fields are then empty.
	unknown bool
}

func matching(m iptables.Match) answer { return answer{conditions: []condition{{match: m}}} }

var (
	unknownAnswer = answer{unknown: true}
	never         = answer{never: true}
)

// truth is a known answer.
func truth(yes bool) answer { return answer{never: !yes} }

// compare translates the comparison of a load with an interval, or its negation, for packets of
// the family.
func (t *translator) compare(l *load, in interval, negated bool) answer {
	size := len(in.first)
	switch {
	case size == 0 || size != len(in.last):
		return unknownAnswer
	case l.kind == loadMeta && (l.key == unix.NFT_META_IIFNAME || l.key == unix.NFT_META_OIFNAME):
		return deviceNamed(l, in, negated)
	case size != l.size:
		return unknownAnswer
	}
	if !in.single() && isZero(in.first) && isZero(xored(in.last, bytes.Repeat([]byte{0xff}, size))) {
		return truth(!negated) // it is every value
	}
	if l.xor != nil { // (x & mask) ^ xor == v is x & mask == v ^ xor
		if !in.single() {
			return unknownAnswer
		}
		in = exactly(xored(in.first, l.xor))
	}
	if l.mask != nil {
		switch {
		case !in.single():
			return unknownAnswer
		case !bytes.Equal(in.first, masked(in.first, l.mask)):
			return truth(negated)
		}
	}
	switch l.kind {
	case loadPayload:
		if at := t.fieldEnd(l); at > 0 && in.single() && !negated {
			return t.comparePayload(l.part(0, at), exactly(in.first[:at]), false).and(t.compare(l.part(at, l.size), exactly(in.first[at:]), false))
		}
		return t.comparePayload(l, in, negated)
	case loadMeta:
		return t.compareMeta(l, in, negated)
	case loadCt:
		return t.compareCt(l, in, negated)
	case loadFib:
		return compareFib(l, in, negated)
	}
	return unknownAnswer
}

// and combines two answers that must both be true.
func (a answer) and(b answer) answer {
	return answer{slices.Concat(a.conditions, b.conditions), a.never || b.never, a.unknown || b.unknown}
}

// fieldEnd is where, within a load of neighbouring fields, the first of them ends: nft
// compares addresses or ports side by side at once. 0: it is one field.
func (t *translator) fieldEnd(l *load) int {
	ends := map[uint32][]int{unix.NFT_PAYLOAD_TRANSPORT_HEADER: {2}, unix.NFT_PAYLOAD_NETWORK_HEADER: {12, 16}}[l.key]
	switch {
	case l.key == unix.NFT_PAYLOAD_NETWORK_HEADER && t.family == iptables.IPv6:
		ends = []int{8, 24}
	case l.key == unix.NFT_PAYLOAD_TRANSPORT_HEADER && l.size != 4:
		return 0 // two ports, and nothing else
	}
	for _, end := range ends {
		if l.offset < end && end < l.offset+l.size {
			return end - l.offset
		}
	}
	return 0
}

// part are some bytes of a load whose xor has been dealt with.
func (l *load) part(from, to int) *load {
	p := *l
	p.offset, p.size, p.xor = l.offset+from, to-from, nil
	if l.mask != nil {
		p.mask = l.mask[from:to]
	}
	return &p
}

func xored(a, b []byte) []byte {
	out := slices.Clone(a)
	for i := range min(len(out), len(b)) {
		out[i] ^= b[i]
	}
	return out
}

func masked(a, mask []byte) []byte {
	out := slices.Clone(a)
	for i := range min(len(out), len(mask)) {
		out[i] &= mask[i]
	}
	return out
}

// native is a number in the order of the machine; ok iff the interval is one number, of
// four bytes.
func (i interval) native() (n uint32, ok bool) {
	if !i.single() || len(i.first) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(i.first), true
}

// nativeMask is the load's mask as a number; all ones if there is none.
func (l *load) nativeMask() uint32 {
	if len(l.mask) != 4 {
		return ^uint32(0)
	}
	return binary.NativeEndian.Uint32(l.mask)
}

// deviceNamed compares the name of a device. With fewer bytes than a name's size it is a wildcard,
// unless it includes the NUL.
func deviceNamed(l *load, in interval, negated bool) answer {
	const room = 16 // IFNAMSIZ
	if !in.single() || l.mask != nil || l.xor != nil || len(in.first) > room {
		return unknownAnswer
	}
	name, _, ended := bytes.Cut(in.first, []byte{0})
	d := iptables.Interface{Name: string(name), Wildcard: !ended}
	if !ended && len(name) == room {
		return unknownAnswer
	}
	return deviceMatch(l.key == unix.NFT_META_IIFNAME, d, negated)
}

func deviceMatch(in bool, d iptables.Interface, negated bool) answer {
	if in {
		return matching(iptables.InInterface{Interface: d, Negated: negated})
	}
	return matching(iptables.OutInterface{Interface: d, Negated: negated})
}

// comparePayload translates comparisons of headers.
func (t *translator) comparePayload(l *load, in interval, negated bool) answer {
	switch l.key {
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		return answer{conditions: []condition{{transport: &transportTest{
			offset: l.offset, size: l.size, mask: l.mask, in: []interval{in}, negated: negated, text: l.String(),
		}}}}
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
	default:
		return unknownAnswer
	}
	source, destination, length := 12, 16, 4
	if t.family == iptables.IPv6 {
		source, destination, length = 8, 24, 16
	}
	for _, at := range []int{source, destination} {
		if at <= l.offset && l.offset+l.size <= at+length {
			return addressIn(at == source, l, l.offset-at, length, in, negated)
		}
	}
	if t.family != iptables.IPv4 {
		return unknownAnswer // the next header is not the protocol if there are others
	}
	switch {
	case l.offset == 9 && l.size == 1 && l.mask == nil && in.single():
		return protocol(in.first[0], negated)
	case l.offset == 6 && l.size == 2 && bytes.Equal(l.mask, []byte{0x1f, 0xff}) && in.single() && in.first[0]|in.first[1] == 0:
		return matching(iptables.Fragment{Negated: !negated})
	case l.offset == 2 && l.size == 2 && l.mask == nil:
		return matching(iptables.Length{Range: portRange(in), Negated: negated})
	}
	return unknownAnswer
}

func portRange(in interval) iptables.Range[uint16] {
	return iptables.Range[uint16]{First: binary.BigEndian.Uint16(in.first), Last: binary.BigEndian.Uint16(in.last)}
}

func protocol(number uint8, negated bool) answer {
	if number == 0 {
		return unknownAnswer // iptables takes it for every protocol
	}
	return matching(iptables.Protocol{Number: number, Negated: negated})
}

// addressIn compares some bytes, from begin on, of a source or destination of so many.
func addressIn(source bool, l *load, begin, length int, in interval, negated bool) answer {
	whole := func(part []byte, rest byte) netip.Addr {
		b := bytes.Repeat([]byte{rest}, length)
		clear(b[:begin])
		copy(b[begin:], part)
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	if in.single() {
		mask := l.mask
		if mask == nil {
			mask = bytes.Repeat([]byte{0xff}, l.size)
		}
		return networkMatch(source, iptables.MaskedNetwork(whole(in.first, 0), whole(mask, 0)), negated)
	}
	if begin != 0 {
		return unknownAnswer
	}
	return addressRange(source, whole(in.first, 0), whole(in.last, 0xff), negated)
}

func networkMatch(source bool, n iptables.Network, negated bool) answer {
	if source {
		return matching(iptables.Source{Network: n, Negated: negated})
	}
	return matching(iptables.Destination{Network: n, Negated: negated})
}

// addressRange is a network if the range is one.
func addressRange(source bool, first, last netip.Addr, negated bool) answer {
	if p, ok := (iptables.AddrRange{First: first, Last: last}).Prefix(); ok {
		return networkMatch(source, networkOf(p), negated)
	}
	r := iptables.Condition[iptables.AddrRange]{Given: true, Negated: negated, Value: iptables.AddrRange{First: first, Last: last}}
	if source {
		return matching(iptables.IPRange{Source: r})
	}
	return matching(iptables.IPRange{Destination: r})
}

func networkOf(p netip.Prefix) iptables.Network {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	m, _ := netip.AddrFromSlice(mask)
	return iptables.MaskedNetwork(p.Addr(), m)
}

// compareMeta translates comparisons of the packet's metadata.
func (t *translator) compareMeta(l *load, in interval, negated bool) answer {
	n, number := in.native()
	if number && l.key == unix.NFT_META_MARK {
		return matching(iptables.Mark{Mark: iptables.MaskedValue{Value: n, Mask: l.nativeMask()}, Negated: negated})
	}
	if l.mask != nil || !in.single() {
		return unknownAnswer
	}
	switch l.key {
	case unix.NFT_META_NFPROTO:
		return truth((in.first[0] == nft.Family(t.family)) != negated)
	case unix.NFT_META_PROTOCOL:
		ethertype := []byte{0x08, 0x00} // ETH_P_IP
		if t.family == iptables.IPv6 {
			ethertype = []byte{0x86, 0xdd} // ETH_P_IPV6
		}
		return truth(bytes.Equal(in.first, ethertype) != negated)
	case unix.NFT_META_L4PROTO:
		return protocol(in.first[0], negated)
	case unix.NFT_META_PKTTYPE:
		if typ := iptables.LinkType(in.first[0]); typ <= iptables.LinkMulticast {
			return matching(iptables.PacketType{Type: typ, Negated: negated})
		}
	case unix.NFT_META_IIF, unix.NFT_META_OIF:
		if name, ok := t.kernel.device(n); ok && number {
			return deviceMatch(l.key == unix.NFT_META_IIF, iptables.Interface{Name: name}, negated)
		}
	case unix.NFT_META_SKUID, unix.NFT_META_SKGID:
		if !number || negated { // a packet without a socket passes iptables' negated test, and not nft's
			return unknownAnswer
		}
		id := iptables.Condition[iptables.Range[uint32]]{Given: true, Value: iptables.Range[uint32]{First: n, Last: n}}
		if l.key == unix.NFT_META_SKUID {
			return matching(iptables.Owner{UID: id})
		}
		return matching(iptables.Owner{GID: id})
	}
	return unknownAnswer
}

// compareFib translates comparisons of an address's type.
func compareFib(l *load, in interval, negated bool) answer {
	n, ok := in.native()
	if !ok || l.mask != nil || n > 11 { // RTN_XRESOLVE
		return unknownAnswer
	}
	return fibTypes(l, 1<<n, negated)
}

// fibTypes is addrtype's match for a set of types.
func fibTypes(l *load, types iptables.AddrTypes, negated bool) answer {
	const devices = unix.NFTA_FIB_F_IIF | unix.NFTA_FIB_F_OIF
	m := iptables.Addrtype{LimitIn: l.key&devices == unix.NFTA_FIB_F_IIF, LimitOut: l.key&devices == unix.NFTA_FIB_F_OIF}
	c := iptables.Condition[iptables.AddrTypes]{Given: true, Negated: negated, Value: types}
	switch l.key &^ devices {
	case unix.NFTA_FIB_F_SADDR:
		m.Source = c
	case unix.NFTA_FIB_F_DADDR:
		m.Destination = c
	default:
		return unknownAnswer
	}
	if l.key&devices == devices {
		return unknownAnswer
	}
	return matching(m)
}
