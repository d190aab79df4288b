package iptables

import "slices"

// Physdev is "-m physdev": the ports of a bridge that a bridged packet came and goes by
// (xt_physdev.c). Without br_netfilter no packet has any.
type Physdev struct {
	IsIn, IsOut, IsBridged Condition[bool]
	In, Out                Condition[Interface]
}

var physdevModule = &module{
	name: "physdev",
	shapes: map[string]shape{
		"--physdev-in": notOne, "--physdev-out": notOne,
		"--physdev-is-in": notFlag, "--physdev-is-out": notFlag, "--physdev-is-bridged": notFlag,
	},
	build: func(s *section) Match {
		if len(s.options) == 0 {
			s.fail(s.name, "physdev without an option", "one of --physdev-in, --physdev-is-bridged, ...")
		}
		return Physdev{
			IsIn: flagCondition(s, "--physdev-is-in"), IsOut: flagCondition(s, "--physdev-is-out"),
			IsBridged: flagCondition(s, "--physdev-is-bridged"),
			In:        condition(s, "--physdev-in", aDevice), Out: condition(s, "--physdev-out", aDevice),
		}
	},
}

// Module is "physdev".
func (Physdev) Module() string { return "physdev" }
func (m Physdev) write(w *words) {
	writeFlag(w, "--physdev-is-in", m.IsIn)
	writeCondition(w, "--physdev-in", m.In, Interface.String)
	writeFlag(w, "--physdev-is-out", m.IsOut)
	writeCondition(w, "--physdev-out", m.Out, Interface.String)
	writeFlag(w, "--physdev-is-bridged", m.IsBridged)
}

// Rpfilter is "-m rpfilter": a packet whose answer would leave by the device that it
// came in by (ipt_rpfilter.c).
type Rpfilter struct {
	Loose       bool // any device will do
	ValidMark   bool // the look-up of the route uses the packet's mark
	AcceptLocal bool // a source that is the host's own is no fault
	Invert      bool // match the others
}

var rpfilterModule = &module{
	name: "rpfilter",
	shapes: map[string]shape{
		"--loose": flag, "--validmark": flag, "--accept-local": flag, "--invert": flag,
	},
	build: func(s *section) Match {
		return Rpfilter{s.has("--loose"), s.has("--validmark"), s.has("--accept-local"), s.has("--invert")}
	},
}

// Module is "rpfilter".
func (Rpfilter) Module() string { return "rpfilter" }
func (m Rpfilter) write(w *words) {
	w.flag(m.Loose, "--loose")
	w.flag(m.ValidMark, "--validmark")
	w.flag(m.AcceptLocal, "--accept-local")
	w.flag(m.Invert, "--invert")
}

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
)

var linkTypeNames = []string{"unicast", "broadcast", "multicast"}

func (t LinkType) String() string { return nameOf(linkTypeNames, t) }

var pkttypeModule = &module{
	name:   "pkttype",
	shapes: map[string]shape{"--pkt-type": notOne},
	build: func(s *section) Match {
		o := s.oneOf("--pkt-type")
		if len(o.values) == 0 {
			return PacketType{}
		}
		return PacketType{value(s, o.values[0], oneName[LinkType]("a type of packet", linkTypeNames)), o.negated}
	},
}

// oneName reads the name of a number.
func oneName[T ~uint8](what string, names []string) kind[T] {
	want := ""
	for i, n := range names {
		if i > 0 {
			want += ", "
		}
		want += n
	}
	return kind[T]{what, "one of " + want, func(text string) (T, bool) {
		i := slices.Index(names, text)
		return T(max(i, 0)), i >= 0
	}}
}

// Module is "pkttype".
func (PacketType) Module() string   { return "pkttype" }
func (m PacketType) write(w *words) { w.option(m.Negated, "--pkt-type", m.Type.String()) }

// Length is "-m length": of the packet with its IP header, in bytes.
type Length struct {
	Range   Range[uint16]
	Negated bool
}

var lengthModule = &module{
	name:   "length",
	shapes: map[string]shape{"--length": notOne},
	build: func(s *section) Match {
		o := s.oneOf("--length")
		if len(o.values) == 0 {
			return Length{}
		}
		return Length{value(s, o.values[0], kind[Range[uint16]]{"a length", "0 to 65535, or first:last", aPort.parse}), o.negated}
	},
}

// Module is "length".
func (Length) Module() string   { return "length" }
func (m Length) write(w *words) { w.option(m.Negated, "--length", m.Range.String()) }
