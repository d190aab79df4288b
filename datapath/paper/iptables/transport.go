package iptables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Ports is a test of one port. Without the option it is the test that every port passes: 0 to
// 65535, not negated (libxt_tcp.c, tcp_init).
type Ports struct {
	Range   PortRange
	Negated bool
}

var portShapes = map[string]shape{
	"--sport": notOne, "--source-port": notOne.named("--sport"),
	"--dport": notOne, "--destination-port": notOne.named("--dport"),
}

// with adds another module's options to a module's.
func with(shapes map[string]shape, more map[string]shape) map[string]shape {
	all := make(map[string]shape, len(shapes)+len(more))
	for name, s := range shapes {
		all[name] = s
	}
	for name, s := range more {
		all[name] = s
	}
	return all
}

func (s *section) ports(name string, k kind[PortRange]) Ports {
	o, ok := s.find(name)
	if !ok {
		return Ports{Range: anyPort}
	}
	return Ports{value(s, o.values[0], k), o.negated}
}

func (p Ports) write(w *words, name string) {
	if p.Negated || p.Range != anyPort {
		w.option(p.Negated, name, p.Range.String())
	}
}

// test tests a port.
func (p Ports) test(c *Context, source bool) Truth {
	if p.Range == anyPort && !p.Negated {
		return True
	}
	return c.port(source).inPorts(p.Range, p.Negated)
}

// matchPorts tests both ports of a packet.
func matchPorts(source, destination Ports, c *Context) Truth {
	return source.test(c, true).And(destination.test(c, false))
}

// wrongPort is why matchPorts is false; empty if it is not.
func wrongPort(source, destination Ports, c *Context) string {
	p := &c.Packet
	what, wrong, port := "source", source, p.Source.Port()
	if source.test(c, true) == True {
		what, wrong, port = "destination", destination, p.Destination.Port()
		if destination.test(c, false) == True {
			return ""
		}
	}
	return isNot(fmt.Sprintf("the %s port is %d", what, port), wrong.Range.String(), wrong.Negated)
}

// TCP is "-m tcp". The kernel drops a packet with a truncated header, and does not match later
// fragments (xt_tcpudp.c, tcp_mt).
type TCP struct {
	Source, Destination Ports
	// Option is the number of a TCP option that must be there.
	Option Condition[uint8]
	// Flags are compared with Flags.Compare among Flags.Mask.
	Flags Condition[FlagTest]
}

// FlagTest is true where flags&Mask == Compare.
type FlagTest struct{ Mask, Compare TCPFlags }

// TCPFlags are the flags byte of a TCP header.
type TCPFlags uint8

// The flags.
const (
	FIN TCPFlags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	// ECE and CWR are of explicit congestion notification (RFC 3168). iptables has no names for them.
	ECE
	CWR
)

var tcpFlagNames = bitNames{
	{uint32(FIN), "FIN"}, {uint32(SYN), "SYN"}, {uint32(RST), "RST"},
	{uint32(PSH), "PSH"}, {uint32(ACK), "ACK"}, {uint32(URG), "URG"},
}

// String is "SYN,ACK", or "NONE"; without ECE and CWR.
func (f TCPFlags) String() string {
	if f&^(ECE|CWR) == 0 {
		return "NONE"
	}
	return tcpFlagNames.text(uint32(f))
}

// ParseTCPFlags reads a list of flags, like "SYN,ACK", ALL or NONE.
func ParseTCPFlags(text string) (TCPFlags, error) {
	f, ok := someTCPFlags.parse(text)
	if !ok || text == "" {
		return 0, fmt.Errorf("%q is no %s; want %s", text, strings.TrimPrefix(someTCPFlags.what, "a "), someTCPFlags.want)
	}
	return f, nil
}

var tcpFlagSets = append(bitNames{{uint32(FIN | SYN | RST | PSH | ACK | URG), "ALL"}, {0, "NONE"}}, tcpFlagNames...)

var someTCPFlags = kind[TCPFlags]{"a list of TCP flags", "ALL, NONE or " + tcpFlagNames.want(), func(s string) (TCPFlags, bool) {
	set, ok := tcpFlagSets.parse(s)
	return TCPFlags(set), ok
}}

var _ = addMatch(&module{
	name:    "tcp",
	implied: protoTCP,
	shapes: with(portShapes, map[string]shape{
		"--tcp-flags": notTwo, "--syn": notFlag, "--tcp-option": notOne,
	}),
	phrases: map[string]phrase{"tcp": transport("tcp"), "tcpflags:": tcpFlagsPhrase},
	build: func(s *section) Match {
		s.needs(s.name, "-m tcp", protoTCP)
		m := TCP{Source: s.ports("--sport", aPort), Destination: s.ports("--dport", aPort)}
		m.Option = condition(s, "--tcp-option", kind[uint8]{"a TCP option", "1 to 255", func(t string) (uint8, bool) {
			n, ok := number[uint8](t)
			return n, ok && n > 0
		}})
		switch o, ok := s.atMostOne("--tcp-flags", "--syn"); {
		case ok && len(o.values) == 2:
			m.Flags = Condition[FlagTest]{true, o.negated, FlagTest{value(s, o.values[0], someTCPFlags), value(s, o.values[1], someTCPFlags)}}
		case ok:
			m.Flags = Condition[FlagTest]{true, o.negated, FlagTest{FIN | SYN | RST | ACK, SYN}}
		}
		return m
	},
})

func (TCP) module() string { return "tcp" }
func (m TCP) write(w *words) {
	m.Source.write(w, "--sport")
	m.Destination.write(w, "--dport")
	writeCondition(w, "--tcp-option", m.Option, decimal)
	if m.Flags.Given {
		w.option(m.Flags.Negated, "--tcp-flags", m.Flags.Value.Mask.String(), m.Flags.Value.Compare.String())
	}
}

func (m TCP) reads() Facts {
	if m.Option.Given {
		return FactOptions
	}
	return 0
}

// test is tcp_mt (xt_tcpudp.c).
func (m TCP) test(c *Context) Truth {
	if c.Packet.Protocol != protoTCP {
		return False
	}
	return matchPorts(m.Source, m.Destination, c).And(m.testFlags(c)).And(truthOf(!m.Option.fails(slices.Contains(c.Packet.TCPOptions, m.Option.Value))))
}

func (m TCP) testFlags(c *Context) Truth {
	if f := m.Flags; f.Given {
		return c.payload(rules.FlagsField).masked([]byte{byte(f.Value.Mask)}, []byte{byte(f.Value.Compare)}, f.Negated)
	}
	return True
}

func (m TCP) whyNot(c *Context) string {
	text := wrongPort(m.Source, m.Destination, c)
	if text == "" && m.testFlags(c) == False {
		text = fmt.Sprintf("its TCP flags are %s", c.Packet.Flags)
	}
	return text
}

// decimal prints a number.
func decimal[T uint8 | uint16 | uint32 | uint64](n T) string { return fmt.Sprint(n) }

// UDP is "-m udp"; see [TCP] for fragments.
type UDP struct{ Source, Destination Ports }

var _ = addMatch(&module{
	name:    "udp",
	implied: protoUDP,
	shapes:  portShapes,
	phrases: map[string]phrase{"udp": transport("udp")},
	build: func(s *section) Match {
		s.needs(s.name, "-m udp", protoUDP)
		return UDP{s.ports("--sport", aUDPPort), s.ports("--dport", aUDPPort)}
	},
})

func (UDP) module() string { return "udp" }
func (m UDP) write(w *words) {
	m.Source.write(w, "--sport")
	m.Destination.write(w, "--dport")
}

func (m UDP) test(c *Context) Truth    { return matchPorts(m.Source, m.Destination, c) }
func (m UDP) whyNot(c *Context) string { return wrongPort(m.Source, m.Destination, c) }

// Multiport is "-m multiport".
type Multiport struct {
	// Side selects the port that is looked up in the list.
	Side    MultiportSide
	Ports   []PortRange // at most 15, a range counts as two
	Negated bool
}

// MultiportSide is enum xt_multiport_flags (xt_multiport.h).
type MultiportSide uint8

// The sides.
const (
	SourcePorts      MultiportSide = iota // XT_MULTIPORT_SOURCE
	DestinationPorts                      // XT_MULTIPORT_DESTINATION
	EitherPorts                           // XT_MULTIPORT_EITHER
)

func (s MultiportSide) String() string {
	return nameOf([]string{"--sports", "--dports", "--ports"}, s)
}

var portList = kind[[]PortRange]{"a list of ports", "at most 15 ports, a range first:last counts as two", func(s string) ([]PortRange, bool) {
	var list []PortRange
	count := 0
	for word := range strings.SplitSeq(s, ",") {
		count++
		if strings.Contains(word, ":") {
			count++
		}
		r, ok := parsePorts(word, ":")
		if !ok || r.First > r.Last {
			return nil, false
		}
		list = append(list, r)
	}
	return list, count <= 15 // XT_MULTI_PORTS
}}

var _ = addMatch(&module{
	name: "multiport",
	shapes: map[string]shape{
		"--sports": notOne, "--source-ports": notOne.named("--sports"),
		"--dports": notOne, "--destination-ports": notOne.named("--dports"),
		"--ports": notOne,
	},
	phrases: map[string]phrase{"multiport": multiportPhrase},
	build: func(s *section) Match {
		s.needs(s.name, "-m multiport", protoTCP, protoUDP, protoUDPLite, protoSCTP, protoDCCP)
		o := s.oneOf("--sports", "--dports", "--ports")
		m := Multiport{Negated: o.negated, Ports: first(s, o, portList)}
		switch o.name.Text {
		case "--dports":
			m.Side = DestinationPorts
		case "--ports":
			m.Side = EitherPorts
		}
		return m
	},
})

func (Multiport) module() string { return "multiport" }
func (m Multiport) write(w *words) {
	var list []string
	for _, p := range m.Ports {
		list = append(list, p.String())
	}
	w.option(m.Negated, m.Side.String(), strings.Join(list, ","))
}

// test is multiport_mt (xt_multiport.c).
func (m Multiport) test(c *Context) Truth {
	source, destination := c.port(true), c.port(false)
	found := slices.ContainsFunc(m.Ports, func(r PortRange) bool {
		return m.Side != DestinationPorts && source.inPorts(r, false) == True || m.Side != SourcePorts && destination.inPorts(r, false) == True
	})
	return truthOf(found != m.Negated)
}

func (m Multiport) whyNot(c *Context) string {
	var list []string
	for _, r := range m.Ports {
		list = append(list, r.String())
	}
	source, destination := c.Packet.Source.Port(), c.Packet.Destination.Port()
	fact := fmt.Sprintf("the ports are %d and %d", source, destination)
	switch m.Side {
	case SourcePorts:
		fact = fmt.Sprintf("the source port is %d", source)
	case DestinationPorts:
		fact = fmt.Sprintf("the destination port is %d", destination)
	}
	return isNot(fact, strings.Join(list, " or "), m.Negated)
}

// transport reads "tcp spt:1 dpts:!2:3 option=5 flags:!0x17/0x02" and the like.
func transport(module string) phrase {
	return func(w *wording, negated bool) bool {
		w.load(module)
		for {
			if t, ok := firstBehind(w, "spts:", "spt:"); ok {
				w.ports("--sport", t)
			} else if t, ok := firstBehind(w, "dpts:", "dpt:"); ok {
				w.ports("--dport", t)
			} else if t, ok := w.behind("option="); ok {
				not, number := cutNot(t)
				w.emit(not, "--tcp-option", number)
			} else if !w.try(w.tcpFlags) && (module != "sctp" || !w.try(w.chunks)) {
				return !negated
			}
		}
	}
}

// ports emits a test of ports, which may be names.
func (w *wording) ports(option string, t Token) {
	negated, t := cutNot(t)
	if numbers, ok := w.portNumbers(t, ":"); ok {
		w.emit(negated, option, numbers)
		return
	}
	w.unknownName("port name "+t.Text, negated, Token{Text: strings.TrimLeft(option, "-"), Column: t.Column})
}

// portNumbers replaces the names in "http:https" or "http,8000:8080".
func (w *wording) portNumbers(t Token, separators string) (Token, bool) {
	text, all := "", true
	for rest := t.Text; ; {
		end := strings.IndexAny(rest, separators)
		name := rest
		if end >= 0 {
			name = rest[:end]
		}
		n, ok := parseService(name)
		all = all && ok
		w.names = w.names || n != name || !ok
		text += n
		if end < 0 {
			return Token{Text: text, Column: t.Column}, all
		}
		text += rest[end : end+1]
		rest = rest[end+1:]
	}
}

// tcpFlags reads "flags:0x17/0x02" or "tcpflags: FIN,SYN/SYN".
func (w *wording) tcpFlags() bool {
	t, ok := w.behind("flags:")
	if !ok {
		if !w.word("tcpflags:") {
			return false
		}
		t, _ = w.next()
	}
	return w.flags(t)
}

// flags emits "0x17/0x02" or "FIN,SYN/SYN".
func (w *wording) flags(t Token) bool {
	negated, t := cutNot(t)
	mask, compare, two := strings.Cut(t.Text, "/")
	values := []Token{{Text: mask, Column: t.Column}, {Text: compare, Column: t.Column + len(mask) + 1}}
	for i := range values {
		if strings.HasPrefix(values[i].Text, "0x") {
			n, ok := number[uint8](values[i].Text)
			if !ok || n >= 1<<6 { // ECE and CWR have no names
				return false
			}
			values[i].Text = TCPFlags(n).String()
		} else {
			w.names = true
		}
	}
	w.emit(negated, "--tcp-flags", values...)
	return two && mask != "" && compare != ""
}

// tcpFlagsPhrase reads flags without "tcp" in front.
func tcpFlagsPhrase(w *wording, negated bool) bool {
	w.load("tcp")
	t, ok := w.next()
	return ok && !negated && w.flags(t)
}

func multiportPhrase(w *wording, negated bool) bool {
	side, ok1 := w.next()
	not, list, ok2 := w.negatable()
	if !ok1 || !ok2 || negated || side.Text != "sports" && side.Text != "dports" && side.Text != "ports" {
		return false
	}
	numbers, known := w.portNumbers(list, ",:")
	if !known {
		w.unknownName("port names "+list.Text, not, side)
		return true
	}
	w.load("multiport")
	w.emit(not, "--"+side.Text, numbers)
	return true
}
