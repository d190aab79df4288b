package iptables

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// number reads what strtoul with base 0 reads (xtables_strtoul): decimal, 0x17, 017, +5, and spaces in front.
func number[T uint8 | uint16 | uint32 | uint64](text string) (T, bool) {
	text = strings.TrimPrefix(strings.TrimLeft(text, " \t"), "+")
	base, digits := 10, text
	if rest, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		base, digits = 16, rest
	} else if len(text) > 1 && text[0] == '0' {
		base, digits = 8, text[1:]
	}
	v, err := strconv.ParseUint(digits, base, 64)
	return T(v), err == nil && uint64(T(v)) == v
}

// Range is a range of numbers, both ends included.
type Range[T uint16 | uint32 | uint64] struct{ First, Last T }

// Contains reports whether a number is in the range.
func (r Range[T]) Contains(n T) bool { return r.First <= n && n <= r.Last }

// text is "first:last" with the separator given, or one number.
func (r Range[T]) text(separator string) string {
	if r.First == r.Last {
		return strconv.FormatUint(uint64(r.First), 10)
	}
	return strconv.FormatUint(uint64(r.First), 10) + separator + strconv.FormatUint(uint64(r.Last), 10)
}

// String is "first:last", or one number.
func (r Range[T]) String() string { return r.text(":") }

// PortRange is a range of transport ports in host byte order.
type PortRange = Range[uint16]

// anyPort is the test that every port passes, which is not printed.
var anyPort = PortRange{0, 65535}

// parseRange reads "first:last", "first:", ":last" and "number", the first not above the last.
func parseRange[T uint16 | uint32 | uint64](text, separator string) (Range[T], bool) {
	r, ok := parseAnyRange[T](text, separator)
	return r, ok && r.First <= r.Last
}

// parseAnyRange reads a range like parseRange, and ranges that contain nothing: "100:50". Of many options, iptables and the kernel
// take these as they are.
func parseAnyRange[T uint16 | uint32 | uint64](text, separator string) (Range[T], bool) {
	first, last, two := strings.Cut(text, separator)
	if !two {
		n, ok := number[T](first)
		return Range[T]{n, n}, ok
	}
	r := Range[T]{0, ^T(0)}
	ok1, ok2 := true, true
	if first != "" {
		r.First, ok1 = number[T](first)
	}
	if last != "" {
		r.Last, ok2 = number[T](last)
	}
	return r, ok1 && ok2
}

var (
	aPort = kind[PortRange]{"a port", "0 to 65535, or first:last, or a name like http", func(s string) (PortRange, bool) {
		r, ok := parsePorts(s, ":")
		return r, ok && r.First <= r.Last
	}}
	// -m udp alone takes a range that contains nothing (libxt_udp.c has a reader of its own).
	aUDPPort = kind[PortRange]{aPort.what, aPort.want, func(s string) (PortRange, bool) { return parsePorts(s, ":") }}
	aLength  = kind[Range[uint16]]{"a length", "0 to 65535, or first:last", func(s string) (Range[uint16], bool) {
		return parseAnyRange[uint16](s, ":")
	}}
	anyUint8  = kind[uint8]{"a number of 8 bits", "0 to 255", number[uint8]}
	anyUint16 = kind[uint16]{"a number of 16 bits", "0 to 65535", number[uint16]}
	anyUint32 = kind[uint32]{"a number of 32 bits", "0 to 4294967295", number[uint32]}
	anyUint64 = kind[uint64]{"a number of 64 bits", "a number", number[uint64]}
)

// MaskedValue is a number with a mask of relevant bits.
type MaskedValue struct{ Value, Mask uint32 }

// Equals reports whether v equals the value in the bits of the mask. With bits of the value
// outside the mask it is never true (xt_mark.c, mark_mt).
func (m MaskedValue) Equals(v uint32) bool { return v&m.Mask == m.Value }

// Full returns value/mask, also if the mask is all ones.
func (m MaskedValue) Full() string { return fmt.Sprintf("0x%x/0x%x", m.Value, m.Mask) }

// String leaves out a mask of all ones.
func (m MaskedValue) String() string {
	if m.Mask == ^uint32(0) {
		return fmt.Sprintf("0x%x", m.Value)
	}
	return m.Full()
}

var aMark = kind[MaskedValue]{"a mark", "value or value/mask, of 32 bits", func(s string) (MaskedValue, bool) {
	value, mask, masked := strings.Cut(s, "/")
	v, ok := number[uint32](value)
	if !masked {
		return MaskedValue{v, ^uint32(0)}, ok
	}
	m, ok2 := number[uint32](mask)
	return MaskedValue{v, m}, ok && ok2
}}

// Network is an address with a mask, which need not be a prefix.
type Network struct {
	// Addr has no bits outside of Mask; both are of the dump's family.
	Addr, Mask netip.Addr
}

// MaskedNetwork is a network of which only the bits of the mask are kept.
func MaskedNetwork(addr, mask netip.Addr) Network { return Network{masked(addr, mask), mask} }

// NetworkOf is a prefix as a network.
func NetworkOf(p netip.Prefix) Network {
	f := IPv4
	if p.Addr().Is6() {
		f = IPv6
	}
	mask := maskOf(f, p.Bits())
	return MaskedNetwork(p.Addr(), mask)
}

// Contains reports whether an address equals the network in the bits of the mask.
func (n Network) Contains(a netip.Addr) bool {
	return a.BitLen() == n.Addr.BitLen() && masked(a, n.Mask) == n.Addr
}

// Prefix is the network as a prefix, if its mask is one.
func (n Network) Prefix() (netip.Prefix, bool) {
	length, ok := prefixLength(n.Mask)
	if !ok {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(n.Addr, length), true
}

// all reports whether every address is in the network, as in 0.0.0.0/0: iptables makes no test of it.
func (n Network) all() bool { return n.Mask.IsValid() && n.Mask.IsUnspecified() }

// String returns address/length, or address/mask if the mask is no prefix.
func (n Network) String() string {
	if p, ok := n.Prefix(); ok {
		return p.String()
	}
	return n.Addr.String() + "/" + n.Mask.String()
}

// hostText leaves out the mask of a single address.
func (n Network) hostText() string {
	if p, ok := n.Prefix(); ok && p.IsSingleIP() {
		return n.Addr.String()
	}
	return n.String()
}

func prefixLength(mask netip.Addr) (int, bool) {
	if !mask.IsValid() {
		return 0, false
	}
	length, ended := 0, false
	for _, b := range mask.AsSlice() {
		ones := bits.LeadingZeros8(^b)
		if ended && b != 0 || bits.OnesCount8(b) != ones {
			return 0, false
		}
		length += ones
		ended = ended || ones < 8
	}
	return length, true
}

// maskOf is the mask of a prefix's length.
func maskOf(f Family, length int) netip.Addr {
	var a [16]byte
	for i := range a {
		a[i] = ^byte(0) << (8 - min(8, max(0, length-8*i)))
	}
	if f == IPv6 {
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte(a[:]))
}

func masked(a, mask netip.Addr) netip.Addr {
	if a.Is4() && mask.Is4() {
		x, m := a.As4(), mask.As4()
		for i := range x {
			x[i] &= m[i]
		}
		return netip.AddrFrom4(x)
	}
	x, m := a.As16(), mask.As16()
	for i := range x {
		x[i] &= m[i]
	}
	return netip.AddrFrom16(x)
}

func parseAddr(f Family, text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	return a, err == nil && isOf(a, f)
}

func parseNetwork(f Family, text string) (Network, bool) {
	addr, mask, two := strings.Cut(text, "/")
	a, ok := parseAddr(f, addr)
	if !ok {
		return Network{}, false
	}
	m := maskOf(f, addrBits(f))
	if two {
		if length, ok := number[uint8](mask); ok && int(length) <= addrBits(f) {
			m = maskOf(f, int(length))
		} else if m, ok = parseAddr(f, mask); !ok {
			return Network{}, false
		}
	}
	return MaskedNetwork(a, m), true
}

// network is what -s and -d take.
func (s *section) network() kind[Network] {
	return s.networkOf(func(t string) (Network, bool) {
		host, mask, masked := strings.Cut(t, "/")
		if a, ok := parseHost(s.family, host); ok {
			host = a.String()
		} else if length, ok := number[uint8](mask); ok && length == 0 {
			host = anyAddress(s.family).String() // of any/0, iptables does not look at the name
		}
		if masked {
			host += "/" + mask
		}
		return parseNetwork(s.family, host)
	})
}

// moduleNetwork is what the options of modules take (xtoptions.c, xtopt_parse_hostmask). A mask that is no prefix stands for the
// whole address.
func (s *section) moduleNetwork() kind[Network] {
	return s.networkOf(func(t string) (Network, bool) {
		host, mask, masked := strings.Cut(t, "/")
		a, ok := parseModuleHost(s.family, host)
		if !ok {
			return Network{}, false
		}
		bits := addrBits(s.family)
		if masked {
			if length, ok := number[uint8](mask); ok && int(length) <= bits {
				bits = int(length)
			} else if m, ok := parseModuleHost(s.family, mask); !ok {
				return Network{}, false
			} else if length, ok := prefixLength(m); ok {
				bits = length
			}
		}
		return MaskedNetwork(a, maskOf(s.family, bits)), true
	})
}

func (s *section) networkOf(parse func(string) (Network, bool)) kind[Network] {
	return kind[Network]{"an " + s.family.String() + " network", "address, address/length or address/mask", parse}
}

// address is what the options of modules take.
func (s *section) address() kind[netip.Addr] {
	return kind[netip.Addr]{"an " + s.family.String() + " address", "an address", func(t string) (netip.Addr, bool) {
		return parseModuleHost(s.family, t)
	}}
}

func anyAddress(f Family) netip.Addr {
	if f == IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// parseModuleHost reads an address as the options of modules do, by getaddrinfo: the last number of 10.1 has the last bytes.
func parseModuleHost(f Family, text string) (netip.Addr, bool) {
	if a, ok := parseAddr(f, text); ok {
		return a, true
	}
	if a, ok := parseAddr(f, knownHosts[text]); ok {
		return a, true
	}
	return atonAddr(f, text)
}

// atonAddr is inet_aton.
func atonAddr(f Family, text string) (netip.Addr, bool) {
	parts := strings.Split(text, ".")
	if f != IPv4 || len(parts) > 4 {
		return netip.Addr{}, false
	}
	var sum uint32
	for i, part := range parts {
		n, ok := number[uint32](part)
		size := 8
		if i == len(parts)-1 {
			size = 32 - 8*i
		}
		if !ok || uint64(n) >= 1<<size || part[0] < '0' || part[0] > '9' {
			return netip.Addr{}, false
		}
		sum |= n << (32 - 8*i - size)
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), true
}

// parseHost reads an address as iptables does: also without its last bytes, like 10 in 10/8, with
// bytes in octal and hexadecimal (xtables.c, numeric_to_addr), and as a name with one address everywhere.
func parseHost(f Family, text string) (netip.Addr, bool) {
	if a, ok := parseAddr(f, text); ok {
		return a, true
	}
	if a, ok := parseAddr(f, knownHosts[text]); ok {
		return a, true
	}
	parts := strings.Split(text, ".")
	if f != IPv4 || len(parts) > 4 {
		return netip.Addr{}, false
	}
	var a [4]byte
	for i, part := range parts {
		n, ok := number[uint8](part)
		if !ok {
			return atonAddr(f, text)
		}
		a[i] = n
	}
	return netip.AddrFrom4(a), true
}

// AddrRange is a range of addresses of one family, both ends included.
type AddrRange struct{ First, Last netip.Addr }

// Contains reports whether an address is in the range.
func (r AddrRange) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Prefix is the range as a prefix, if it is one.
func (r AddrRange) Prefix() (netip.Prefix, bool) {
	if r.First.BitLen() != r.Last.BitLen() {
		return netip.Prefix{}, false
	}
	same := r.First.AsSlice()
	for i, b := range r.Last.AsSlice() {
		same[i] = ^(same[i] ^ b)
	}
	mask, _ := netip.AddrFromSlice(same)
	length, ok := prefixLength(mask)
	return netip.PrefixFrom(r.First, length), ok && masked(r.First, mask) == r.First
}

// String is "first-last".
func (r AddrRange) String() string { return r.First.String() + "-" + r.Last.String() }

// parseAddrRange reads "first-last", and one address. The first may be above the last: the range contains nothing then.
func parseAddrRange(f Family, text string) (AddrRange, bool) {
	first, last, two := strings.Cut(text, "-")
	a, ok := parseHost(f, first)
	if !two {
		return AddrRange{a, a}, ok
	}
	b, ok2 := parseHost(f, last)
	return AddrRange{a, b}, ok && ok2
}

// nameOf returns the name at the number's index, or the number.
func nameOf[T ~uint8](names []string, n T) string {
	if int(n) < len(names) && names[n] != "" {
		return names[n]
	}
	return strconv.Itoa(int(n))
}

// bitNames are the names of the bits of a set, in the order of iptables-save.
type bitNames []struct {
	bit  uint32
	name string
}

func (b bitNames) text(set uint32) string {
	var names []string
	for _, n := range b {
		if set&n.bit != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ",")
}

func (b bitNames) want() string {
	var names []string
	for _, n := range b {
		names = append(names, n.name)
	}
	return "some of " + strings.Join(names, ",")
}

// parse reads a list of names in capital or small letters; nothing between commas counts for nothing,
// as in the lists that iptables splits with strtok.
func (b bitNames) parse(text string) (uint32, bool) {
	return b.union(strings.FieldsFunc(text, func(r rune) bool { return r == ',' }), strings.EqualFold)
}

// parseShort reads a list of names and of their beginnings: "NEW,EST". Of several names with the
// beginning the first counts (libxt_conntrack.c and libxt_addrtype.c, strncasecmp).
func (b bitNames) parseShort(text string) (uint32, bool) {
	return b.union(strings.Split(text, ","), begins)
}

func (b bitNames) union(words []string, is func(name, word string) bool) (set uint32, ok bool) {
next:
	for _, word := range words {
		for _, n := range b {
			if is(n.name, word) {
				set |= n.bit
				continue next
			}
		}
		return 0, false
	}
	return set, true
}

// begins reports whether a name begins with a word that is not empty, in capital or small letters.
func begins(name, word string) bool {
	return word != "" && len(word) <= len(name) && strings.EqualFold(name[:len(word)], word)
}

// someOf reads a list of named bits.
func someOf[T ~uint8 | ~uint16 | ~uint32](what string, names bitNames) kind[T] {
	return kind[T]{what, names.want(), func(s string) (T, bool) {
		set, ok := names.parse(s)
		return T(set), ok
	}}
}

// someShort reads a list of named bits, also of the names' beginnings.
func someShort[T ~uint8 | ~uint16 | ~uint32](what string, names bitNames) kind[T] {
	return kind[T]{what, names.want(), func(s string) (T, bool) {
		set, ok := names.parseShort(s)
		return T(set), ok
	}}
}

// oneName reads the name of a number, in capital or small letters.
func oneName[T ~uint8](what string, names []string) kind[T] {
	return kind[T]{what, "one of " + strings.Join(names, ", "), func(text string) (T, bool) {
		i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, text) })
		return T(max(i, 0)), i >= 0
	}}
}

// keptText reads text for a field of the kernel, which keeps at most limit bytes: iptables cuts the rest off.
func keptText(limit int) kind[string] {
	return kind[string]{"text", "", func(s string) (string, bool) { return s[:min(len(s), limit)], true }}
}
