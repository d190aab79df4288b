package rules

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
)

// Range is what a value is compared with, both ends included, in the order of bytes. Both ends
// have the same number of bytes, which may be fewer than the value has: then only its first ones
// are compared.
type Range struct{ First, Last []byte }

// Exactly is the range of one value.
func Exactly(data []byte) Range { return Range{data, data} }

func (r Range) single() bool { return bytes.Equal(r.First, r.Last) }

// In reports whether the value is in one of the ranges.
func (b *Bits) In(ranges ...Range) Truth {
	found := False
	for _, r := range ranges {
		switch r.contains(b) {
		case True:
			return True
		case Unknown:
			found = Unknown
		}
	}
	return found
}

// contains compares as far as the value is known.
func (r Range) contains(b *Bits) Truth {
	size := len(r.First)
	if size > b.Size || size != len(r.Last) {
		return Unknown
	}
	data, known := b.Data[:size], b.Known[:size]
	if r.single() {
		t := True
		for i := range data {
			switch {
			case (data[i]^r.First[i])&known[i] != 0:
				return False
			case known[i] != 0xff:
				t = Unknown
			}
		}
		return t
	}
	least, greatest := data, make([]byte, 0, room) // of the values that it may have
	for i := range data {
		greatest = append(greatest, data[i]|^known[i])
	}
	switch {
	case bytes.Compare(greatest, r.First) < 0 || bytes.Compare(least, r.Last) > 0:
		return False
	case bytes.Compare(least, r.First) >= 0 && bytes.Compare(greatest, r.Last) <= 0:
		return True
	}
	return Unknown
}

// Compare tests whether one of the values is in one of the ranges; it is a [Test].
type Compare struct {
	Values  []Value
	Ranges  []Range
	Negated bool
}

// Test is the result for a packet.
func (c Compare) Test(p Packet) Truth {
	found := False
	for _, v := range c.Values {
		b, present := v.Read(p)
		if !present {
			return False
		}
		switch b.In(c.Ranges...) {
		case True:
			return truth(!c.Negated)
		case Unknown:
			found = Unknown
		}
	}
	return found.NegatedIf(c.Negated)
}

// In tests whether a set has the key; it is a [Test].
type In struct {
	Key     Key
	Set     *Set
	Negated bool
}

// Test is the result for a packet.
func (i In) Test(p Packet) Truth {
	if !i.Key.present(p) {
		return False
	}
	_, t := i.Set.Find(p, i.Key)
	return t.NegatedIf(i.Negated)
}

// Module is a match of iptables' modules: all of its tests, or with Negated not all of them. It is a [Test].
type Module struct {
	Tests   []Test
	Negated bool
	Words   // in iptables' words, with "-m"
}

// Test is the result for a packet. A test that fails decides it, wherever it stands.
func (m Module) Test(p Packet) Truth {
	result := True
	for _, t := range m.Tests {
		if result = result.And(t.Test(p)); result == False {
			break
		}
	}
	return result.NegatedIf(m.Negated)
}

// Fixed has the same result for every packet; it is a [Test].
type Fixed struct {
	Result Truth
	Words
}

// Test is the result for a packet.
func (f Fixed) Test(Packet) Truth { return f.Result }

// Sender tests something of the program that sent the packet, which is not known; a packet of
// other hosts has none. It is a [Test].
type Sender struct {
	// None is the result for a packet that no program on this host sent.
	None bool
	Words
}

// Test is the result for a packet.
func (s Sender) Test(p Packet) Truth {
	if p.Local() {
		return Unknown
	}
	return truth(s.None)
}

// AddrTypes is the test of "-m addrtype", by the bits of RTN_... (rtnetlink.h). In IPv6, an address
// may have several types (xt_addrtype.c, match_type6). It is a [Test].
type AddrTypes struct {
	Source  bool
	In, Out bool // by the routes of that device only
	Types   uint16
	Negated bool
	Words
}

// Types of addresses: RTN_... (rtnetlink.h).
const (
	RTNUnspec      = 0
	RTNUnicast     = 1
	RTNLocal       = 2
	RTNBroadcast   = 3
	RTNAnycast     = 4
	RTNMulticast   = 5
	RTNUnreachable = 7
)

// Test is the result for a packet.
func (t AddrTypes) Test(p Packet) Truth {
	b := p.AddrType(AddrType{Source: t.Source, In: t.In, Out: t.Out})
	if !b.All() {
		return Unknown
	}
	a, is := p.Address(t.Source), b.Uint32()
	one := func(rtn uint32) bool { return t.Types>>rtn&1 != 0 }
	switch {
	case a.Is4():
		return truth(one(is)).NegatedIf(t.Negated)
	case one(RTNMulticast) && !a.IsMulticast(), one(RTNUnicast) && (a.IsMulticast() || a.IsUnspecified()), one(RTNUnspec) && !a.IsUnspecified():
		return truth(t.Negated)
	case !one(RTNAnycast) && !one(RTNLocal) && !one(RTNUnreachable):
		return truth(!t.Negated)
	case is == RTNLocal:
		return truth(one(RTNLocal)).NegatedIf(t.Negated)
	case one(RTNAnycast) || one(RTNUnreachable):
		return Unknown // the host's routes are not known
	}
	return truth(t.Negated)
}

// Text describes the step.
func (c Compare) Text(native bool) string {
	if !native {
		if s, ok := c.options(); ok {
			return s
		}
	}
	if s, ok := c.bitsSet(); ok {
		return s
	}
	operator := " "
	if c.Negated {
		operator = " != "
	}
	if v, mask, ok := c.sole(); ok {
		if prefix, bits, ok := prefixOf(v, mask, c.Ranges[0]); ok {
			return v.String() + operator + strings.TrimSuffix(prefix, fmt.Sprintf("/%d", bits))
		}
	}
	var values, ranges []string
	for _, v := range c.Values {
		values = append(values, v.String())
	}
	for _, r := range c.Ranges {
		ranges = append(ranges, r.text(c.Values[0], true))
	}
	list := strings.Join(ranges, ", ")
	if len(ranges) != 1 {
		list = "{ " + list + " }"
	}
	if !c.Negated && strings.Contains(values[0], "&") {
		operator = " == "
	}
	return strings.Join(values, " or ") + operator + list
}

// sole is the one value of a comparison with one range, and the mask that is applied to it.
func (c Compare) sole() (v Value, mask []byte, ok bool) {
	if len(c.Values) != 1 || len(c.Ranges) != 1 {
		return nil, nil, false
	}
	v = c.Values[0]
	if m, masked := v.(Masked); masked && allZero(m.Xor) {
		v, mask = m.Of, m.Mask
	}
	return v, mask, true
}

// BitNames is "SYN,ACK": the names of bits from the lowest one on, as far as they have names; "NONE" if there are none.
func BitNames(bits uint32, names ...string) string {
	var list []string
	for i, name := range names {
		if bits&(1<<i) != 0 && name != "" {
			list = append(list, name)
		}
	}
	return cmp.Or(strings.Join(list, ","), "NONE")
}

// TCPFlags is "SYN,ACK", as iptables prints flags.
func TCPFlags(flags byte) string {
	return BitNames(uint32(flags), "FIN", "SYN", "RST", "PSH", "ACK", "URG")
}

// bitsSet is "ct state new,related": nft tests bits, and prints names.
func (c Compare) bitsSet() (string, bool) {
	m, ok := c.Values[0].(Masked)
	if !ok || len(c.Values) != 1 || !c.Negated || len(c.Ranges) != 1 || !allZero(c.Ranges[0].First) || len(m.Mask) != 4 {
		return "", false
	}
	ct, ok := m.Of.(Ct)
	names := BitNames(hexOf(m.Mask).(uint32), "invalid", "established", "related", "new", "", "", "untracked")
	return "ct state " + names, ok && ct.Key == "state"
}

// options is the comparison in iptables' words, where it has generic ones.
func (c Compare) options() (string, bool) {
	v, mask, ok := c.sole()
	if !ok {
		return "", false
	}
	option := map[string]string{
		"ip saddr": "-s", "ip daddr": "-d", "ip6 saddr": "-s", "ip6 daddr": "-d", "iifname": "-i", "oifname": "-o", "meta l4proto": "-p", "ip protocol": "-p",
		"th sport": "--sport", "th dport": "--dport", "tcp flags": "--tcp-flags", "ip frag-off": "-f", "meta mark": "--mark", "ct mark": "--mark",
	}[v.String()]
	r, negated, module, value := c.Ranges[0], c.Negated, "", ""
	switch option {
	case "":
		return "", false
	case "-s", "-d":
		if value, _, ok = prefixOf(v, mask, r); !ok {
			return "", false
		}
	case "--mark":
		if !r.single() || len(r.First) != 4 {
			return "", false
		}
		module = strings.TrimPrefix(strings.Replace(v.String(), "ct mark", "connmark", 1), "meta ")
		if value = fmt.Sprintf("0x%x", hexOf(r.First)); mask != nil {
			value += fmt.Sprintf("/0x%x", hexOf(mask))
		}
	case "--tcp-flags":
		if len(mask) != 1 || !r.single() {
			return "", false
		}
		value = TCPFlags(mask[0]) + " " + TCPFlags(r.First[0])
	case "-f": // not the first of fragments
		negated = !negated
	default:
		if mask != nil {
			return "", false
		}
		value = r.text(v, false)
	}
	words := option
	if value != "" {
		words += " " + value
	}
	if negated {
		words = "! " + words
	}
	if module != "" {
		words = "-m " + module + " " + words
	}
	return words, true
}

// prefixOf is "10.0.0.0/8" or "10.0.0.0/255.0.255.0", always with a length; bits is that of the
// address. It is not ok if that is no network, or v no address.
func prefixOf(v Value, mask []byte, r Range) (text string, bits int, ok bool) {
	size := 0
	switch v := v.(type) {
	case Payload:
		_, size = v.field()
	case Ct:
		if strings.HasSuffix(v.Key, "addr") {
			size = v.ByteSize
		}
	}
	padded := func(b []byte) netip.Addr {
		a, _ := netip.AddrFromSlice(append(b[:len(b):len(b)], make([]byte, max(0, size-len(b)))...))
		return a
	}
	a := padded(r.First)
	if !r.single() || size < 4 || !a.IsValid() {
		return "", 0, false
	}
	if mask == nil {
		return fmt.Sprintf("%s/%d", a, 8*len(r.First)), a.BitLen(), true
	}
	m := padded(mask)
	return Network(a, m), a.BitLen(), m.IsValid()
}

// text is the range in the words of the values' kind.
func (r Range) text(v Value, native bool) string {
	name := v.String()
	switch {
	case name == "iifname" || name == "oifname":
		s, _, ended := strings.Cut(string(r.First), "\x00")
		switch {
		case ended && native:
			return fmt.Sprintf("%q", s)
		case ended:
			return s
		case native:
			return fmt.Sprintf("%q", s+"*")
		}
		return s + "+"
	case name == "meta nfproto":
		return r.plain("-", map[byte]string{NFProto(true): "ipv4", NFProto(false): "ipv6"})
	case strings.HasSuffix(name, "l4proto") || name == "ip protocol" || name == "ip6 nexthdr" || strings.HasPrefix(name, "ct") && strings.HasSuffix(name, "protocol"):
		return r.plain("-", protocols)
	case strings.HasPrefix(name, "th ") && !native:
		return r.Numbers(":")
	case strings.HasSuffix(name, "addr"):
		first, ok := netip.AddrFromSlice(r.First)
		last, too := netip.AddrFromSlice(r.Last)
		if ok && too && first == last {
			return first.String()
		} else if ok && too {
			return first.String() + "-" + last.String()
		}
	}
	if _, swapped := v.(Swapped); swapped && len(r.First) == 4 {
		return Range{littleEndianOf(r.First), littleEndianOf(r.Last)}.Numbers("-")
	}
	return r.Numbers("-")
}

// littleEndianOf is a number in network byte order as one of the machine's.
func littleEndianOf(b []byte) []byte {
	return binary.NativeEndian.AppendUint32(nil, binary.BigEndian.Uint32(b))
}

var protocols = map[byte]string{1: "icmp", 6: "tcp", 17: "udp", 47: "gre", 50: "esp", 51: "ah", 58: "ipv6-icmp", 132: "sctp"}

// Numbers is the range with its ends as numbers: of two bytes in network byte order, of four in the machine's.
func (r Range) Numbers(separator string) string { return r.plain(separator, nil) }

// plain is the range with its ends as numbers, or by the names of single bytes.
func (r Range) plain(separator string, names map[byte]string) string {
	text := func(b []byte) string {
		switch {
		case len(b) == 1 && names[b[0]] != "":
			return names[b[0]]
		case len(b) == 1:
			return fmt.Sprint(b[0])
		case len(b) == 2:
			return fmt.Sprint(binary.BigEndian.Uint16(b))
		}
		return fmt.Sprintf("0x%x", hexOf(b))
	}
	if r.single() {
		return text(r.First)
	}
	return text(r.First) + separator + text(r.Last)
}

// Text describes the step.
func (i In) Text(bool) string {
	if i.Negated {
		return fmt.Sprintf("%s != %s", i.Key, i.Set)
	}
	return fmt.Sprintf("%s %s", i.Key, i.Set)
}
