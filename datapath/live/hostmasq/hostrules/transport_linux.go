package hostrules

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// transportTest compares bytes of the transport header with intervals: one of them must contain
// the bytes or, if negated, none.
type transportTest struct {
	offset, size int
	mask         []byte
	in           []interval
	negated      bool
	text         string
}

// isPort reports whether it is about a port, of all protocols that have some.
func (c *transportTest) isPort() bool {
	return c.size == 2 && (c.offset == 0 || c.offset == 2) && c.mask == nil
}

// portRanges are the intervals of a port.
func (c *transportTest) portRanges() []iptables.PortRange {
	var list []iptables.PortRange
	for _, in := range c.in {
		list = append(list, portRange(in))
	}
	return list
}

// maxMultiport is how many ports multiport takes; a range counts as two (XT_MULTI_PORTS).
const maxMultiport = 15

func multiportSize(list []iptables.PortRange) int {
	n := 0
	for _, r := range list {
		n++
		if r.First != r.Last {
			n++
		}
	}
	return n
}

// header collects the tests of one packet's transport header, in iptables' terms.
type header struct {
	protocol            uint8
	family              iptables.Family
	source, destination iptables.Ports
	flags               iptables.Condition[iptables.FlagTest]
	icmp                *iptables.ICMPType
	icmpNegated         bool
	plain               bool // source, destination or flags are set
	more                []iptables.Match
}

var anyPort = iptables.Ports{Range: iptables.PortRange{First: 0, Last: 65535}}

// transportMatches returns the matches for tests of the transport header of a protocol; 0:
// unknown.
func transportMatches(f iptables.Family, protocol uint8, tests []*transportTest) []iptables.Match {
	h := header{protocol: protocol, family: f, source: anyPort, destination: anyPort}
	for _, c := range tests {
		if !h.add(c) {
			h.more = append(h.more, unknownMatch("%s", c.text))
		}
	}
	var matches []iptables.Match
	if h.plain {
		switch protocol {
		case unix.IPPROTO_TCP:
			matches = append(matches, iptables.TCP{Source: h.source, Destination: h.destination, Flags: h.flags})
		case unix.IPPROTO_UDP:
			matches = append(matches, iptables.UDP{Source: h.source, Destination: h.destination})
		case unix.IPPROTO_SCTP:
			matches = append(matches, iptables.SCTP{Source: h.source, Destination: h.destination})
		}
	}
	if h.icmp != nil {
		if f == iptables.IPv6 {
			matches = append(matches, iptables.ICMP6{Type: *h.icmp, Negated: h.icmpNegated})
		} else {
			matches = append(matches, iptables.ICMP{Type: *h.icmp, Negated: h.icmpNegated})
		}
	}
	return append(matches, h.more...)
}

// add reports whether the test has a counterpart.
func (h *header) add(c *transportTest) bool {
	icmp := uint8(unix.IPPROTO_ICMP)
	if h.family == iptables.IPv6 {
		icmp = unix.IPPROTO_ICMPV6
	}
	switch h.protocol {
	case unix.IPPROTO_TCP:
		if c.offset == 13 && c.size == 1 {
			return h.addFlags(c)
		}
		return c.isPort() && h.addPort(c)
	case unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		return c.isPort() && h.addPort(c)
	case unix.IPPROTO_UDPLITE, unix.IPPROTO_DCCP:
		return c.isPort() && h.addMultiport(c)
	case icmp:
		return h.addICMP(c)
	}
	return false
}

// addPort takes the first test of each port; others become matches of their own.
func (h *header) addPort(c *transportTest) bool {
	if len(c.in) != 1 {
		return h.addMultiport(c)
	}
	at := &h.source
	if c.offset == 2 {
		at = &h.destination
	}
	if *at != anyPort {
		return h.addMultiport(c)
	}
	*at = iptables.Ports{Range: portRange(c.in[0]), Negated: c.negated}
	h.plain = true
	return true
}

func (h *header) addMultiport(c *transportTest) bool {
	list := c.portRanges()
	if multiportSize(list) > maxMultiport {
		return false
	}
	side := iptables.SourcePorts
	if c.offset == 2 {
		side = iptables.DestinationPorts
	}
	h.more = append(h.more, iptables.Multiport{Side: side, Ports: list, Negated: c.negated})
	return true
}

func (h *header) addFlags(c *transportTest) bool {
	if h.flags.Given || len(c.in) != 1 || !c.in[0].single() {
		return false
	}
	test, negated := iptables.FlagTest{Mask: 0xff, Compare: iptables.TCPFlags(c.in[0].first[0])}, c.negated
	if c.mask != nil {
		test.Mask = iptables.TCPFlags(c.mask[0])
	}
	if negated && test.Compare == 0 && test.Mask&(test.Mask-1) == 0 {
		test.Compare, negated = test.Mask, false // one flag that is not unset is set
	}
	h.flags = iptables.Condition[iptables.FlagTest]{Given: true, Negated: negated, Value: test}
	h.plain = true
	return true
}

// addICMP takes the type, the type and the code together, or the code behind the type.
func (h *header) addICMP(c *transportTest) bool {
	if c.mask != nil || len(c.in) != 1 || !c.in[0].single() {
		return false
	}
	v := c.in[0].first
	code := func(n uint8) iptables.Condition[uint8] { return iptables.Condition[uint8]{Given: true, Value: n} }
	switch {
	case c.offset == 0 && c.size <= 2 && h.icmp == nil:
		h.icmp, h.icmpNegated = &iptables.ICMPType{Type: v[0]}, c.negated
		if c.size == 2 {
			h.icmp.Code = code(v[1])
		}
	case c.offset == 1 && c.size == 1 && h.icmp != nil && !h.icmp.Code.Given && !h.icmpNegated && !c.negated:
		h.icmp.Code = code(v[0])
	default:
		return false
	}
	// iptables takes type 255 for every type.
	return h.icmp.Type != 255 || h.family == iptables.IPv6
}

// resolve returns a rule's matches, in the order of iptables-save: the generic ones first, and the
// tests of the transport header as one match in the place of the first of them.
func resolve(f iptables.Family, conditions []condition) []iptables.Match {
	var protocol uint8
	var tests []*transportTest
	for _, c := range conditions {
		if p, ok := c.match.(iptables.Protocol); ok && !p.Negated && c.transport == nil {
			protocol = p.Number
		}
		if c.transport != nil {
			tests = append(tests, c.transport)
		}
	}
	var matches []iptables.Match
	late := false // a match that counts comes before a generic one
	counting := false
	for _, c := range conditions {
		switch {
		case c.transport == nil:
			if slices.ContainsFunc(matches, func(m iptables.Match) bool { return sameGeneric(m, c.match) }) {
				continue
			}
			matches = append(matches, c.match)
			late = late || counting && c.match.Module() == ""
			counting = counting || counts(c.match)
		case tests != nil:
			matches = append(matches, transportMatches(f, protocol, tests)...)
			tests = nil
		}
	}
	slices.SortStableFunc(matches, func(a, b iptables.Match) int { return rank(a) - rank(b) })
	if late {
		matches = append(matches, unknownMatch("a limit before other matches"))
	}
	return matches
}

// sameGeneric reports whether two generic matches are the same.
func sameGeneric(a, b iptables.Match) bool { return a.Module() == "" && b.Module() == "" && a == b }

// counts reports whether the number of evaluations of a match matters.
func counts(m iptables.Match) bool {
	switch m := m.(type) {
	case iptables.Limit, iptables.Recent:
		return true
	case iptables.Statistic:
		return true
	case iptables.UnknownMatch:
		return m.Match != nftWord
	}
	return false
}

// rank is the place of a generic match in the text of iptables-save.
func rank(m iptables.Match) int {
	switch m.(type) {
	case iptables.Source:
		return 0
	case iptables.Destination:
		return 1
	case iptables.InInterface:
		return 2
	case iptables.OutInterface:
		return 3
	case iptables.Protocol:
		return 4
	case iptables.Fragment:
		return 5
	}
	return 6
}

// nftWord replaces a module's or target's name.
const nftWord = "nft"

// unknownMatch is a match that names an expression without a counterpart.
func unknownMatch(format string, args ...any) iptables.Match {
	return iptables.UnknownMatch{Match: nftWord, Args: []iptables.Token{iptables.Text(fmt.Sprintf(format, args...))}}
}

// unknownTarget is a target that names an expression without a counterpart.
func unknownTarget(format string, args ...any) iptables.Target {
	return iptables.UnknownTarget{Target: nftWord, Args: []iptables.Token{iptables.Text(fmt.Sprintf(format, args...))}}
}
