package rules

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
)

// NATKind is the kind of a translation, by nft's statements.
type NATKind uint8

// The kinds. At postrouting, only SNAT and Masquerade have a place.
const (
	SNAT       NATKind = iota
	Masquerade         // to an address of the output device
	DNAT
	Redirect
)

var natNames = [...]string{"snat", "masquerade", "dnat", "redirect"}

// NAT translates; at postrouting, the source. The zero values of addresses and ports are not
// given.
type NAT struct {
	Kind                NATKind
	First, Last         Value // addresses; nil: the source's own
	FirstPort, LastPort Value // nil: any port
	// BasePort: ports are translated one by one, from a first port on.
	BasePort bool
	// Netmap replaces the network of the address instead, by that of First to Last.
	Netmap bool
	// Persistent gives a client the same address always, and Fully ("fully-random") lets no
	// source stay. Random selects ports at random.
	Persistent, Fully, Random bool
}

// Text describes the step.
func (n NAT) Text(native bool) string {
	to, ports := "", ""
	if n.First != nil {
		to = n.span(n.First, n.Last)
	}
	if n.FirstPort != nil {
		ports = ":" + n.span(n.FirstPort, n.LastPort)
	}
	if strings.Contains(to, ":") && ports != "" {
		to = "[" + to + "]"
	}
	fully, before, between := "random-fully", " --", " --"
	words := "-j " + strings.ToUpper(natNames[n.Kind])
	switch {
	case native:
		fully, before, between, words = "fully-random", " ", ",", natNames[n.Kind]
		if n.Netmap {
			words += " prefix"
		}
		if to += ports; to != "" {
			words += " to " + to
		}
	case n.Netmap:
		return "-j NETMAP --to " + n.network()
	case n.Kind == SNAT:
		words += " --to-source " + to + ports
	case n.Kind == DNAT:
		words += " --to-destination " + to + ports
	case ports != "":
		words += " --to-ports " + ports[1:]
	}
	if n.BasePort {
		words += " …"
	}
	var flags []string
	if n.Random {
		flags = append(flags, "random")
	}
	if n.Fully {
		flags = append(flags, fully)
	}
	if n.Persistent && (n.Kind == SNAT || n.Kind == DNAT) { // without effect with a single address
		flags = append(flags, "persistent")
	}
	if len(flags) > 0 {
		words += before + strings.Join(flags, between)
	}
	return words
}

// span is "192.0.2.1-192.0.2.9" or "80-90", or what the values are called.
func (n NAT) span(first, last Value) string {
	text := func(v Value) string {
		c, fixed := v.(Const)
		if a, ok := netip.AddrFromSlice(c); ok {
			return a.String()
		} else if fixed && len(c) >= 2 {
			return fmt.Sprint(binary.BigEndian.Uint16(c))
		}
		return v.String()
	}
	s := text(first)
	if last != nil && text(last) != s {
		s += "-" + text(last)
	}
	return s
}

// network is the network of addresses that begins with First and ends with Last.
func (n NAT) network() string {
	first, _ := n.First.(Const)
	last, _ := n.Last.(Const)
	mask := make([]byte, min(len(first), len(last)))
	for i := range mask {
		mask[i] = ^(first[i] ^ last[i])
	}
	a, _ := netip.AddrFromSlice(first)
	m, _ := netip.AddrFromSlice(mask)
	return Network(a, m)
}

// Network is "10.0.0.0/8", or "10.0.0.1/255.0.0.255" if the mask is no prefix or the address has bits beyond it.
func Network(a, mask netip.Addr) string {
	ones := 0
	for _, b := range mask.AsSlice() {
		ones += bits.OnesCount8(b)
	}
	p := netip.PrefixFrom(a, ones)
	if p.Masked() == p && netip.PrefixFrom(mask, ones).Masked().Addr() == mask {
		return p.String()
	}
	return a.String() + "/" + mask.String()
}

// Hash is Jenkins' lookup3 (jhash in include/linux/jhash.h) on a little-endian machine. The kernel selects addresses
// of translations by it, and nft has it as jhash.
func Hash(k []byte, initial uint32) uint32 {
	a := uint32(0xdeadbeef) + uint32(len(k)) + initial
	b, c := a, a
	add := func(k []byte) {
		a += binary.LittleEndian.Uint32(k)
		b += binary.LittleEndian.Uint32(k[4:])
		c += binary.LittleEndian.Uint32(k[8:])
	}
	for ; len(k) > 12; k = k[12:] {
		add(k)
		for _, r := range [...]int{4, 6, 8, 16, 19, 4} { // __jhash_mix: the three change places
			a -= c
			a ^= bits.RotateLeft32(c, r)
			c += b
			a, b, c = b, c, a
		}
	}
	if len(k) == 0 {
		return c
	}
	var rest [12]byte
	copy(rest[:], k)
	add(rest[:])
	for _, r := range [...]int{14, 11, 25, 16, 4, 14, 24} { // __jhash_final
		c ^= b
		c -= bits.RotateLeft32(b, r)
		a, b, c = b, c, a
	}
	return b
}
