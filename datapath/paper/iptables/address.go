package iptables

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Addrtype is "-m addrtype": the type of an address according to the routing tables.
type Addrtype struct {
	Source, Destination Condition[AddrTypes]
	// LimitIn and LimitOut use the routes of the packet's input or output device only; not both.
	LimitIn, LimitOut bool
}

// AddrTypes is a set of types of addresses.
type AddrTypes uint16

// The types: bit n is RTN_... n of rtnetlink.h (xt_addrtype.h).
const (
	AddrUnspec      AddrTypes = 1 << iota // RTN_UNSPEC
	AddrUnicast                           // RTN_UNICAST
	AddrLocal                             // RTN_LOCAL: one of the host's own
	AddrBroadcast                         // RTN_BROADCAST
	AddrAnycast                           // RTN_ANYCAST
	AddrMulticast                         // RTN_MULTICAST
	AddrBlackhole                         // RTN_BLACKHOLE
	AddrUnreachable                       // RTN_UNREACHABLE
	AddrProhibit                          // RTN_PROHIBIT
	AddrThrow                             // RTN_THROW
	AddrNAT                               // RTN_NAT
	AddrXResolve                          // RTN_XRESOLVE
)

var addrTypeNames = bitNames{
	{uint32(AddrUnspec), "UNSPEC"}, {uint32(AddrUnicast), "UNICAST"}, {uint32(AddrLocal), "LOCAL"},
	{uint32(AddrBroadcast), "BROADCAST"}, {uint32(AddrAnycast), "ANYCAST"}, {uint32(AddrMulticast), "MULTICAST"},
	{uint32(AddrBlackhole), "BLACKHOLE"}, {uint32(AddrUnreachable), "UNREACHABLE"}, {uint32(AddrProhibit), "PROHIBIT"},
	{uint32(AddrThrow), "THROW"}, {uint32(AddrNAT), "NAT"}, {uint32(AddrXResolve), "XRESOLVE"},
}

// String is "UNICAST,LOCAL".
func (t AddrTypes) String() string { return addrTypeNames.text(uint32(t)) }

var _ = addMatch(&module{
	name: "addrtype",
	shapes: map[string]shape{
		"--src-type": notOne, "--dst-type": notOne, "--limit-iface-in": flag, "--limit-iface-out": flag,
	},
	phrases: map[string]phrase{"ADDRTYPE": addrtypePhrase},
	build: func(s *section) Match {
		types := someShort[AddrTypes]("a list of address types", addrTypeNames)
		m := Addrtype{
			Source: condition(s, "--src-type", types), Destination: condition(s, "--dst-type", types),
			LimitIn: s.has("--limit-iface-in"), LimitOut: s.has("--limit-iface-out"),
		}
		if !m.Source.Given && !m.Destination.Given {
			s.miss("--src-type or --dst-type")
		}
		s.atMostOne("--limit-iface-in", "--limit-iface-out")
		return m
	},
})

func (Addrtype) module() string { return "addrtype" }
func (m Addrtype) write(w *words) {
	writeCondition(w, "--src-type", m.Source, AddrTypes.String)
	writeCondition(w, "--dst-type", m.Destination, AddrTypes.String)
	w.flag(m.LimitIn, "--limit-iface-in")
	w.flag(m.LimitOut, "--limit-iface-out")
}

// test is addrtype_mt_v1 (xt_addrtype.c).
func (m Addrtype) test(c *Context) Truth {
	return truthOf(!m.wrong(c, m.Source, c.Packet.Source) && !m.wrong(c, m.Destination, c.Packet.Destination))
}

func (m Addrtype) wrong(c *Context, types Condition[AddrTypes], a netip.AddrPort) bool {
	device := ""
	switch {
	case m.LimitIn:
		device = c.In
	case m.LimitOut:
		device = c.Out
	}
	return types.Given && c.Host.AddrType(a.Addr(), device, types.Value) == types.Negated
}

func (m Addrtype) whyNot(c *Context) string {
	types, a := m.Source, c.Packet.Source
	if !m.wrong(c, types, a) {
		types, a = m.Destination, c.Packet.Destination
	}
	verb := "is not"
	if types.Negated {
		verb = "is"
	}
	return fmt.Sprintf("%s %s an address of type %s", a.Addr(), verb, types.Value)
}

// IPRange is "-m iprange".
type IPRange struct{ Source, Destination Condition[AddrRange] }

var _ = addMatch(&module{
	name:    "iprange",
	shapes:  map[string]shape{"--src-range": notOne, "--dst-range": notOne},
	phrases: map[string]phrase{"source": iprangePhrase("--src-range"), "destination": iprangePhrase("--dst-range")},
	build: func(s *section) Match {
		addresses := kind[AddrRange]{"a range of " + s.family.String() + " addresses", "first-last", func(t string) (AddrRange, bool) {
			return parseAddrRange(s.family, t)
		}}
		m := IPRange{condition(s, "--src-range", addresses), condition(s, "--dst-range", addresses)}
		if !m.Source.Given && !m.Destination.Given {
			s.miss("--src-range or --dst-range")
		}
		return m
	},
})

func (IPRange) module() string { return "iprange" }
func (m IPRange) write(w *words) {
	writeCondition(w, "--src-range", m.Source, AddrRange.String)
	writeCondition(w, "--dst-range", m.Destination, AddrRange.String)
}

func (m IPRange) test(c *Context) Truth {
	result := True
	if s := m.Source; s.Given {
		result = c.address(true).inAddresses(s.Value, s.Negated)
	}
	if d := m.Destination; d.Given {
		result = result.And(c.address(false).inAddresses(d.Value, d.Negated))
	}
	return result
}

// MACAddress is an Ethernet address.
type MACAddress [6]byte

// String is "00:11:22:aa:bb:cc".
func (a MACAddress) String() string { return net.HardwareAddr(a[:]).String() }

// ParseMAC reads what [MACAddress.String] gives, in either case.
func ParseMAC(text string) (MACAddress, error) {
	a, ok := parseMAC(text)
	if !ok {
		return a, fmt.Errorf("%q is no Ethernet address; want one like 00:11:22:aa:bb:cc", text)
	}
	return a, nil
}

func parseMAC(text string) (MACAddress, bool) {
	a := MACAddress{}
	parts := strings.Split(text, ":")
	if len(parts) != len(a) {
		return a, false
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 8)
		if err != nil {
			return a, false
		}
		a[i] = byte(n)
	}
	return a, true
}

// MAC is "-m mac": the source address of an Ethernet frame. Packets without a frame do not match,
// negated or not (xt_mac.c).
type MAC struct {
	Address MACAddress
	Negated bool
}

var _ = addMatch(&module{
	name:    "mac",
	shapes:  map[string]shape{"--mac-source": notOne},
	phrases: map[string]phrase{"MAC": valuePhrase("mac", "--mac-source")},
	build: func(s *section) Match {
		v, negated := sole(s, "--mac-source", kind[MACAddress]{"an Ethernet address", "six bytes like 00:11:22:aa:bb:cc", parseMAC})
		return MAC{v, negated}
	},
})

func (MAC) module() string   { return "mac" }
func (m MAC) write(w *words) { w.option(m.Negated, "--mac-source", m.Address.String()) }

func (MAC) reads() Facts { return FactMAC }

func (m MAC) test(c *Context) Truth {
	return truthOf(c.framed() && (*c.Packet.MAC == m.Address) != m.Negated)
}

// framed reports whether the packet still has the header of its frame.
func (c *Context) framed() bool {
	return c.Packet.MAC != nil && c.In != "" && c.Host.HasFrames(c.In)
}

func (m MAC) whyNot(c *Context) string {
	if !c.framed() {
		return "it came in no Ethernet frame"
	}
	return isNot("the frame's source is "+c.Packet.MAC.String(), m.Address.String(), m.Negated)
}

func (m MAC) unknown(*Context) string {
	return Describe(m) + " depends on the frame's source address, which is not known"
}

func addrtypePhrase(w *wording, negated bool) bool {
	w.load("addrtype")
	return w.word("match") && !negated && w.listed(modules["addrtype"].shapes, [][2]string{
		{"src-type", "--src-type"}, {"dst-type", "--dst-type"}, {"limit-in", "--limit-iface-in"}, {"limit-out", "--limit-iface-out"},
	})
}

func iprangePhrase(option string) phrase {
	return func(w *wording, negated bool) bool {
		w.load("iprange")
		if negated || !w.word("IP", "range") || !w.notValue(option) {
			return false
		}
		return option != "--src-range" || !w.word("destination", "IP", "range") || w.notValue("--dst-range")
	}
}
