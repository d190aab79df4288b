package iptables

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Physdev is "-m physdev": the input and output bridge ports of a bridged packet (xt_physdev.c).
// Without br_netfilter no packet has any.
type Physdev struct {
	IsIn, IsOut, IsBridged Condition[bool]
	In, Out                Condition[Interface]
}

var _ = addMatch(&module{
	name: "physdev",
	shapes: map[string]shape{
		"--physdev-in": notOne, "--physdev-out": notOne,
		"--physdev-is-in": notFlag, "--physdev-is-out": notFlag, "--physdev-is-bridged": notFlag,
	},
	phrases: map[string]phrase{"PHYSDEV": physdevPhrase},
	build: func(s *section) Match {
		if len(s.options) == 0 {
			s.miss("--physdev-in, --physdev-is-bridged, ...")
		}
		return Physdev{
			IsIn: flagCondition(s, "--physdev-is-in"), IsOut: flagCondition(s, "--physdev-is-out"),
			IsBridged: flagCondition(s, "--physdev-is-bridged"),
			In:        condition(s, "--physdev-in", aDevice), Out: condition(s, "--physdev-out", aDevice),
		}
	},
})

func (Physdev) module() string { return "physdev" }
func (m Physdev) write(w *words) {
	writeFlag(w, "--physdev-is-in", m.IsIn)
	writeCondition(w, "--physdev-in", m.In, Interface.String)
	writeFlag(w, "--physdev-is-out", m.IsOut)
	writeCondition(w, "--physdev-out", m.Out, Interface.String)
	writeFlag(w, "--physdev-is-bridged", m.IsBridged)
}

func (Physdev) reads() Facts { return FactBridge }

// test is physdev_mt (xt_physdev.c).
func (m Physdev) test(c *Context) Truth {
	p := &c.Packet
	if p.PhysIn == "" && p.PhysOut == "" { // positive tests fail, negative ones do not
		return truthOf(!m.In.fails(false) && !m.Out.fails(false) && !m.IsIn.fails(false) && !m.IsOut.fails(false) && !m.IsBridged.fails(false))
	}
	return truthOf(!m.IsBridged.fails(p.Bridged) && !m.IsIn.fails(p.PhysIn != "") && !m.IsOut.fails(p.PhysOut != "") &&
		!m.In.fails(m.In.Value.Matches(p.PhysIn)) && !m.Out.fails(m.Out.Value.Matches(p.PhysOut)))
}

// Rpfilter is "-m rpfilter": a packet whose reply would leave by its input device
// (ipt_rpfilter.c).
type Rpfilter struct {
	Loose       bool // any device will do
	ValidMark   bool // the route lookup uses the packet's mark
	AcceptLocal bool // a source address of the host itself is accepted
	Invert      bool // invert the match
}

var _ = addMatch(&module{
	name: "rpfilter",
	shapes: map[string]shape{
		"--loose": flag, "--validmark": flag, "--accept-local": flag, "--invert": flag,
	},
	phrases: map[string]phrase{"rpfilter": flagsPhrase("rpfilter", "--")},
	build: func(s *section) Match {
		return Rpfilter{s.has("--loose"), s.has("--validmark"), s.has("--accept-local"), s.has("--invert")}
	},
})

func (Rpfilter) module() string { return "rpfilter" }
func (m Rpfilter) write(w *words) {
	w.flag(m.Loose, "--loose")
	w.flag(m.ValidMark, "--validmark")
	w.flag(m.AcceptLocal, "--accept-local")
	w.flag(m.Invert, "--invert")
}

// test is rpfilter_mt (ipt_rpfilter.c): whether a reply would leave by the packet's input device.
func (m Rpfilter) test(c *Context) Truth { return truthOf(m.accepts(c) != m.Invert) }

func (m Rpfilter) accepts(c *Context) bool {
	from, to := c.Packet.Source.Addr(), c.Packet.Destination.Addr()
	if c.In == loopbackName || from.IsUnspecified() && (from.Is6() || to.IsMulticast() || c.Host.IsBroadcast(to)) {
		return true
	}
	typ, device := c.Host.RouteBack(from, m.mark(c))
	switch {
	case typ == AddrLocal && m.AcceptLocal:
		return from.Is6() || m.Loose || device == c.In
	case typ != AddrUnicast:
		return false
	}
	return m.Loose || device == c.In
}

func (m Rpfilter) mark(c *Context) uint32 {
	if m.ValidMark {
		return c.Packet.Mark
	}
	return 0
}

func (m Rpfilter) whyNot(c *Context) string {
	typ, device := c.Host.RouteBack(c.Packet.Source.Addr(), m.mark(c))
	if typ != AddrUnicast {
		return ""
	}
	back := fmt.Sprintf("the route back to %s is by %s", c.Packet.Source.Addr(), device)
	if m.Invert {
		return back + ", as it came"
	}
	return back + ", not by " + c.In
}

const loopbackName = "lo"

// PacketType is "-m pkttype": how the packet was addressed on the link.
type PacketType struct {
	Type    LinkType
	Negated bool
}

// LinkType is PACKET_... of if_packet.h.
type LinkType uint8

// The types that the module knows.
const (
	LinkUnicast   LinkType = iota // PACKET_HOST
	LinkBroadcast                 // PACKET_BROADCAST
	LinkMulticast                 // PACKET_MULTICAST
	LinkOtherHost                 // PACKET_OTHERHOST: no rule sees such packets, but those of a bridge
)

var linkTypeNames = []string{"unicast", "broadcast", "multicast", "otherhost"}

func (t LinkType) String() string { return nameOf(linkTypeNames, t) }

var _ = addMatch(&module{
	name:    "pkttype",
	shapes:  map[string]shape{"--pkt-type": notOne},
	phrases: map[string]phrase{"PKTTYPE": pkttypePhrase},
	build: func(s *section) Match {
		names := append(linkTypeNames[:4:4], "host") // an alias of unicast
		v, negated := sole(s, "--pkt-type", oneName[LinkType]("a type of packet", names))
		return PacketType{v % 4, negated}
	},
})

func (PacketType) module() string   { return "pkttype" }
func (m PacketType) write(w *words) { w.option(m.Negated, "--pkt-type", m.Type.String()) }

func (m PacketType) test(c *Context) Truth {
	return c.meta(rules.LinkType).is(m.Negated, byte(m.Type))
}

// linkType is that of pkttype_mt (xt_pkttype.c): on lo it follows from the address.
func (c *Context) linkType() LinkType {
	if c.In != loopbackName && c.In != "" {
		return c.Packet.Link
	}
	switch a := c.Packet.Destination.Addr(); {
	case a.IsMulticast():
		return LinkMulticast
	case a.Is4() && c.Host.IsBroadcast(a):
		return LinkBroadcast
	}
	return LinkUnicast
}

// Length is "-m length": of the packet with its IP header, in bytes.
type Length struct {
	Range   Range[uint16]
	Negated bool
}

var _ = addMatch(&module{
	name:    "length",
	shapes:  map[string]shape{"--length": notOne},
	phrases: map[string]phrase{"length": valuePhrase("length", "--length")},
	build: func(s *section) Match {
		v, negated := sole(s, "--length", aLength)
		return Length{v, negated}
	},
})

func (Length) module() string   { return "length" }
func (m Length) write(w *words) { w.option(m.Negated, "--length", m.Range.String()) }

func (Length) reads() Facts { return FactLength }

func (m Length) test(c *Context) Truth {
	first, last := [4]byte{2: byte(m.Range.First >> 8), 3: byte(m.Range.First)}, [4]byte{2: byte(m.Range.Last >> 8), 3: byte(m.Range.Last)}
	return c.meta(rules.Length).in(rules.Range{First: first[:], Last: last[:]}, m.Negated)
}

func (m Length) whyNot(c *Context) string {
	return isNot(fmt.Sprintf("the packet has %d bytes", c.Packet.Length), m.Range.String(), m.Negated)
}

func physdevPhrase(w *wording, negated bool) bool {
	w.load("physdev")
	return !negated && w.word("match") && w.options("", modules["physdev"].shapes)
}

func pkttypePhrase(w *wording, negated bool) bool {
	w.load("pkttype")
	not := w.word("!=")
	t := Token{}
	ok := not || w.word("=")
	if ok {
		t, ok = w.next()
	}
	w.emit(not, "--pkt-type", t)
	return ok && !negated
}
