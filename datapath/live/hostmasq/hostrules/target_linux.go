package hostrules

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// targets are the targets whose effect is known.
var targets = map[string][]layout[rules.Effect]{
	"MASQUERADE": {{0, 20, func(r raw) (rules.Effect, bool) { return readNAT4(r, "MASQUERADE") }}},
	"SNAT": {
		{0, 20, func(r raw) (rules.Effect, bool) { return readNAT4(r, "SNAT") }},
		{1, 40, func(r raw) (rules.Effect, bool) { return readNAT(r, "SNAT"), true }},
		{2, 42, func(r raw) (rules.Effect, bool) { return readNAT(r, "SNAT"), true }},
	},
	"DNAT": {
		{0, 20, func(r raw) (rules.Effect, bool) { return readNAT4(r, "DNAT") }},
		{1, 40, func(r raw) (rules.Effect, bool) { return readNAT(r, "DNAT"), true }},
		{2, 42, func(r raw) (rules.Effect, bool) { return readNAT(r, "DNAT"), true }},
	},
	"REDIRECT": {{0, 20, func(r raw) (rules.Effect, bool) { return readNAT4(r, "REDIRECT") }}},
	"NETMAP":   {{0, 20, func(r raw) (rules.Effect, bool) { return readNAT4(r, "NETMAP") }}},
	"MARK": {{2, 8, func(r raw) (rules.Effect, bool) {
		mark, mask := r.u32(0), r.u32(4)
		return rules.SetMark{
			To:    rules.Masked{Of: rules.PacketMark, Mask: word32(^mask), Xor: word32(mark)},
			Words: fmt.Sprintf("-j MARK --set-xmark 0x%x/0x%x", mark, mask),
		}, true
	}}},
	"CONNMARK": {
		{1, 13, func(r raw) (rules.Effect, bool) { return readConnmark(r, 12, 0) }},
		{2, 15, func(r raw) (rules.Effect, bool) {
			shift := int(r.u8(13))
			if r.u8(12) == 1 { // D_SHIFT_RIGHT
				shift = -shift
			}
			e, ok := readConnmark(r, 14, shift)
			return e, ok && r.u8(12) <= 1 && r.u8(13) < 32
		}},
	},
}

// readNAT4 reads struct nf_nat_ipv4_multi_range_compat, of one range: its size, flags, first and
// last address, first and last port. IPv6 has struct nf_nat_range for the same targets.
func readNAT4(r raw, target string) (rules.Effect, bool) {
	if r.family == decision.IPv6 {
		if len(r.data) < 40 {
			return nil, false
		}
		return readNAT(r, target), true
	}
	return nat(r.u32(4), netip.AddrFrom4([4]byte(r.data[8:])), netip.AddrFrom4([4]byte(r.data[12:])),
		binary.BigEndian.Uint16(r.data[16:]), binary.BigEndian.Uint16(r.data[18:]), target), r.u32(0) == 1
}

// readNAT reads struct nf_nat_range: flags, first and last address, first and last port.
func readNAT(r raw, target string) rules.Effect {
	return nat(r.u32(0), r.addr(4), r.addr(20), binary.BigEndian.Uint16(r.data[36:]), binary.BigEndian.Uint16(r.data[38:]), target)
}

// Flags of translations (nf_nat.h, NF_NAT_RANGE_...).
const (
	natAddresses  = 1
	natPorts      = 2
	natRandom     = 4
	natPersistent = 8
	natFully      = 16
	natOffset     = 32
	natNetmap     = 64
)

// nat is the effect of a target with a fixed range.
func nat(flags uint32, first, last netip.Addr, firstPort, lastPort uint16, target string) rules.Effect {
	n := rules.NAT{
		Masquerade: target == "MASQUERADE", Netmap: target == "NETMAP", Destination: target == "DNAT" || target == "REDIRECT", Persistent: flags&natPersistent != 0, Fully: flags&natFully != 0,
	}
	words := "-j " + target
	portText := ""
	if flags&natPorts != 0 {
		portText = ports{firstPort, lastPort}.text("-")
		n.FirstPort, n.LastPort = rules.Const(binary.BigEndian.AppendUint16(nil, firstPort)), rules.Const(binary.BigEndian.AppendUint16(nil, lastPort))
	}
	if flags&natAddresses != 0 {
		n.First, n.Last = rules.Const(first.AsSlice()), rules.Const(last.AsSlice())
	}
	switch {
	case n.Netmap:
		n.Persistent, n.Fully = false, false
		return rules.NAT{First: n.First, Last: n.Last, Netmap: true, Words: words + " --to " + prefixText(first, last)}
	case target == "MASQUERADE" || target == "REDIRECT":
		if portText != "" {
			words += " --to-ports " + portText
		}
	case target == "DNAT":
		words += " --to-destination " + natText(flags, first, last, portText)
		if flags&natOffset != 0 {
			words += " …" // a base port
		}
	default:
		words += " --to-source " + natText(flags, first, last, portText)
	}
	n.Words = words + natFlags(flags, " --", " --")
	return n
}

// natText is "192.0.2.1-192.0.2.9:80-90".
func natText(flags uint32, first, last netip.Addr, ports string) string {
	text := ""
	if flags&natAddresses != 0 {
		text = first.String()
		if last != first {
			text += "-" + last.String()
		}
		if first.Is6() && ports != "" {
			text = "[" + text + "]"
		}
	}
	if ports != "" {
		text += ":" + ports
	}
	return text
}

// prefixText is the network of addresses that begins and ends there.
func prefixText(first, last netip.Addr) string {
	mask := first.AsSlice()
	for i, b := range last.AsSlice() {
		mask[i] = ^(mask[i] ^ b)
	}
	m, _ := netip.AddrFromSlice(mask)
	return networkText(first, m)
}

// natFlags are the flags' words.
func natFlags(flags uint32, before, between string) string {
	var words []string
	if flags&natRandom != 0 {
		words = append(words, "random")
	}
	if flags&natFully != 0 {
		words = append(words, map[bool]string{true: "fully-random", false: "random-fully"}[between == ","])
	}
	if flags&natPersistent != 0 {
		words = append(words, "persistent")
	}
	if len(words) == 0 {
		return ""
	}
	return before + strings.Join(words, between)
}

// readConnmark reads struct xt_connmark_tginfo1, and with a shift tginfo2: what connmark_tg_shift
// (xt_connmark.c) does.
func readConnmark(r raw, modeAt, shift int) (rules.Effect, bool) {
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
		return rules.SetMark{
			Connection: true, To: rules.Masked{Of: rules.ConnectionMark, Mask: word32(^connectionMask), Xor: word32(mark)},
			Words: fmt.Sprintf("-j CONNMARK --set-xmark 0x%x/0x%x", mark, connectionMask),
		}, shift == 0
	case 1:
		return rules.SetMark{Connection: true, To: change(rules.ConnectionMark, connectionMask, rules.PacketMark, packetMask), Words: "-j CONNMARK --save-mark" + masks}, true
	case 2:
		return rules.SetMark{To: change(rules.PacketMark, packetMask, rules.ConnectionMark, connectionMask), Words: "-j CONNMARK --restore-mark" + masks}, true
	}
	return nil, false
}
