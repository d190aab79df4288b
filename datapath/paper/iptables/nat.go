package iptables

import (
	"net/netip"
	"slices"
	"strings"
)

// NATRange is the range for a translated address and port (nf_nat.h, nf_nat_range2).
type NATRange struct {
	// First and Last are the zero Addr if only the port changes.
	First, Last netip.Addr
	// FirstPort and LastPort are 0 if no port is given: then the kernel keeps the port if it can.
	FirstPort, LastPort uint16
	// PortZero is set for the given port 0, to which the kernel translates like to any other.
	PortZero bool
	// BasePort is that of "80-90/1000": the port is selected by its distance from it
	// (NF_NAT_RANGE_PROTO_OFFSET, Linux 4.18); 0: not given.
	BasePort uint16
	// Random chooses the port by a hash (--random), RandomFully really at random.
	Random, RandomFully bool
	// Persistent uses the same address for all destinations of a client.
	Persistent bool
}

// String is what iptables-save prints behind --to-destination: "10.0.0.1:80",
// "[fd00::1]:80", "10.0.0.1-10.0.0.9:80-90".
func (r NATRange) String() string {
	text := ""
	if r.First.IsValid() {
		text = r.First.String()
		if r.First != r.Last {
			text += "-" + r.Last.String()
		}
	}
	if !r.HasPorts() {
		return text
	}
	if r.First.Is6() {
		text = "[" + text + "]"
	}
	return text + ":" + r.portText()
}

// HasPorts reports whether the range gives a port.
func (r NATRange) HasPorts() bool { return r.FirstPort != 0 || r.LastPort != 0 || r.PortZero }

func (r NATRange) portText() string {
	text := Range[uint16]{r.FirstPort, r.LastPort}.text("-")
	if r.BasePort != 0 {
		text += "/" + decimal(r.BasePort)
	}
	return text
}

// setPorts sets the ports of a range, which are none if both are 0 and none is given.
func (r *NATRange) setPorts(p PortRange) {
	r.FirstPort, r.LastPort, r.PortZero = p.First, p.Last, p == PortRange{}
}

// parsePorts reads "80", "http", "80-90" and "80-90/1000", where the base may be a name.
func (r *NATRange) parsePorts(text string) bool {
	if p, ok := parseService(text); ok {
		n, ok := number[uint16](p)
		r.setPorts(PortRange{First: n, Last: n})
		return ok
	}
	ports, base, based := strings.Cut(text, "/")
	p, ok := parseRange[uint16](ports, "-")
	if !ok || strings.HasSuffix(ports, "-") || strings.HasPrefix(ports, "-") {
		return false
	}
	r.setPorts(p)
	if based {
		if name, ok := parseService(base); ok {
			base = name
		}
		r.BasePort, ok = number[uint16](base)
	}
	return ok
}

// parseNATRange reads what String prints.
func parseNATRange(f Family, text string) (NATRange, bool) {
	r := NATRange{}
	addrs, ports := text, ""
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if addrs, ports, ok = strings.Cut(inner, "]"); !ok {
			return r, false
		}
		if ports == "" {
			ports = ":" // brackets without a port are fine
		} else if ports == ":" {
			return r, false
		}
	} else if i := strings.IndexByte(text, ':'); i >= 0 && (f == IPv4 || i == 0 && !strings.HasPrefix(text, "::")) {
		if addrs, ports = text[:i], text[i:]; ports == ":" {
			return r, false
		}
	}
	if len(ports) > 1 && (ports[0] != ':' || !r.parsePorts(ports[1:])) {
		return r, false
	}
	if addrs == "" {
		return r, r.HasPorts()
	}
	a, ok := parseAddrRange(f, addrs)
	r.First, r.Last = a.First, a.Last
	return r, ok
}

var natProtocols = []uint8{protoTCP, protoUDP, protoSCTP, protoDCCP, protoICMP}

// natRange reads the target's option "name" and the flags.
func (s *section) natRange(name string) NATRange {
	want := "address[-address][:port[-port]]"
	if s.family == IPv6 {
		want = "address[-address], or [address[-address]]:port[-port]"
	}
	r := NATRange{}
	if o := s.oneOf(name); len(o.values) > 0 {
		r = value(s, o.values[0], kind[NATRange]{"an " + s.family.String() + " address to translate to", want, func(t string) (NATRange, bool) {
			return parseNATRange(s.family, t)
		}})
		if r.HasPorts() {
			s.needsPorts(o.values[0])
		}
	}
	s.natFlags(&r)
	return r
}

// natPorts reads "--to-ports".
func (s *section) natPorts() NATRange {
	r := optional(s, "--to-ports", kind[NATRange]{"a range of ports", "port or first-last, 0 to 65535", func(t string) (NATRange, bool) {
		var r NATRange
		ok := r.parsePorts(t)
		r.BasePort = 0
		return r, ok
	}}, NATRange{})
	if o, ok := s.find("--to-ports"); ok {
		s.needsPorts(o.values[0])
	}
	s.natFlags(&r)
	return r
}

// needsPorts reports a fault if the rule's protocol, negated or not, has no ports.
func (s *section) needsPorts(t Token) {
	if !slices.Contains(natProtocols, s.protocol.Number) {
		s.needs(t, "a port", natProtocols...)
	}
}

func (s *section) natFlags(r *NATRange) {
	r.Random, r.RandomFully, r.Persistent = s.has("--random"), s.has("--random-fully"), s.has("--persistent")
}

func (r NATRange) writeFlags(w *words) {
	w.flag(r.Random, "--random")
	w.flag(r.RandomFully, "--random-fully")
	w.flag(r.Persistent, "--persistent")
}

func (r NATRange) writePorts(w *words) {
	if r.HasPorts() {
		w.bare("--to-ports", r.portText())
	}
	r.writeFlags(w)
}

// DNAT is "-j DNAT".
type DNAT struct{ To NATRange }

var _ = addTarget(&target{
	name: "DNAT", table: "nat", chains: []string{"PREROUTING", "OUTPUT"},
	shapes:  map[string]shape{"--to-destination": one, "--random": flag, "--random-fully": flag, "--persistent": flag},
	phrases: map[string]phrase{"DNAT": natPhrase("--to-destination")},
	build:   func(s *section) Target { return DNAT{s.natRange("--to-destination")} },
})

func (DNAT) name() string { return "DNAT" }
func (t DNAT) write(w *words) {
	w.bare("--to-destination", t.To.String())
	t.To.writeFlags(w)
}

// SNAT is "-j SNAT".
type SNAT struct{ To NATRange }

var _ = addTarget(&target{
	name: "SNAT", table: "nat", chains: []string{"POSTROUTING", "INPUT"},
	shapes:  map[string]shape{"--to-source": one, "--random": flag, "--random-fully": flag, "--persistent": flag},
	phrases: map[string]phrase{"SNAT": natPhrase("--to-source")},
	build: func(s *section) Target {
		t := SNAT{s.natRange("--to-source")}
		t.To.BasePort = 0 // iptables takes one, but its struct for SNAT has no place for it
		return t
	},
})

func (SNAT) name() string { return "SNAT" }
func (t SNAT) write(w *words) {
	w.bare("--to-source", t.To.String())
	t.To.writeFlags(w)
}

// Masquerade is "-j MASQUERADE": SNAT to the address of the output device. To has no
// addresses.
type Masquerade struct{ To NATRange }

var _ = addTarget(&target{
	name: "MASQUERADE", table: "nat", chains: []string{"POSTROUTING"},
	shapes:  map[string]shape{"--to-ports": one, "--random": flag, "--random-fully": flag},
	phrases: map[string]phrase{"MASQUERADE": natPortsPhrase("masq", "ports:")},
	build:   func(s *section) Target { return Masquerade{s.natPorts()} },
})

func (Masquerade) name() string     { return "MASQUERADE" }
func (t Masquerade) write(w *words) { t.To.writePorts(w) }

// Redirect is "-j REDIRECT": DNAT to the host itself. To has no addresses.
type Redirect struct{ To NATRange }

var _ = addTarget(&target{
	name: "REDIRECT", table: "nat", chains: []string{"PREROUTING", "OUTPUT"},
	shapes:  map[string]shape{"--to-ports": one, "--random": flag},
	phrases: map[string]phrase{"REDIRECT": natPortsPhrase("redir", "ports")},
	build:   func(s *section) Target { return Redirect{s.natPorts()} },
})

func (Redirect) name() string     { return "REDIRECT" }
func (t Redirect) write(w *words) { t.To.writePorts(w) }

// Netmap is "-j NETMAP": replaces the prefix of the destination address or, at POSTROUTING, of the
// source address.
type Netmap struct{ To netip.Prefix }

var _ = addTarget(&target{
	name: "NETMAP", table: "nat",
	shapes:  map[string]shape{"--to": one},
	phrases: map[string]phrase{"NETMAP": netmapPhrase},
	build: func(s *section) Target {
		o := s.oneOf("--to")
		p, ok := first(s, o, s.moduleNetwork()).Prefix()
		if !ok {
			s.lose("has a mask that is no prefix")
		}
		return Netmap{p}
	},
})

func (Netmap) name() string     { return "NETMAP" }
func (t Netmap) write(w *words) { w.bare("--to", t.To.String()) }

func natPhrase(option string) phrase {
	return func(w *wording, _ bool) bool {
		to, ok := w.behind("to:")
		w.emit(false, option, to)
		return ok && w.natFlags()
	}
}

func (w *wording) natFlags() bool { return w.options("--", natFlagWords) }

var natFlagWords = map[string]shape{"--random": flag, "--random-fully": flag, "--persistent": flag}

func natPortsPhrase(first, second string) phrase {
	return func(w *wording, _ bool) bool {
		return (!w.word(first, second) || w.value("--to-ports")) && w.natFlags()
	}
}

func netmapPhrase(w *wording, _ bool) bool {
	to, ok := w.behind("to:")
	if !ok { // older ones print the network only
		if to, ok = w.next(); !ok || familyOfAddress(to.Text) == FamilyUnknown {
			return false
		}
	}
	w.emit(false, "--to", to)
	return true
}
