package hostrules

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// options are the options of a module and their tests, in the order of iptables-save.
type options struct {
	words []string
	tests []rules.Test
}

func (o *options) add(test rules.Test, negated bool, option string, values ...string) {
	if negated {
		o.words = append(o.words, "!")
	}
	o.words = append(append(o.words, option), values...)
	if test != nil {
		o.tests = append(o.tests, test)
	}
}

func (o *options) module(name string) rules.Test {
	return rules.Module{Tests: o.tests, Words: rules.Words(strings.Join(append([]string{"-m", name}, o.words...), " "))}
}

// unknownTest is a test of something that is not known here; its option says what.
var unknownTest = rules.Fixed{Result: rules.Unknown}

// compare is the usual test: a value in one of several ranges.
func compare(v rules.Value, negated bool, ranges ...rules.Range) rules.Test {
	return rules.Compare{Values: []rules.Value{v}, Ranges: ranges, Negated: negated}
}

// anyBit tests whether the number has one of the bits.
func anyBit(v rules.Value, bits uint32, negated bool) rules.Test {
	return compare(rules.Masked{Of: v, Mask: word32(bits)}, !negated, rules.Exactly(word32(0)))
}

func word32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// ports is a range of ports.
func ports(first, last uint16) rules.Range {
	return rules.Range{First: binary.BigEndian.AppendUint16(nil, first), Last: binary.BigEndian.AppendUint16(nil, last)}
}

// addGeneric adds a test whose option package rules knows.
func (o *options) addGeneric(test rules.Test) { o.add(test, false, test.Text(false)) }

// addPorts adds a range of ports from the first one at an offset on, unless it is that of all ports.
func (o *options) addPorts(r raw, at int, source, negated bool) {
	if first, last := r.u16(at), r.u16(at+2); first > 0 || last < 65535 || negated {
		o.addGeneric(compare(rules.PortField(source), negated, ports(first, last)))
	}
}

// addressTypes are RTN_... (rtnetlink.h).
var addressTypes = []string{
	"UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE", "UNREACHABLE", "PROHIBIT", "THROW", "NAT", "XRESOLVE",
}

// matches are the modules whose options are known. A packet that is translated has begun a
// connection, and its protocol is TCP, UDP or SCTP: what only concerns others is left to their
// rules' "-p".
var matches = map[string][]layout[rules.Test]{
	"comment": {{0, 1, func(r raw) (rules.Test, bool) {
		text, _, _ := bytes.Cut(r.data[:min(256, len(r.data))], []byte{0})
		return rules.Module{Words: rules.Words("-m comment --comment " + rules.Quoted(string(text)))}, true
	}}},
	"tcp":       {{0, 12, readTCP}},
	"udp":       {{0, 9, readUDP}},
	"sctp":      {{0, 292, readSCTP}},
	"multiport": {{0, 32, readMultiport}, {1, 48, readMultiport}},
	"iprange":   {{1, 65, readIPRange}},
	"addrtype":  {{0, 12, readAddrtype}, {1, 8, readAddrtype}},
	"mark":      {{1, 9, func(r raw) (rules.Test, bool) { return readMark(r, rules.PacketMark), true }}},
	"connmark":  {{1, 9, func(r raw) (rules.Test, bool) { return readMark(r, rules.ConnectionMark), true }}},
	"conntrack": {{1, 152, readConntrack}, {2, 154, readConntrack}, {3, 162, readConntrack}},
	"state":     {{0, 4, func(r raw) (rules.Test, bool) { return readState(r.u32(0), false), true }}},
	"pkttype": {{0, 8, func(r raw) (rules.Test, bool) {
		kind, negated := r.u32(0), r.u32(4) != 0
		kinds := map[uint32]string{0: "unicast", 1: "broadcast", 2: "multicast"}
		o := options{}
		o.add(compare(rules.LinkType, negated, rules.Exactly([]byte{uint8(kind)})), negated, "--pkt-type", kinds[kind])
		return o.module("pkttype"), kinds[kind] != ""
	}}},
	"owner": {{1, 18, readOwner}},
	"set":   {{1, 4, readSet}, {2, 4, readSet}, {3, 44, readSet}, {4, 44, readSet}},
	"statistic": {{0, 16, func(r raw) (rules.Test, bool) {
		o := options{}
		negated := r.u16(2)&1 != 0
		if r.u16(0) == 0 { // XT_STATISTIC_MODE_RANDOM
			o.add(nil, false, "--mode", "random")
			o.add(unknownTest, negated, "--probability", fmt.Sprintf("%.11f", float64(r.u32(4))/(1<<31)))
		} else {
			o.add(nil, false, "--mode", "nth")
			o.add(unknownTest, negated, "--every", fmt.Sprint(r.u32(4)+1), "--packet", fmt.Sprint(r.u32(8)))
		}
		return o.module("statistic"), true
	}}},
}

func readTCP(r raw) (rules.Test, bool) {
	option, mask, want, inverted := r.u8(8), r.u8(9), r.u8(10), r.u8(11)
	o := options{}
	o.addPorts(r, 0, true, inverted&1 != 0)
	o.addPorts(r, 4, false, inverted&2 != 0)
	if option != 0 {
		o.add(unknownTest, inverted&8 != 0, "--tcp-option", fmt.Sprint(option))
	}
	if mask != 0 || want != 0 || inverted&4 != 0 {
		o.addGeneric(compare(rules.Masked{Of: rules.FlagsField, Mask: []byte{mask}}, inverted&4 != 0, rules.Exactly([]byte{want})))
	}
	return o.module("tcp"), inverted < 16 && (option != 0 || inverted&8 == 0)
}

func readUDP(r raw) (rules.Test, bool) {
	o := options{}
	o.addPorts(r, 0, true, r.u8(8)&1 != 0)
	o.addPorts(r, 4, false, r.u8(8)&2 != 0)
	return o.module("udp"), r.u8(8) < 4
}

func readSCTP(r raw) (rules.Test, bool) {
	const source, destination, chunks = 1, 2, 4 // XT_SCTP_...
	flags, inverted := r.u32(284), r.u32(288)
	o := options{}
	if flags&source != 0 {
		o.addPorts(r, 4, true, inverted&source != 0)
	}
	if flags&destination != 0 {
		o.addPorts(r, 0, false, inverted&destination != 0)
	}
	if flags&chunks != 0 {
		o.add(unknownTest, inverted&chunks != 0, "--chunk-types", "…")
	}
	return o.module("sctp"), true
}

// readMultiport reads struct xt_multiport and, of revision 1, xt_multiport_v1: it has flags for ports that are
// the first ones of ranges, and one for negation.
func readMultiport(r raw) (rules.Test, bool) {
	const maxPorts, flagsAt = 15, 32
	side, count, newer := r.u8(0), int(r.u8(1)), r.revision > 0
	if side > 2 || count > maxPorts {
		return nil, false
	}
	var ranges []rules.Range
	var texts []string
	for i := 0; i < count; i++ {
		first := r.u16(2 + 2*i)
		if newer && r.u8(flagsAt+i) != 0 {
			if i++; i >= count {
				return nil, false
			}
		}
		p := ports(first, r.u16(2+2*i))
		ranges, texts = append(ranges, p), append(texts, p.Numbers(":"))
	}
	c := rules.Compare{Ranges: ranges, Negated: newer && r.u8(flagsAt+maxPorts) != 0}
	if side != 1 {
		c.Values = append(c.Values, rules.PortField(true))
	}
	if side != 0 {
		c.Values = append(c.Values, rules.PortField(false))
	}
	o := options{}
	o.add(c, c.Negated, []string{"--sports", "--dports", "--ports"}[side], strings.Join(texts, ","))
	return o.module("multiport"), true
}

func readIPRange(r raw) (rules.Test, bool) {
	const source, destination, sourceInverted, destinationInverted = 1, 2, 16, 32 // IPRANGE_...
	flags := r.u8(64)
	o := options{}
	between := func(option string, source, negated bool, at int) {
		first, last := r.addr(at), r.addr(at+16)
		o.add(compare(rules.AddressField(r.family == decision.IPv6, source), negated, rules.Range{First: first.AsSlice(), Last: last.AsSlice()}), negated, option, first.String()+"-"+last.String())
	}
	if flags&source != 0 {
		between("--src-range", true, flags&sourceInverted != 0, 0)
	}
	if flags&destination != 0 {
		between("--dst-range", false, flags&destinationInverted != 0, 32)
	}
	return o.module("iprange"), true
}

// readAddrtype reads struct xt_addrtype_info and, of revision 1, xt_addrtype_info_v1, which has flags.
func readAddrtype(r raw) (rules.Test, bool) {
	const invertSource, invertDestination, limitIn, limitOut = 1, 2, 4, 8 // XT_ADDRTYPE_...
	source, destination, flags := r.u16(0), r.u16(2), r.u32(4)
	sourceInverted, destinationInverted := flags&invertSource != 0, flags&invertDestination != 0
	if r.revision == 0 {
		sourceInverted, destinationInverted, flags = r.u32(4) != 0, r.u32(8) != 0, 0
	}
	o := options{}
	test := func(source bool, types uint16, negated bool) rules.Test {
		return rules.AddrTypes{Source: source, In: flags&limitIn != 0, Out: flags&limitOut != 0, Types: types, Negated: negated}
	}
	if source != 0 {
		o.add(test(true, source, sourceInverted), sourceInverted, "--src-type", rules.BitNames(uint32(source), addressTypes...))
	}
	if destination != 0 {
		o.add(test(false, destination, destinationInverted), destinationInverted, "--dst-type", rules.BitNames(uint32(destination), addressTypes...))
	}
	if flags&limitIn != 0 {
		o.add(nil, false, "--limit-iface-in")
	}
	if flags&limitOut != 0 {
		o.add(nil, false, "--limit-iface-out")
	}
	return o.module("addrtype"), source|destination < 1<<12
}

// readMark reads struct xt_mark_mtinfo1 and xt_connmark_mtinfo1.
func readMark(r raw, v rules.Value) rules.Test {
	if mask := r.u32(4); mask != ^uint32(0) {
		v = rules.Masked{Of: v, Mask: word32(mask)}
	}
	return compare(v, r.u8(8) != 0, rules.Exactly(word32(r.u32(0))))
}

// stateNames names states (XT_CONNTRACK_STATE_...) in the order of iptables-save.
func stateNames(states uint32) string {
	var ordered uint32
	for i, bit := range []int{0, 3, 2, 1, 8, 6, 7} {
		ordered |= states >> bit & 1 << i
	}
	return rules.BitNames(ordered, "INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT")
}

// stateTest tests whether the packet has one of the states.
func stateTest(states uint32, negated bool) rules.Test {
	bits, status := rules.StateBits(states)
	if status == 0 {
		return anyBit(rules.ConnectionState, bits, negated)
	}
	// One of the bits of the state, or of the status: not none of both.
	none := []rules.Test{anyBit(rules.ConnectionState, bits, true), anyBit(rules.ConnectionStatus, status, true)}
	return rules.Module{Tests: none, Negated: !negated}
}

func readState(states uint32, negated bool) rules.Test {
	o := options{}
	o.add(stateTest(states, negated), negated, "--state", stateNames(states))
	return o.module("state")
}

// readConntrack reads struct xt_conntrack_mtinfo1 to 3. The second widens the masks; the third has
// ranges of ports, in the order of the host.
func readConntrack(r raw) (rules.Test, bool) {
	// XT_CONNTRACK_...; there are four bits each for addresses and ports.
	const state, protocol, firstAddress, status, expires, firstPort, direction, stateAlias = 1, 2, 4, 64, 128, 256, 4096, 8192
	flags, inverted := r.u16(146), r.u16(148)
	states, statuses := uint32(r.u8(150)), uint32(r.u8(151))
	if r.revision > 1 {
		states, statuses = uint32(r.u16(150)), uint32(r.u16(152))
	}
	if flags == state|stateAlias { // "-m state" is kept as a conntrack match
		return readState(states, inverted&state != 0), true
	}
	o := options{}
	given := func(bit uint16, option string, test func(negated bool) (rules.Test, string)) {
		if flags&bit != 0 {
			negated := inverted&bit != 0
			t, text := test(negated)
			o.add(t, negated, "--ct"+option, text)
		}
	}
	given(state, "state", func(negated bool) (rules.Test, string) {
		return stateTest(states, negated), stateNames(states)
	})
	given(protocol, "proto", func(negated bool) (rules.Test, string) {
		p := r.u16(136)
		return compare(rules.Ct{Key: "protocol", ByteSize: 1}, negated, rules.Exactly([]byte{uint8(p)})), fmt.Sprint(p)
	})
	sides := []string{"origsrc", "origdst", "replsrc", "repldst"}
	for i, side := range sides {
		given(firstAddress<<i, side, func(negated bool) (rules.Test, string) {
			a, mask := r.addr(32*i), r.addr(32*i+16)
			v := rules.ConnectionField([]string{"saddr", "daddr"}[i%2], i >= 2, a.BitLen()/8)
			text := strings.TrimSuffix(rules.Network(a, mask), fmt.Sprintf("/%d", a.BitLen()))
			return compare(rules.Masked{Of: v, Mask: mask.AsSlice()}, negated, rules.Exactly(a.AsSlice())), text
		})
	}
	for i, side := range sides {
		given(firstPort<<i, side+"port", func(negated bool) (rules.Test, string) {
			at := 138 + 2*i
			p := rules.Exactly(r.data[at : at+2])
			if r.revision == 3 {
				p = ports(r.u16(at), r.u16(at+16))
			}
			return compare(rules.ConnectionField([]string{"proto-src", "proto-dst"}[i%2], i >= 2, 2), negated, p), p.Numbers(":")
		})
	}
	given(status, "status", func(negated bool) (rules.Test, string) {
		return anyBit(rules.ConnectionStatus, statuses, negated), rules.BitNames(statuses, "EXPECTED", "SEEN_REPLY", "ASSURED", "CONFIRMED")
	})
	given(expires, "expire", func(bool) (rules.Test, string) {
		first, last := r.u32(128), r.u32(132)
		if first == last {
			return unknownTest, fmt.Sprint(first)
		}
		return unknownTest, fmt.Sprintf("%d:%d", first, last)
	})
	if flags&direction != 0 {
		// A negated direction is the opposite one.
		side, text := uint8(0), "ORIGINAL"
		if inverted&direction != 0 {
			side, text = 1, "REPLY"
		}
		o.add(compare(rules.ConnectionDirection, false, rules.Exactly([]byte{side})), false, "--ctdir", text)
	}
	return o.module("conntrack"), true
}

// readOwner reads struct xt_owner_match_info. Without a program, an option is false unless it is
// negated (owner_mt).
func readOwner(r raw) (rules.Test, bool) {
	const uid, gid, exists, supplementary = 1, 2, 4, 8
	flags, inverted := r.u8(16), r.u8(17)
	none := (flags^inverted)&(uid|gid|exists) == 0
	o := options{}
	ids := func(at int) string {
		if r.u32(at) == r.u32(at+4) {
			return fmt.Sprint(r.u32(at))
		}
		return fmt.Sprintf("%d-%d", r.u32(at), r.u32(at+4))
	}
	if flags&exists != 0 {
		o.add(nil, inverted&exists != 0, "--socket-exists")
	}
	if flags&uid != 0 {
		o.add(nil, inverted&uid != 0, "--uid-owner", ids(0))
	}
	if flags&gid != 0 {
		o.add(nil, inverted&gid != 0, "--gid-owner", ids(8))
	}
	if flags&supplementary != 0 {
		o.add(nil, false, "--suppl-groups")
	}
	o.tests = []rules.Test{rules.Sender{None: none}}
	return o.module("owner"), flags&(uid|gid|exists) != 0
}

// readSet reads struct xt_set_info_match_v1, v3 and v4: which set, and which parts of the packet.
func readSet(r raw) (rules.Test, bool) {
	const maxDimensions, inverted = 6, 1
	dimensions, flags := int(r.u8(2)), r.u8(3)
	if dimensions > maxDimensions || r.sets == nil {
		return nil, false
	}
	name, ok := r.sets(r.u16(0))
	var directions []string
	for i := 1; i <= dimensions; i++ {
		d := "dst"
		if flags&(1<<i) != 0 {
			d = "src"
		}
		directions = append(directions, d)
	}
	o := options{}
	o.add(unknownTest, flags&inverted != 0, "--match-set", name, strings.Join(directions, ","))
	if more := r.data[4:]; len(bytes.Trim(more, "\x00")) > 0 {
		o.words = append(o.words, "…") // conditions of counters
	}
	return o.module("set"), ok
}
