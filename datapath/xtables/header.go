package xtables

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// hop reads struct ipt_ttl_info and struct ip6t_hl_info, whose modes are in the order of
// [iptables.Comparison].
func hop(r reader) (iptables.TTL, bool) {
	mode := r.u8(0)
	return iptables.TTL{Compare: iptables.CompareEqual + iptables.Comparison(mode), Value: r.u8(1)}, mode <= 3
}

// setHop reads struct ipt_TTL_info and struct ip6t_HL_info.
func setHop(r reader) (iptables.SetTTL, bool) {
	mode := r.u8(0)
	return iptables.SetTTL{Change: iptables.HopChange(mode), Value: r.u8(1)}, mode <= uint8(iptables.HopDecrement)
}

// routingHeader reads struct ip6t_rt.
func routingHeader(r reader) (iptables.Match, bool) {
	const typ, segments, length, reserved, addresses, notStrict = 1, 2, 4, 8, 0x10, 0x20 // IP6T_RT_...
	flags, inverted, count := uint32(r.u8(16)), uint32(r.u8(17)), int(r.u8(276))
	m := iptables.RoutingHeader{
		Type:         given(flags, inverted, typ, r.u32(0)),
		SegmentsLeft: given(flags, inverted, segments, iptables.Range[uint32]{First: r.u32(4), Last: r.u32(8)}),
		Length:       given(flags, inverted, length, r.u32(12)),
		Reserved:     flags&reserved != 0, NotStrict: flags&notStrict != 0,
	}
	if count > 16 {
		return nil, false
	}
	if flags&addresses != 0 {
		for i := range count {
			m.Addresses = append(m.Addresses, netip.AddrFrom16([16]byte(r.data[20+16*i:])))
		}
	}
	return m, flags < 2*notStrict
}

// ipsecPolicy reads struct xt_policy_info.
func ipsecPolicy(r reader) (iptables.Match, bool) {
	const in, out, none, strict = 1, 2, 4, 8 // XT_POLICY_MATCH_...
	const elements, size = 4, 76             // XT_POLICY_MAX_ELEM, sizeof(struct xt_policy_elem)
	flags, count := r.u16(elements*size), int(r.u16(elements*size+2))
	m := iptables.IPsec{Out: flags&out != 0, None: flags&none != 0, Strict: flags&strict != 0}
	if count > elements || flags >= 2*strict || (flags&in != 0) == m.Out {
		return nil, false
	}
	for i := range count {
		e, ok := ipsecElement(reader{family: r.family, data: r.data[i*size : (i+1)*size]})
		if !ok {
			return nil, false
		}
		m.Elements = append(m.Elements, e)
	}
	return m, true
}

func ipsecElement(r reader) (iptables.IPsecElement, bool) {
	const source, destination, protocol, mode, spi, request = 1, 2, 4, 8, 16, 32 // struct xt_policy_spec
	flags, inverted := uint32(r.u8(74)), uint32(r.u8(75))
	return iptables.IPsecElement{
		Source:      given(flags, inverted, source, r.network(0)),
		Destination: given(flags, inverted, destination, r.network(32)),
		// iptables writes the number as the host has it, although the kernel compares it as
		// the network has it (libxt_policy.c, xt_policy.c).
		SPI:       given(flags, inverted, spi, r.u32(64)),
		RequestID: given(flags, inverted, request, r.u32(68)),
		Protocol:  given(flags, inverted, protocol, r.u8(72)),
		Tunnel:    given(flags, inverted, mode, r.u8(73) == 1), // XT_POLICY_MODE_TUNNEL
	}, r.u8(73) <= 1
}

// connlimit reads struct xt_connlimit_info.
func connlimit(r reader) (iptables.Match, bool) {
	const upTo, destination = 1, 2 // XT_CONNLIMIT_INVERT, XT_CONNLIMIT_DADDR
	flags, mask := r.u32(20), r.addr(0)
	bits := 0
	all := mask.AsSlice()
	for bits < len(all)*8 && all[bits/8]&(0x80>>(bits%8)) != 0 {
		bits++
	}
	p, err := mask.Prefix(bits)
	if err != nil || p.Addr() != mask {
		return nil, false
	}
	return iptables.Connlimit{Limit: r.u32(16), UpTo: flags&upTo != 0, Bits: uint8(bits), Destination: flags&destination != 0}, flags < 4
}

// timeOf reads struct xt_time_info.
func timeOf(r reader) (iptables.Match, bool) {
	const kernelZone, contiguous = 1, 2 // XT_TIME_LOCAL_TZ, XT_TIME_CONTIGUOUS
	begin, end, flags := r.u32(0), r.u32(4), r.u8(21)
	const day = 24 * 60 * 60
	return iptables.Time{
		Begin: iptables.Condition[uint32]{Given: begin != 0, Value: begin}, End: iptables.Condition[uint32]{Given: true, Value: end},
		From: r.u32(8), To: r.u32(12), MonthDays: r.u32(16), WeekDays: r.u8(20),
		KernelZone: flags&kernelZone != 0, Contiguous: flags&contiguous != 0,
	}, flags < 4 && r.u32(8) < day && r.u32(12) < day
}

// text reads struct xt_string_info of revision 1.
func text(r reader) (iptables.Match, bool) {
	const inverted, ignoreCase = 1, 2 // XT_STRING_FLAG_...
	length, flags, to := int(r.u8(148)), r.u8(149), r.u16(2)
	if length == 0 || length > 128 || flags >= 4 {
		return nil, false
	}
	m := iptables.String{
		Pattern: string(r.data[20 : 20+length]), Algorithm: r.text(4, 16), From: r.u16(0),
		IgnoreCase: flags&ignoreCase != 0, Negated: flags&inverted != 0,
	}
	if to != 65535 { // which iptables-save does not print
		m.To = iptables.Condition[uint16]{Given: true, Value: to}
	}
	return m, true
}

// u32 reads struct xt_u32.
func u32(r reader) (iptables.Match, bool) {
	const size, most = 180, 11 // sizeof(struct xt_u32_test), XT_U32_MAXSIZE + 1
	count := int(r.u8(most * size))
	if count == 0 || count > most {
		return nil, false
	}
	m := iptables.U32{Negated: r.u8(most*size+1) != 0}
	for i := range count {
		at := i * size
		numbers, ranges := int(r.u8(at+176)), int(r.u8(at+177))
		if numbers == 0 || numbers > most || ranges > most {
			return nil, false
		}
		t := iptables.U32Test{Start: r.u32(at)}
		for k := 1; k < numbers; k++ {
			operator := r.u8(at + 8*k + 4)
			if operator > uint8(iptables.U32At) {
				return nil, false
			}
			t.Steps = append(t.Steps, iptables.U32Step{Operator: iptables.U32Operator(operator), Number: r.u32(at + 8*k)})
		}
		for k := range ranges {
			t.Ranges = append(t.Ranges, iptables.Range[uint32]{First: r.u32(at + 88 + 8*k), Last: r.u32(at + 92 + 8*k)})
		}
		m.Tests = append(m.Tests, t)
	}
	return m, true
}

// connbytes reads struct xt_connbytes_info, which has a negated range with its ends swapped.
func connbytes(r reader) (iptables.Match, bool) {
	unit, direction := iptables.ConnbytesUnit(r.u8(16)), iptables.ConnbytesDirection(r.u8(17))
	m := iptables.Connbytes{Count: iptables.Range[uint64]{First: r.u64(0), Last: r.u64(8)}, Unit: unit, Direction: direction}
	if m.Count.First > m.Count.Last {
		m.Count.First, m.Count.Last, m.Negated = m.Count.Last, m.Count.First, true
	}
	return m, unit <= iptables.ConnbytesAverage && direction <= iptables.ConnbytesBoth
}

// bpf1 reads struct xt_bpf_info_v1.
func bpf1(r reader) (iptables.Match, bool) {
	const bytecode, pinned = 0, 1 // enum xt_bpf_modes
	switch r.u16(0) {
	case bytecode:
		return program(r, int(r.u16(2)), 8)
	case pinned:
		path := r.text(8, 512)
		return iptables.BPF{Pinned: path}, path != ""
	}
	return nil, false
}

// program reads so many of struct sock_filter.
func program(r reader, count, at int) (iptables.Match, bool) {
	const most, size = 64, 8 // XT_BPF_MAX_NUM_INSTR
	if count == 0 || count > most {
		return nil, false
	}
	var m iptables.BPF
	for i := range count {
		o := at + size*i
		m.Program = append(m.Program, iptables.Instruction{Code: r.u16(o), JumpTrue: r.u8(o + 2), JumpFalse: r.u8(o + 3), K: r.u32(o + 4)})
	}
	return m, true
}
