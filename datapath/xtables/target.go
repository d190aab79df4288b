package xtables

import (
	"cmp"
	"math/bits"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// DecodeTarget gives a target that is no verdict and no jump as a typed one; as an
// [iptables.UnknownTarget] with its name if the module or its revision is not known, or
// the struct has no meaning.
func DecodeTarget(f iptables.Family, x Extension) iptables.Target {
	if t, ok := decode(targets, f, x, nil); ok {
		return t
	}
	return iptables.UnknownTarget{Target: cmp.Or(x.Name, nameless), Args: notDecoded(x)}
}

// targets are the modules that are known.
var targets = map[revision]decoder[iptables.Target]{
	{"MASQUERADE", 0}: natTarget(func(r iptables.NATRange) iptables.Target { return iptables.Masquerade{To: withoutAddrs(r)} }),
	{"REDIRECT", 0}:   natTarget(func(r iptables.NATRange) iptables.Target { return iptables.Redirect{To: withoutAddrs(r)} }),
	{"SNAT", 0}:       natTarget(func(r iptables.NATRange) iptables.Target { return iptables.SNAT{To: r} }),
	{"DNAT", 0}:       natTarget(func(r iptables.NATRange) iptables.Target { return iptables.DNAT{To: r} }),
	{"SNAT", 1}:       {40, func(r reader) (iptables.Target, bool) { to, ok := natRange(r, false); return iptables.SNAT{To: to}, ok }},
	{"DNAT", 1}:       {40, func(r reader) (iptables.Target, bool) { to, ok := natRange(r, false); return iptables.DNAT{To: to}, ok }},
	{"SNAT", 2}:       {42, func(r reader) (iptables.Target, bool) { to, ok := natRange(r, true); return iptables.SNAT{To: to}, ok }},
	{"DNAT", 2}:       {42, func(r reader) (iptables.Target, bool) { to, ok := natRange(r, true); return iptables.DNAT{To: to}, ok }},
	{"NETMAP", 0}:     {20, netmap},
	{"MARK", 2}:       {8, func(r reader) (iptables.Target, bool) { return iptables.SetMark{Mark: r.masked(0)}, true }},
	{"CONNMARK", 1}:   {13, func(r reader) (iptables.Target, bool) { return connmark(r, 12, 0) }},
	{"CONNMARK", 2}:   {15, connmark2},
	{"LOG", 0}:        {32, log},
	{"NFLOG", 0}:      {76, nflog},
	{"NFQUEUE", 0}:    {2, func(r reader) (iptables.Target, bool) { return nfqueue(r, 1, 0), true }},
	{"NFQUEUE", 1}:    {4, func(r reader) (iptables.Target, bool) { return nfqueue(r, r.u16(2), 0), true }},
	{"NFQUEUE", 2}:    {6, func(r reader) (iptables.Target, bool) { return nfqueue(r, r.u16(2), r.u16(4)&1), true }},
	{"NFQUEUE", 3}:    {6, func(r reader) (iptables.Target, bool) { return nfqueue(r, r.u16(2), r.u16(4)), true }},
	{"AUDIT", 0}: {1, func(r reader) (iptables.Target, bool) {
		return iptables.Audit{Type: iptables.AuditType(r.u8(0))}, r.u8(0) <= uint8(iptables.AuditReject)
	}},
	{"TCPMSS", 0}: {2, func(r reader) (iptables.Target, bool) {
		if r.u16(0) == 0xffff { // XT_TCPMSS_CLAMP_PMTU
			return iptables.TCPMSS{ClampToPMTU: true}, true
		}
		return iptables.TCPMSS{MSS: r.u16(0)}, true
	}},
	{"CLASSIFY", 0}: {4, func(r reader) (iptables.Target, bool) {
		return iptables.Classify{Major: uint16(r.u32(0) >> 16), Minor: uint16(r.u32(0))}, true
	}},
	{"TTL", 0}:   {2, func(r reader) (iptables.Target, bool) { t, ok := setHop(r); return t, ok }},
	{"HL", 0}:    {2, func(r reader) (iptables.Target, bool) { t, ok := setHop(r); return iptables.SetHopLimit(t), ok }},
	{"TRACE", 0}: {0, func(reader) (iptables.Target, bool) { return iptables.Trace{}, true }},
}

// Flags of a range of addresses and ports (linux/netfilter/nf_nat.h, NF_NAT_RANGE_...).
const (
	NATMapIPs         = 1 << 0
	NATProtoSpecified = 1 << 1
	NATProtoRandom    = 1 << 2
	NATPersistent     = 1 << 3
	NATRandomFully    = 1 << 4
	NATProtoOffset    = 1 << 5
	NATNetmap         = 1 << 6
)

// natTarget reads revision 0 of a target: struct nf_nat_ipv4_multi_range_compat for
// IPv4, struct nf_nat_range for IPv6.
func natTarget(with func(iptables.NATRange) iptables.Target) decoder[iptables.Target] {
	return decoder[iptables.Target]{20, func(r reader) (iptables.Target, bool) {
		if r.family == iptables.IPv6 {
			if len(r.data) < 40 {
				return nil, false
			}
			to, ok := natRange(r, false)
			return with(to), ok
		}
		first, last := netip.AddrFrom4([4]byte(r.data[8:])), netip.AddrFrom4([4]byte(r.data[12:]))
		to, ok := NATRange(r.u32(4), first, last, r.port(16), r.port(18), 0)
		return with(to), ok && r.u32(0) == 1 // rangesize: more than one is history
	}}
}

// port is in network byte order.
func (r reader) port(at int) uint16 { return uint16(r.data[at])<<8 | uint16(r.data[at+1]) }

// natRange reads struct nf_nat_range, and nf_nat_range2 with a base port.
func natRange(r reader, based bool) (iptables.NATRange, bool) {
	base := uint16(0)
	if based {
		base = r.port(40)
	}
	return NATRange(r.u32(0), r.addr(4), r.addr(20), r.port(36), r.port(38), base)
}

// NATRange is what the flags say of addresses and ports. It is not ok if they say what
// iptables has no word for.
func NATRange(flags uint32, first, last netip.Addr, firstPort, lastPort, basePort uint16) (to iptables.NATRange, ok bool) {
	to = iptables.NATRange{
		Random: flags&NATProtoRandom != 0, RandomFully: flags&NATRandomFully != 0, Persistent: flags&NATPersistent != 0,
	}
	if flags&NATMapIPs != 0 {
		to.First, to.Last = first, last
	}
	if flags&NATProtoSpecified != 0 {
		to.FirstPort, to.LastPort = firstPort, lastPort
	}
	if flags&NATProtoOffset != 0 {
		to.BasePort = basePort
	}
	const known = NATMapIPs | NATProtoSpecified | NATProtoRandom | NATPersistent | NATRandomFully | NATProtoOffset
	return to, flags&^known == 0 && (flags&NATProtoSpecified == 0 || firstPort != 0)
}

func withoutAddrs(r iptables.NATRange) iptables.NATRange {
	r.First, r.Last = netip.Addr{}, netip.Addr{}
	return r
}

// netmap reads a range of addresses that is a prefix.
func netmap(r reader) (iptables.Target, bool) {
	var first, last netip.Addr
	if r.family == iptables.IPv6 {
		if len(r.data) < 40 {
			return nil, false
		}
		first, last = r.addr(4), r.addr(20)
	} else {
		first, last = netip.AddrFrom4([4]byte(r.data[8:])), netip.AddrFrom4([4]byte(r.data[12:]))
	}
	p, ok := PrefixOf(first, last)
	return iptables.Netmap{To: p}, ok
}

// PrefixOf is the prefix that a range of addresses is, if it is one.
func PrefixOf(first, last netip.Addr) (netip.Prefix, bool) {
	if first.BitLen() != last.BitLen() {
		return netip.Prefix{}, false
	}
	a, b := first.AsSlice(), last.AsSlice()
	length := 0
	for i := range a {
		same := bits.LeadingZeros8(a[i] ^ b[i])
		length += same
		if same < 8 {
			break
		}
	}
	p := netip.PrefixFrom(first, length)
	if p.Masked().Addr() != first {
		return p, false
	}
	for i := range a {
		host := byte(0xff) >> min(8, max(0, length-8*i))
		if b[i] != a[i]|host {
			return p, false
		}
	}
	return p, true
}

// connmark reads struct xt_connmark_tginfo1, and with a shift tginfo2.
func connmark(r reader, modeAt int, shift int8) (iptables.Target, bool) {
	mark, connectionMask, packetMask, mode := r.u32(0), r.u32(4), r.u32(8), r.u8(modeAt)
	t := iptables.SetConnmark{Mode: iptables.ConnmarkMode(mode), Shift: shift}
	if t.Mode == iptables.ConnmarkSet {
		t.Mark = iptables.MaskedValue{Value: mark, Mask: connectionMask}
	} else {
		t.PacketMask, t.ConnectionMask = packetMask, connectionMask
	}
	return t, mode <= uint8(iptables.ConnmarkRestore)
}

func connmark2(r reader) (iptables.Target, bool) {
	direction, count := r.u8(12), r.u8(13)
	if direction > 1 || count > 31 {
		return nil, false
	}
	shift := int8(count)
	if direction == 1 { // D_SHIFT_RIGHT
		shift = -shift
	}
	return connmark(r, 14, shift)
}

// log reads struct xt_log_info.
func log(r reader) (iptables.Target, bool) {
	level, flags := r.u8(0), r.u8(1) // XT_LOG_...
	return iptables.Log{
		Prefix: r.text(2, 30), Level: level,
		TCPSequence: flags&1 != 0, TCPOptions: flags&2 != 0, IPOptions: flags&4 != 0, UID: flags&8 != 0, MACDecode: flags&32 != 0,
	}, level < 8
}

// nflog reads struct xt_nflog_info, in which a threshold of 0 is the default.
func nflog(r reader) (iptables.Target, bool) {
	t := iptables.NFLog{Prefix: r.text(12, 64), Group: r.u16(4), Threshold: max(1, r.u16(6))}
	if r.u16(8)&1 != 0 { // XT_NFLOG_F_COPY_LEN
		t.Size = r.u32(0)
	} else {
		t.Range = r.u32(0)
	}
	return t, true
}

// nfqueue reads struct xt_NFQ_info and its successors.
func nfqueue(r reader, queues, flags uint16) iptables.Target {
	first := r.u16(0)
	return iptables.NFQueue{
		Queues: iptables.Range[uint16]{First: first, Last: first + max(queues, 1) - 1},
		Bypass: flags&1 != 0, CPUFanout: flags&2 != 0,
	}
}
