package xtables

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// Extension is a match or target as the kernel keeps it.
type Extension struct {
	Name     string
	Revision uint8
	Data     []byte // the module's own struct, perhaps with bytes of alignment behind it
}

// SetName gives the name of an ipset by its index, under which the kernel keeps it.
type SetName func(index uint16) (name string, ok bool)

// decoder reads the struct of one revision of a module.
type decoder[T any] struct {
	size int // of the struct, less the alignment at its end
	// decode gets size bytes or more. It is not ok if they have no meaning that the type
	// has a place for.
	decode func(r reader) (value T, ok bool)
}

type revision struct {
	name string
	n    uint8
}

// reader gives the fields of a struct; offsets have to be inside of the decoder's size.
type reader struct {
	family iptables.Family
	set    SetName
	data   []byte
}

func (r reader) u8(at int) uint8   { return r.data[at] }
func (r reader) u16(at int) uint16 { return byteOrder.Uint16(r.data[at:]) }
func (r reader) u32(at int) uint32 { return byteOrder.Uint32(r.data[at:]) }
func (r reader) u64(at int) uint64 { return byteOrder.Uint64(r.data[at:]) }

// text is a string in a field of so many bytes.
func (r reader) text(at, size int) string { return cString(r.data[at : at+size]) }

// addr is a union nf_inet_addr, of 16 bytes.
func (r reader) addr(at int) netip.Addr {
	if r.family == iptables.IPv6 {
		return netip.AddrFrom16([16]byte(r.data[at:]))
	}
	return netip.AddrFrom4([4]byte(r.data[at:]))
}

// network is an address and its mask, side by side.
func (r reader) network(at int) iptables.Network {
	return Network(r.addr(at), r.addr(at+16))
}

// Network is a network of which only the bits of the mask are kept.
func Network(addr, mask netip.Addr) iptables.Network {
	a, m := addr.AsSlice(), mask.AsSlice()
	for i := range a {
		a[i] &= m[i]
	}
	addr, _ = netip.AddrFromSlice(a)
	return iptables.Network{Addr: addr, Mask: mask}
}

// decode looks the module up. It is not ok for one that is not known, or whose struct is
// too short or has no meaning.
func decode[T any](decoders map[revision]decoder[T], f iptables.Family, x Extension, set SetName) (value T, ok bool) {
	d, ok := decoders[revision{x.Name, x.Revision}]
	if !ok || len(x.Data) < d.size {
		return value, false
	}
	return d.decode(reader{f, set, x.Data})
}

// DecodeMatch gives the match as a typed one; as an [iptables.UnknownMatch] with its name if
// the module or its revision is not known, or the struct has no meaning. set may be nil:
// then the names of ipsets are unknown.
func DecodeMatch(f iptables.Family, x Extension, set SetName) iptables.Match {
	if m, ok := decode(matches, f, x, set); ok {
		return m
	}
	return iptables.UnknownMatch{Match: cmp.Or(x.Name, nameless), Args: notDecoded(x)}
}

// nameless stands for an empty name, which would make a generic match.
const nameless = "nameless"

// notDecoded stands where the options would.
func notDecoded(x Extension) []iptables.Token {
	return []iptables.Token{iptables.Text(fmt.Sprintf("revision %d, not decoded", x.Revision))}
}

// given makes a condition out of a bit that says whether it is there, and one that says
// whether it is negated.
func given[T any](flags, inverted, bit uint32, value T) iptables.Condition[T] {
	if flags&bit == 0 {
		return iptables.Condition[T]{}
	}
	return iptables.Condition[T]{Given: true, Negated: inverted&bit != 0, Value: value}
}

// flagGiven is like given for an option without a value.
func flagGiven(flags, inverted, bit uint32) iptables.Condition[bool] {
	return given(flags, inverted, bit, inverted&bit == 0)
}

// matches are the modules that are known; conntrack's and set's are elsewhere.
var matches = map[revision]decoder[iptables.Match]{
	{"comment", 0}:   {256, func(r reader) (iptables.Match, bool) { return iptables.Comment{Text: r.text(0, 256)}, true }},
	{"tcp", 0}:       {12, tcp},
	{"udp", 0}:       {9, udp},
	{"sctp", 0}:      {292, sctp},
	{"icmp", 0}:      {4, icmp},
	{"icmp6", 0}:     {4, icmp6},
	{"multiport", 0}: {32, func(r reader) (iptables.Match, bool) { return multiport(r, 32, false) }},
	{"multiport", 1}: {48, func(r reader) (iptables.Match, bool) { return multiport(r, 32, true) }},
	{"addrtype", 0}:  {12, addrtype0},
	{"addrtype", 1}:  {8, addrtype1},
	{"mark", 1}: {9, func(r reader) (iptables.Match, bool) {
		return iptables.Mark{Mark: r.masked(0), Negated: r.u8(8) != 0}, true
	}},
	{"connmark", 1}: {9, func(r reader) (iptables.Match, bool) {
		return iptables.Connmark{Mark: r.masked(0), Negated: r.u8(8) != 0}, true
	}},
	{"state", 0}:     {4, state},
	{"conntrack", 1}: {152, func(r reader) (iptables.Match, bool) { return conntrack(r, 1), true }},
	{"conntrack", 2}: {154, func(r reader) (iptables.Match, bool) { return conntrack(r, 2), true }},
	{"conntrack", 3}: {162, func(r reader) (iptables.Match, bool) { return conntrack(r, 3), true }},
	{"statistic", 0}: {16, statistic},
	{"set", 1}:       {4, func(r reader) (iptables.Match, bool) { return ipset(r, 1) }},
	{"set", 2}:       {4, func(r reader) (iptables.Match, bool) { return ipset(r, 2) }},
	{"set", 3}:       {44, func(r reader) (iptables.Match, bool) { return ipset(r, 3) }},
	{"set", 4}:       {44, func(r reader) (iptables.Match, bool) { return ipset(r, 4) }},
	{"iprange", 1}:   {65, iprange},
	{"physdev", 0}:   {66, physdev},
	{"owner", 1}:     {18, owner},
	{"limit", 0}:     {8, limit},
	{"mac", 0}: {12, func(r reader) (iptables.Match, bool) {
		return iptables.MAC{Address: iptables.MACAddress(r.data[:6]), Negated: r.u32(8) != 0}, true
	}},
	{"length", 0}: {5, func(r reader) (iptables.Match, bool) {
		return iptables.Length{Range: iptables.Range[uint16]{First: r.u16(0), Last: r.u16(2)}, Negated: r.u8(4) != 0}, true
	}},
	{"pkttype", 0}: {8, func(r reader) (iptables.Match, bool) {
		return iptables.PacketType{Type: iptables.LinkType(r.u32(0)), Negated: r.u32(4) != 0}, r.u32(0) <= uint32(iptables.LinkMulticast)
	}},
	{"recent", 0}: {211, func(r reader) (iptables.Match, bool) { return recent(r, 0) }},
	{"recent", 1}: {228, func(r reader) (iptables.Match, bool) { return recent(r, 1) }},
	{"rpfilter", 0}: {1, func(r reader) (iptables.Match, bool) {
		f := r.u8(0) // xt_rpfilter.h, XT_RPFILTER_...
		return iptables.Rpfilter{Loose: f&1 != 0, ValidMark: f&2 != 0, AcceptLocal: f&4 != 0, Invert: f&8 != 0}, f < 16
	}},
	{"ttl", 0}: {2, func(r reader) (iptables.Match, bool) { m, ok := hop(r); return m, ok }},
	{"hl", 0}:  {2, func(r reader) (iptables.Match, bool) { m, ok := hop(r); return iptables.HopLimit(m), ok }},
	{"tos", 1}: {3, func(r reader) (iptables.Match, bool) {
		return iptables.TOS{Mask: r.u8(0), Value: r.u8(1), Negated: r.u8(2) != 0}, true
	}},
	{"dscp", 0}: {2, func(r reader) (iptables.Match, bool) {
		return iptables.DSCP{DSCP: r.u8(0), Negated: r.u8(1) != 0}, r.u8(0) < 64
	}},
	{"tcpmss", 0}: {5, func(r reader) (iptables.Match, bool) {
		return iptables.SegmentSize{Range: iptables.Range[uint16]{First: r.u16(0), Last: r.u16(2)}, Negated: r.u8(4) != 0}, true
	}},
	{"rt", 0}:     {277, routingHeader},
	{"policy", 0}: {308, ipsecPolicy},
	{"quota", 0}: {16, func(r reader) (iptables.Match, bool) {
		return iptables.Quota{Bytes: r.u64(8), Negated: r.u32(0)&1 != 0}, r.u32(0) < 2 // XT_QUOTA_INVERT
	}},
	{"connlimit", 1}: {24, connlimit},
	{"connbytes", 0}: {18, connbytes},
	{"cpu", 0}: {8, func(r reader) (iptables.Match, bool) {
		return iptables.CPU{Number: r.u32(0), Negated: r.u32(4) != 0}, r.u32(4) <= 1
	}},
	{"bpf", 0}:    {516, func(r reader) (iptables.Match, bool) { return program(r, int(r.u16(0)), 4) }},
	{"bpf", 1}:    {520, bpf1},
	{"time", 0}:   {22, timeOf},
	{"string", 1}: {150, text},
	{"u32", 0}:    {1982, u32},
	{"helper", 0}: {34, func(r reader) (iptables.Match, bool) {
		return iptables.Helper{Name: r.text(4, 30), Negated: r.u32(0)&1 != 0}, true
	}},
	{"socket", 1}: {1, socket},
	{"socket", 2}: {1, socket},
	{"socket", 3}: {1, socket},
}

// masked is a value and its mask.
func (r reader) masked(at int) iptables.MaskedValue {
	return iptables.MaskedValue{Value: r.u32(at), Mask: r.u32(at + 4)}
}

// ports is a range, __u16 [2].
func (r reader) ports(at int) iptables.PortRange {
	return iptables.PortRange{First: r.u16(at), Last: r.u16(at + 2)}
}

const allAddrTypes = 1<<12 - 1

func addrtype0(r reader) (iptables.Match, bool) {
	return addrtype(r, r.u32(4) != 0, r.u32(8) != 0, 0)
}

func addrtype1(r reader) (iptables.Match, bool) {
	flags := r.u32(4) // xt_addrtype.h, XT_ADDRTYPE_...
	return addrtype(r, flags&1 != 0, flags&2 != 0, flags)
}

func addrtype(r reader, sourceInverted, destinationInverted bool, flags uint32) (iptables.Match, bool) {
	source, destination := r.u16(0), r.u16(2)
	m := iptables.Addrtype{LimitIn: flags&4 != 0, LimitOut: flags&8 != 0}
	if source != 0 {
		m.Source = iptables.Condition[iptables.AddrTypes]{Given: true, Negated: sourceInverted, Value: iptables.AddrTypes(source)}
	}
	if destination != 0 {
		m.Destination = iptables.Condition[iptables.AddrTypes]{Given: true, Negated: destinationInverted, Value: iptables.AddrTypes(destination)}
	}
	return m, (source|destination) != 0 && (source|destination) <= allAddrTypes && flags < 16
}

// statistic reads struct xt_statistic_info.
func statistic(r reader) (iptables.Match, bool) {
	mode, negated := r.u16(0), r.u16(2)&1 != 0
	if mode == 0 { // XT_STATISTIC_MODE_RANDOM
		p := r.u32(4)
		return iptables.Statistic{Probability: p, Negated: negated}, p <= iptables.ProbabilityOne
	}
	// XT_STATISTIC_MODE_NTH; the kernel keeps one less.
	every, packet := r.u32(4), r.u32(8)
	return iptables.Statistic{Nth: true, Every: every + 1, Packet: packet, Negated: negated}, mode == 1 && every != ^uint32(0) && packet <= every
}

// iprange reads struct xt_iprange_mtinfo.
func iprange(r reader) (iptables.Match, bool) {
	const source, destination, inverted = 1, 2, 4 // IPRANGE_..., IPRANGE_..._INV is 4 bits further
	flags := uint32(r.u8(64))
	between := func(at int) iptables.AddrRange { return iptables.AddrRange{First: r.addr(at), Last: r.addr(at + 16)} }
	return iptables.IPRange{
		Source:      given(flags, flags>>inverted, source, between(0)),
		Destination: given(flags, flags>>inverted, destination, between(32)),
	}, flags&(source|destination) != 0
}

// device reads a name and the mask that says how much of it counts: with its NUL, or for a
// wildcard without what stands behind the wildcard's beginning, which iptables writes as
// "eth+" (xtables.c, xtables_parse_interface).
func device(name, mask []byte) (iptables.Interface, bool) {
	n := 0
	for n < len(mask) && mask[n] == 0xff {
		n++
	}
	for _, b := range mask[n:] {
		if b != 0 {
			return iptables.Interface{}, false
		}
	}
	text := cString(name)
	if n > len(text) {
		return iptables.Interface{Name: text}, true
	}
	return iptables.Interface{Name: text[:n], Wildcard: true}, n < len(mask)
}

// physdev reads struct xt_physdev_info.
func physdev(r reader) (iptables.Match, bool) {
	const size = 16 // IFNAMSIZ
	const in, out, bridged, isIn, isOut = 1, 2, 4, 8, 16
	inverted, flags := uint32(r.u8(4*size)), uint32(r.u8(4*size+1))
	m := iptables.Physdev{
		IsIn: flagGiven(flags, inverted, isIn), IsOut: flagGiven(flags, inverted, isOut), IsBridged: flagGiven(flags, inverted, bridged),
	}
	ok1, ok2 := true, true
	if flags&in != 0 {
		var d iptables.Interface
		d, ok1 = device(r.data[:size], r.data[size:2*size])
		m.In = given(flags, inverted, in, d)
	}
	if flags&out != 0 {
		var d iptables.Interface
		d, ok2 = device(r.data[2*size:3*size], r.data[3*size:4*size])
		m.Out = given(flags, inverted, out, d)
	}
	return m, ok1 && ok2
}

// owner reads struct xt_owner_match_info.
func owner(r reader) (iptables.Match, bool) {
	const uid, gid, socketThere, supplementary = 1, 2, 4, 8
	flags, inverted := uint32(r.u8(16)), uint32(r.u8(17))
	ids := func(at int) iptables.Range[uint32] {
		return iptables.Range[uint32]{First: r.u32(at), Last: r.u32(at + 4)}
	}
	return iptables.Owner{
		SocketExists: flagGiven(flags, inverted, socketThere),
		UID:          given(flags, inverted, uid, ids(0)), GID: given(flags, inverted, gid, ids(8)),
		SupplementaryGroups: flags&supplementary != 0,
	}, flags&(uid|gid|socketThere) != 0
}

// limit reads struct xt_rateinfo, whose other fields the kernel works with.
func limit(r reader) (iptables.Match, bool) {
	return iptables.Limit{Rate: iptables.Rate{Interval: r.u32(0)}, Burst: r.u32(4)}, r.u32(0) != 0
}

// recent reads struct xt_recent_mtinfo and xt_recent_mtinfo_v1, which has a mask.
func recent(r reader, rev uint8) (iptables.Match, bool) {
	const check, set, update, remove, ttl, reap = 1, 2, 4, 8, 16, 32 // XT_RECENT_...
	flags := r.u8(8)
	m := iptables.Recent{
		Negated: r.u8(9) != 0, Seconds: r.u32(0), HitCount: r.u32(4), TTL: flags&ttl != 0, Reap: flags&reap != 0,
		Name: r.text(10, 200), Destination: r.u8(210) != 0,
	}
	switch flags &^ (ttl | reap) {
	case check:
		m.Mode = iptables.RecentCheck
	case set:
		m.Mode = iptables.RecentSet
	case update:
		m.Mode = iptables.RecentUpdate
	case remove:
		m.Mode = iptables.RecentRemove
	default:
		return nil, false
	}
	if rev == 0 {
		m.Mask = netip.AddrFrom4([4]byte{255, 255, 255, 255})
		if r.family == iptables.IPv6 {
			m.Mask = netip.AddrFrom16([16]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255})
		}
		return m, true
	}
	m.Mask = r.addr(212)
	return m, true
}

// socket reads struct xt_socket_mtinfo1 to 3, which differ in the flags they allow.
func socket(r reader) (iptables.Match, bool) {
	f := r.u8(0)
	return iptables.Socket{Transparent: f&1 != 0, NoWildcard: f&2 != 0, RestoreSkmark: f&4 != 0}, f < 8
}
