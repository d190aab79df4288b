package hostrules

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/xtables"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// legacyChains returns a table's chains, the built-in ones first, and their rules in order. sets may
// be nil: then matches of ipsets are not named. An error means that the table as a whole is
// malformed.
func legacyChains(t *xtables.Table, sets setName) ([]*rules.Chain, error) {
	chains, err := t.Chains()
	if err != nil {
		return nil, err
	}
	var out []*rules.Chain
	for _, s := range chains {
		if s.Base && s.End.Verdict != xtables.Accept && s.End.Verdict != xtables.Drop {
			return nil, fmt.Errorf("chain %s has no policy", s.Name)
		}
		out = append(out, &rules.Chain{Name: s.Name, Drops: s.Base && s.End.Verdict == xtables.Drop})
	}
	for i, s := range chains {
		for n, e := range s.Rules {
			r, err := legacyRule(t.Family, e, sets, out)
			if err != nil {
				return nil, fmt.Errorf("chain %s, rule %d: %w", s.Name, n+1, err)
			}
			r.Chain = s.Name
			out[i].Rules = append(out[i].Rules, r)
		}
	}
	return out, nil
}

func legacyRule(f decision.Family, e xtables.Rule, sets setName, chains []*rules.Chain) (*rules.Rule, error) {
	p := e.Parts(f)
	r := &rules.Rule{Steps: genericTests(f, p.Generic)}
	for _, x := range p.Matches {
		r.Steps = append(r.Steps, matchOf(f, x, sets))
	}
	if e.Target != xtables.StandardTarget {
		r.Steps = append(r.Steps, targetOf(f, p.Target))
		return r, nil
	}
	chain, err := e.To()
	if err != nil {
		return nil, err
	}
	_, jumps := e.Jump()
	v := rules.Verdict{Chain: chainNamed(chains, chain)}
	kind, known := map[int32]rules.VerdictKind{xtables.Accept: rules.Accept, xtables.Drop: rules.Drop, xtables.Return: rules.Return}[e.Verdict]
	switch {
	case chain != "" && e.Goto(f):
		v.Kind = rules.Goto
	case chain != "":
		v.Kind = rules.Jump
	case jumps: // on to the next rule
		return r, nil
	case known:
		v.Kind = kind
	default:
		r.Steps = append(r.Steps, rules.Other{Words: rules.Words(fmt.Sprintf("-j verdict %d", e.Verdict))})
		return r, nil
	}
	r.Steps = append(r.Steps, v)
	return r, nil
}

// genericTests reads struct ipt_ip or ip6t_ip6, in the order of iptables-save.
func genericTests(f decision.Family, raw []byte) []rules.Step {
	const inInverted, outInverted, sourceInverted, destinationInverted, fragmentInverted, protocolInverted = 1, 2, 8, 16, 32, 64
	// The size of an address, the places of devices and protocol, and the invflags.
	size, devices, protocol, inverted := 4, 16, 80, raw[83]
	if f == decision.IPv6 {
		size, devices, protocol, inverted = 16, 64, 128, raw[132]
	}
	var steps []rules.Step
	network := func(i int, negated bool) {
		a, mask := raw[i*size:][:size], raw[(i+2)*size:][:size]
		if len(bytes.Trim(mask, "\x00")) > 0 || len(bytes.Trim(a, "\x00")) > 0 || negated {
			v := rules.Masked{Of: rules.AddressField(f == decision.IPv6, i == 0), Mask: mask}
			steps = append(steps, compare(v, negated, rules.Exactly(a)))
		}
	}
	network(0, inverted&sourceInverted != 0)
	network(1, inverted&destinationInverted != 0)
	device := func(i int, v rules.Meta, option string, negated bool) {
		name, mask := raw[devices+16*i:][:16], raw[devices+16*(i+2):][:16]
		length := len(bytes.TrimRight(mask, "\x00"))
		switch {
		case bytes.Count(mask[:length], []byte{0xff}) < length:
			steps = append(steps, rules.Fixed{Result: rules.Unknown, Words: "-m device …"})
		case length > 0:
			steps = append(steps, compare(v, negated, rules.Exactly(name[:length])))
		case negated: // not any
			steps = append(steps, rules.Fixed{Words: rules.Words("! " + option + " +")})
		}
	}
	device(0, rules.InDevice, "-i", inverted&inInverted != 0)
	device(1, rules.OutDevice, "-o", inverted&outInverted != 0)
	p, counts := binary.NativeEndian.Uint16(raw[protocol:]), true
	if f == decision.IPv6 {
		counts = raw[131]&1 != 0 // IP6T_F_PROTO
		if raw[131]&2 != 0 {     // IP6T_F_TOS, which ip6tables has no option for
			steps = append(steps, rules.Fixed{Result: rules.Unknown, Words: "-m tos …"})
		}
	}
	switch {
	case p == 0 || !counts: // every protocol, negated or not (ip_tables.c, ip_packet_match)
	case p > 255:
		steps = append(steps, rules.Fixed{Words: rules.Words(fmt.Sprintf("-p %d", p))})
	default:
		steps = append(steps, compare(rules.Protocol, inverted&protocolInverted != 0, rules.Exactly([]byte{uint8(p)})))
	}
	if f == decision.IPv4 && raw[82]&1 != 0 { // IPT_F_FRAG, which the first packet is not
		f := rules.Fixed{Result: rules.False, Words: "-f"}
		if inverted&fragmentInverted != 0 {
			f = rules.Fixed{Result: rules.True, Words: "! -f"}
		}
		steps = append(steps, f)
	}
	return steps
}
