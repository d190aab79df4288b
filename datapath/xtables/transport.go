package xtables

import "github.com/nfqproxy/nfqproxy/datapath/sim/iptables"

// sctp reads struct xt_sctp_info. Its map has 64 words, of which 8 are enough for all types.
func sctp(r reader) (iptables.Match, bool) {
	const source, destination, chunks = 1, 2, 4 // XT_SCTP_...
	flags, inverted := r.u32(284), r.u32(288)
	any := iptables.Ports{Range: iptables.PortRange{First: 0, Last: 65535}}
	m := iptables.SCTP{Source: any, Destination: any}
	if flags&source != 0 {
		m.Source = iptables.Ports{Range: r.ports(4), Negated: inverted&source != 0}
	}
	if flags&destination != 0 {
		m.Destination = iptables.Ports{Range: r.ports(0), Negated: inverted&destination != 0}
	}
	if flags&chunks == 0 {
		return m, true
	}
	test := iptables.ChunkTest{}
	switch r.u32(264) { // SCTP_CHUNK_MATCH_...
	case 1:
		test.Mode = iptables.ChunksAny
	case 2:
		test.Mode = iptables.ChunksAll
	case 4:
		test.Mode = iptables.ChunksOnly
	default:
		return nil, false
	}
	count := int(int32(r.u32(280)))
	if count < 0 || count > 4 { // XT_NUM_SCTP_FLAGS
		return nil, false
	}
	for typ := range 256 {
		if r.u32(8+4*(typ/32))&(1<<(typ%32)) == 0 {
			continue
		}
		c := iptables.ChunkType{Type: uint8(typ)}
		for i := range count {
			if at := 268 + 3*i; r.u8(at) == c.Type {
				c.Flags, c.FlagMask = r.u8(at+1), r.u8(at+2)
			}
		}
		test.Types = append(test.Types, c)
	}
	m.Chunks = iptables.Condition[iptables.ChunkTest]{Given: true, Negated: inverted&chunks != 0, Value: test}
	return m, true
}

// tcp reads struct xt_tcp (xt_tcpudp.h).
func tcp(r reader) (iptables.Match, bool) {
	const sourceInverted, destinationInverted, flagsInverted, optionInverted = 1, 2, 4, 8
	option, mask, compare, inverted := r.u8(8), r.u8(9), r.u8(10), r.u8(11)
	m := iptables.TCP{
		Source:      iptables.Ports{Range: r.ports(0), Negated: inverted&sourceInverted != 0},
		Destination: iptables.Ports{Range: r.ports(4), Negated: inverted&destinationInverted != 0},
	}
	if option != 0 {
		m.Option = iptables.Condition[uint8]{Given: true, Negated: inverted&optionInverted != 0, Value: option}
	}
	if mask != 0 || compare != 0 || inverted&flagsInverted != 0 {
		m.Flags = iptables.Condition[iptables.FlagTest]{
			Given: true, Negated: inverted&flagsInverted != 0,
			Value: iptables.FlagTest{Mask: iptables.TCPFlags(mask), Compare: iptables.TCPFlags(compare)},
		}
	}
	return m, inverted < 16 && (option != 0 || inverted&optionInverted == 0)
}

// udp reads struct xt_udp (xt_tcpudp.h).
func udp(r reader) (iptables.Match, bool) {
	inverted := r.u8(8)
	return iptables.UDP{
		Source:      iptables.Ports{Range: r.ports(0), Negated: inverted&1 != 0},
		Destination: iptables.Ports{Range: r.ports(4), Negated: inverted&2 != 0},
	}, inverted < 4
}

// icmpType reads struct ipt_icmp and ip6t_icmp (ip_tables.h): a type, a range of codes.
func icmpType(r reader) (t iptables.ICMPType, negated, ok bool) {
	typ, first, last, inverted := r.u8(0), r.u8(1), r.u8(2), r.u8(3)
	t = iptables.ICMPType{Type: typ}
	switch {
	case typ == 255 && first == 0 && last == 255 && r.family == iptables.IPv4:
		// ip_tables.c, icmp_match: 255 is every type.
		t = iptables.ICMPType{Any: true}
	case first == last:
		t.Code = iptables.Condition[uint8]{Given: true, Value: first}
	case first != 0 || last != 255:
		return t, false, false
	}
	return t, inverted&1 != 0, inverted < 2
}

func icmp(r reader) (iptables.Match, bool) {
	t, negated, ok := icmpType(r)
	return iptables.ICMP{Type: t, Negated: negated}, ok
}

func icmp6(r reader) (iptables.Match, bool) {
	t, negated, ok := icmpType(r)
	return iptables.ICMP6{Type: t, Negated: negated}, ok
}

// multiport reads struct xt_multiport and xt_multiport_v1, which knows ranges: a port
// whose flag is set is the first of two.
func multiport(r reader, flagsAt int, ranges bool) (iptables.Match, bool) {
	const maxPorts = 15 // XT_MULTI_PORTS
	side, count := r.u8(0), int(r.u8(1))
	if side > uint8(iptables.EitherPorts) || count > maxPorts {
		return nil, false
	}
	m := iptables.Multiport{Side: iptables.MultiportSide(side)}
	for i := 0; i < count; i++ {
		p := iptables.PortRange{First: r.u16(2 + 2*i), Last: r.u16(2 + 2*i)}
		if ranges && r.u8(flagsAt+i) != 0 {
			if i++; i >= count {
				return nil, false
			}
			p.Last = r.u16(2 + 2*i)
		}
		m.Ports = append(m.Ports, p)
	}
	m.Negated = ranges && r.u8(flagsAt+maxPorts) != 0
	return m, true
}
