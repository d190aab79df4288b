package hostrules

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// legacyRules returns a table as iptables-save would: its chains, the built-in ones first, and
// their rules in order, without counters. set may be nil: then matches of ipsets are unknown ones.
// A rule that cannot be decoded has unknown matches or an unknown target; an error means that the
// table as a whole is malformed.
func legacyRules(t *xtables.Table, set iptables.SetName) (*iptables.Table, error) {
	chains, err := t.Chains()
	if err != nil {
		return nil, err
	}
	out := &iptables.Table{Name: t.Name}
	for _, s := range chains {
		c := &iptables.Chain{Name: s.Name}
		if s.Base {
			policy, ok := map[int32]iptables.Policy{xtables.Accept: iptables.PolicyAccept, xtables.Drop: iptables.PolicyDrop}[s.End.Verdict]
			if !ok {
				return nil, fmt.Errorf("chain %s has no policy", s.Name)
			}
			c.Policy = policy
		}
		out.Chains = append(out.Chains, c)
		for i, e := range s.Rules {
			r, err := legacyRule(t.Family, e, set)
			if err != nil {
				return nil, fmt.Errorf("chain %s, rule %d: %w", s.Name, i+1, err)
			}
			r.Chain = s.Name
			out.Rules = append(out.Rules, r)
		}
	}
	return out, nil
}

func legacyRule(f iptables.Family, e xtables.Rule, set iptables.SetName) (*iptables.Rule, error) {
	p := e.Parts(f)
	r := &iptables.Rule{Matches: genericMatches(f, p.Generic)}
	for _, x := range p.Matches {
		r.Matches = append(r.Matches, iptables.DecodeMatch(f, iptables.Extension(x), set))
	}
	if e.Target != xtables.StandardTarget {
		r.Target = iptables.DecodeTarget(f, iptables.Extension(p.Target))
	} else if err := setVerdict(r, f, e); err != nil {
		return nil, err
	}
	r.Args = iptables.Tokens(r.Matches, r.Target)
	return r, nil
}

// setVerdict sets the target; it stays nil if the rule only counts.
func setVerdict(r *iptables.Rule, f iptables.Family, e xtables.Rule) error {
	chain, err := e.To()
	_, jumps := e.Jump()
	switch {
	case err != nil:
		return err
	case chain != "" && e.Goto(f):
		r.Target = iptables.Goto{Chain: chain}
	case chain != "":
		r.Target = iptables.Jump{Chain: chain}
	case jumps: // on to the next rule
	case e.Verdict == xtables.Accept:
		r.Target = iptables.Accept
	case e.Verdict == xtables.Drop:
		r.Target = iptables.Drop
	case e.Verdict == xtables.Return:
		r.Target = iptables.Return
	default:
		r.Target = iptables.UnknownTarget{Target: "verdict", Args: []iptables.Token{iptables.Word(fmt.Sprint(e.Verdict))}}
	}
	return nil
}

// genericMatches reads struct ipt_ip or ip6t_ip6, in the order of iptables-save.
func genericMatches(f iptables.Family, raw []byte) []iptables.Match {
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
		n := iptables.MaskedNetwork(a, mask)
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
		d, ok := iptables.KernelInterface(raw[devices+16*i:][:16], raw[devices+16*(i+2):][:16])
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
	p, counts := binary.NativeEndian.Uint16(raw[protocol:]), true
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
