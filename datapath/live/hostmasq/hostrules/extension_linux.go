package hostrules

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// setName returns the name of an ipset by its index.
type setName func(index uint16) (name string, ok bool)

// A layout is how one revision of a module keeps its options. The layouts are those of the kernel's
// headers for user space (linux/netfilter/xt_*.h, linux/netfilter_ipv4, linux/netfilter_ipv6) on
// machines of 64 bits. No length or offset in the data is trusted.
type layout[T any] struct {
	revision uint8
	size     int // of the struct, without alignment at its end
	// read gets size bytes or more. It is not ok if it cannot say what they mean.
	read func(r raw) (T, bool)
}

// decoded finds the revision that the extension has.
func decoded[T any](f decision.Family, x xtables.Extension, sets setName, layouts []layout[T]) (t T, ok bool) {
	for _, l := range layouts {
		if l.revision == x.Revision && len(x.Data) >= l.size {
			return l.read(raw{f, x.Revision, sets, x.Data})
		}
	}
	return t, false
}

// matchOf returns the test of a module, or an unknown one that names it.
func matchOf(f decision.Family, x xtables.Extension, sets setName) rules.Test {
	if m, ok := decoded(f, x, sets, matches[x.Name]); ok {
		return m
	}
	return rules.Fixed{Result: rules.Unknown, Words: rules.Words("-m " + cmp.Or(x.Name, "?") + " …")}
}

// targetOf returns the effect of a target that is no verdict and no jump.
func targetOf(f decision.Family, x xtables.Extension) rules.Step {
	if t, ok := decoded(f, x, nil, targets[x.Name]); ok {
		return t
	}
	return rules.Other{Harmless: harmlessTarget[x.Name], Words: rules.Words("-j " + cmp.Or(x.Name, "?") + " …")}
}

// harmlessTarget are the targets that neither change nor end a packet, as far as rules of nat see.
var harmlessTarget = map[string]bool{
	"LOG": true, "NFLOG": true, "ULOG": true, "TRACE": true, "AUDIT": true, "LED": true, "RATEEST": true, "SET": true, "IDLETIMER": true,
}

// raw returns the fields of a struct; offsets must be within its size.
type raw struct {
	family   decision.Family
	revision uint8
	sets     setName
	data     []byte
}

func (r raw) u8(at int) uint8   { return r.data[at] }
func (r raw) u16(at int) uint16 { return binary.NativeEndian.Uint16(r.data[at:]) }
func (r raw) u32(at int) uint32 { return binary.NativeEndian.Uint32(r.data[at:]) }

// addr is a union nf_inet_addr, of 16 bytes.
func (r raw) addr(at int) netip.Addr {
	if r.family == decision.IPv6 {
		return netip.AddrFrom16([16]byte(r.data[at:]))
	}
	return netip.AddrFrom4([4]byte(r.data[at:]))
}

// targets are the targets whose effect is known.
var targets = map[string][]layout[rules.Step]{
	"MASQUERADE": natTarget(rules.NAT{Kind: rules.Masquerade})[:1],
	"SNAT":       natTarget(rules.NAT{Kind: rules.SNAT}),
	"DNAT":       natTarget(rules.NAT{Kind: rules.DNAT}),
	"REDIRECT":   natTarget(rules.NAT{Kind: rules.Redirect})[:1],
	"NETMAP":     natTarget(rules.NAT{Netmap: true})[:1],
	"MARK": {{2, 8, func(r raw) (rules.Step, bool) {
		mark, mask := r.u32(0), r.u32(4)
		return rules.SetMark{To: rules.Masked{Of: rules.PacketMark, Mask: word32(^mask), Xor: word32(mark)}}, true
	}}},
	"CONNMARK": {
		{1, 13, func(r raw) (rules.Step, bool) { return readConnmark(r, 12, 0) }},
		{2, 15, func(r raw) (rules.Step, bool) {
			shift := int(r.u8(13))
			if r.u8(12) == 1 { // D_SHIFT_RIGHT
				shift = -shift
			}
			e, ok := readConnmark(r, 14, shift)
			return e, ok && r.u8(12) <= 1 && r.u8(13) < 32
		}},
	},
}

// natTarget are the revisions of a target that translates, from 0 to 2. Revision 0 has struct nf_nat_ipv4_multi_range_compat,
// of one range: its size, flags, first and last address, first and last port. The others, and the targets of IPv6, have
// struct nf_nat_range.
func natTarget(n rules.NAT) []layout[rules.Step] {
	newer := func(r raw) (rules.Step, bool) {
		return nat(n, r.u32(0), r.addr(4).AsSlice(), r.addr(20).AsSlice(), r.data[36:38], r.data[38:40]), true
	}
	return []layout[rules.Step]{{0, 20, func(r raw) (rules.Step, bool) {
		switch {
		case r.family == decision.IPv4:
			return nat(n, r.u32(4), r.data[8:12], r.data[12:16], r.data[16:18], r.data[18:20]), r.u32(0) == 1
		case len(r.data) < 40:
			return nil, false
		}
		return newer(r)
	}}, {1, 40, newer}, {2, 42, newer}}
}

// nat adds a range to a translation.
func nat(n rules.NAT, flags uint32, first, last, firstPort, lastPort rules.Const) rules.NAT {
	if flags&unix.NF_NAT_RANGE_MAP_IPS != 0 {
		n.First, n.Last = first, last
	}
	if n.Netmap {
		return n
	}
	if flags&unix.NF_NAT_RANGE_PROTO_SPECIFIED != 0 {
		n.FirstPort, n.LastPort = firstPort, lastPort
	}
	n.BasePort = n.Kind == rules.DNAT && flags&unix.NF_NAT_RANGE_PROTO_OFFSET != 0
	return natFlags(n, flags)
}

// natFlags adds what both iptables and nft have flags for.
func natFlags(n rules.NAT, flags uint32) rules.NAT {
	n.Persistent = flags&unix.NF_NAT_RANGE_PERSISTENT != 0
	n.Fully = flags&unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY != 0
	n.Random = flags&unix.NF_NAT_RANGE_PROTO_RANDOM != 0
	return n
}

// readConnmark reads struct xt_connmark_tginfo1, and with a shift tginfo2: what connmark_tg_shift
// (xt_connmark.c) does.
func readConnmark(r raw, modeAt, shift int) (rules.Step, bool) {
	mark, connectionMask, packetMask := r.u32(0), r.u32(4), r.u32(8)
	masks := fmt.Sprintf(" --nfmask 0x%x --ctmask 0x%x", packetMask, connectionMask)
	switch {
	case shift > 0:
		masks += fmt.Sprintf(" --left-shift-mark %d", shift)
	case shift < 0:
		masks += fmt.Sprintf(" --right-shift-mark %d", -shift)
	}
	change := func(to rules.Value, keep uint32, from rules.Value, of uint32) rules.Value {
		moved := rules.Value(rules.Masked{Of: from, Mask: word32(of)})
		if shift != 0 {
			moved = rules.Shifted{Of: moved, By: shift}
		}
		return rules.Xor{A: rules.Masked{Of: to, Mask: word32(^keep)}, B: moved}
	}
	switch r.u8(modeAt) { // XT_CONNMARK_...
	case 0:
		return rules.SetMark{Connection: true, To: rules.Masked{Of: rules.ConnectionMark, Mask: word32(^connectionMask), Xor: word32(mark)}}, shift == 0
	case 1:
		return rules.SetMark{Connection: true, To: change(rules.ConnectionMark, connectionMask, rules.PacketMark, packetMask), Words: "-j CONNMARK --save-mark" + masks}, true
	case 2:
		return rules.SetMark{To: change(rules.PacketMark, packetMask, rules.ConnectionMark, connectionMask), Words: "-j CONNMARK --restore-mark" + masks}, true
	}
	return nil, false
}
