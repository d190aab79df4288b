package xtables

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// Verdicts of a standard target: -NF_... - 1, and XT_RETURN.
const (
	verdictDrop   = -1
	verdictAccept = -2
	verdictReturn = -5
)

// Rules gives the table as iptables-save would: its chains, the built-in ones first, and
// their rules in order, without counters. set may be nil: then matches of ipsets are unknown
// ones. A rule that cannot be decoded has unknown matches or an unknown target; an error
// says that the table as a whole makes no sense.
func (t *Table) Rules(set SetName) (*iptables.Table, error) {
	spans, err := t.Spans()
	if err != nil {
		return nil, err
	}
	starts := t.Starts(spans)
	out := &iptables.Table{Name: t.Name}
	for _, s := range spans {
		if s.First >= s.End {
			return nil, fmt.Errorf("chain %s has no end", s.Name)
		}
		c := &iptables.Chain{Name: s.Name}
		if s.Base {
			policy, ok := map[int32]iptables.Policy{verdictAccept: iptables.PolicyAccept, verdictDrop: iptables.PolicyDrop}[t.Entries[s.End-1].Verdict]
			if !ok {
				return nil, fmt.Errorf("chain %s has no policy", s.Name)
			}
			c.Policy = policy
		}
		out.Chains = append(out.Chains, c)
		for i := s.First; i < s.End-1; i++ {
			r, err := t.rule(&t.Entries[i], starts, set)
			if err != nil {
				return nil, fmt.Errorf("chain %s, rule %d: %w", s.Name, i-s.First+1, err)
			}
			r.Chain = s.Name
			out.Rules = append(out.Rules, r)
		}
	}
	return out, nil
}

func (t *Table) rule(e *Entry, starts map[uint32]string, set SetName) (*iptables.Rule, error) {
	l := layoutOf(t.Family)
	r := &iptables.Rule{Matches: generic(t.Family, e.Raw)}
	target := int(byteOrder.Uint16(e.Raw[l.targetOffset:]))
	for rest := e.Raw[l.header:target]; len(rest) > 0; {
		x, size, ok := extension(rest)
		if !ok {
			r.Matches = append(r.Matches, iptables.UnknownMatch{Match: "malformed"})
			break
		}
		r.Matches = append(r.Matches, DecodeMatch(t.Family, x, set))
		rest = rest[size:]
	}
	var err error
	if r.Target, err = t.target(e, e.Raw[target:], starts); err != nil {
		return nil, err
	}
	r.Args = iptables.Tokens(r.Matches, r.Target)
	return r, nil
}

// extension reads a struct xt_entry_match or xt_entry_target.
func extension(data []byte) (x Extension, size int, ok bool) {
	if len(data) < extensionHeader {
		return x, 0, false
	}
	size = int(byteOrder.Uint16(data))
	if size < extensionHeader || size > len(data) {
		return x, 0, false
	}
	return Extension{cString(data[2 : 2+29]), data[31], data[extensionHeader:size]}, size, true
}

// target gives what the rule does; nil if it only counts.
func (t *Table) target(e *Entry, data []byte, starts map[uint32]string) (iptables.Target, error) {
	if e.Target == StandardTarget {
		to, jumps := e.Jump()
		switch {
		case jumps && to == e.Offset+uint32(len(e.Raw)):
			return nil, nil
		case jumps:
			name, ok := starts[to]
			if !ok {
				return nil, fmt.Errorf("it jumps to %d, where no chain begins", to)
			}
			if isGoto(t.Family, e.Raw) {
				return iptables.Goto{Chain: name}, nil
			}
			return iptables.Jump{Chain: name}, nil
		}
		switch e.Verdict {
		case verdictAccept:
			return iptables.Accept, nil
		case verdictDrop:
			return iptables.Drop, nil
		case verdictReturn:
			return iptables.Return, nil
		}
		return iptables.UnknownTarget{Target: "verdict", Args: []iptables.Token{iptables.Word(fmt.Sprint(e.Verdict))}}, nil
	}
	x, _, ok := extension(data)
	if !ok {
		return iptables.UnknownTarget{Target: e.Target, Args: []iptables.Token{iptables.Text("malformed")}}, nil
	}
	return DecodeTarget(t.Family, x), nil
}

// isGoto reads the flag IPT_F_GOTO or IP6T_F_GOTO.
func isGoto(f iptables.Family, raw []byte) bool {
	if f == iptables.IPv6 {
		return raw[131]&4 != 0
	}
	return raw[82]&2 != 0
}

// generic reads struct ipt_ip or ip6t_ip6, in the order of iptables-save.
func generic(f iptables.Family, raw []byte) []iptables.Match {
	const inInverted, outInverted, sourceInverted, destinationInverted, fragmentInverted, protocolInverted = 1, 2, 8, 16, 32, 64
	// The size of an address, the places of devices and protocol, and the invflags.
	size, devices, protocol, inverted := 4, 16, 80, raw[83]
	addr := func(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }
	if f == iptables.IPv6 {
		size, devices, protocol = 16, 64, 128
		addr = func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }
		inverted = raw[132]
	}
	var matches []iptables.Match
	network := func(i int, bit byte, make func(n iptables.Network, negated bool) iptables.Match) {
		a, mask := addr(raw[i*size:]), addr(raw[(i+2)*size:])
		n := Network(a, mask)
		switch {
		case n.Addr != a: // never true, as the kernel compares it
			matches = append(matches, iptables.UnknownMatch{Match: "address", Args: []iptables.Token{iptables.Text(a.String() + "/" + mask.String())}})
		case !mask.IsUnspecified() || inverted&bit != 0:
			matches = append(matches, make(n, inverted&bit != 0))
		}
	}
	network(0, sourceInverted, func(n iptables.Network, not bool) iptables.Match { return iptables.Source{Network: n, Negated: not} })
	network(1, destinationInverted, func(n iptables.Network, not bool) iptables.Match {
		return iptables.Destination{Network: n, Negated: not}
	})
	name := func(i int, bit byte, make func(d iptables.Interface, negated bool) iptables.Match) {
		d, ok := device(raw[devices+16*i:][:16], raw[devices+16*(i+2):][:16])
		switch {
		case !ok:
			matches = append(matches, iptables.UnknownMatch{Match: "device", Args: []iptables.Token{iptables.Text(d.String())}})
		case d != iptables.Interface{Wildcard: true} || inverted&bit != 0:
			matches = append(matches, make(d, inverted&bit != 0))
		}
	}
	name(0, inInverted, func(d iptables.Interface, not bool) iptables.Match {
		return iptables.InInterface{Interface: d, Negated: not}
	})
	name(1, outInverted, func(d iptables.Interface, not bool) iptables.Match {
		return iptables.OutInterface{Interface: d, Negated: not}
	})
	p, counts := byteOrder.Uint16(raw[protocol:]), true
	if f == iptables.IPv6 {
		counts = raw[131]&1 != 0 // IP6T_F_PROTO
		if raw[131]&2 != 0 {     // IP6T_F_TOS, which ip6tables has no option for
			matches = append(matches, iptables.UnknownMatch{Match: "tos"})
		}
	}
	switch {
	case p == 0 || !counts: // every protocol, negated or not (ip_tables.c, ip_packet_match)
	case p > 255:
		matches = append(matches, iptables.UnknownMatch{Match: "protocol", Args: []iptables.Token{iptables.Word(fmt.Sprint(p))}})
	default:
		matches = append(matches, iptables.Protocol{Number: uint8(p), Negated: inverted&protocolInverted != 0})
	}
	if f == iptables.IPv4 && raw[82]&1 != 0 { // IPT_F_FRAG
		matches = append(matches, iptables.Fragment{Negated: inverted&fragmentInverted != 0})
	}
	return matches
}
