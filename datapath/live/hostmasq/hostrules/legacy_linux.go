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
func legacyChains(f decision.Family, chains []*xtables.Chain, sets setName) ([]*rules.Chain, error) {
	var out []*rules.Chain
	made := make(map[*xtables.Chain]*rules.Chain)
	for _, c := range chains {
		if c.Base && c.End.Verdict != xtables.Accept && c.End.Verdict != xtables.Drop {
			return nil, fmt.Errorf("chain %s has no policy", c.Name)
		}
		made[c] = &rules.Chain{Name: c.Name, Drops: c.Base && c.End.Verdict == xtables.Drop}
		out = append(out, made[c])
	}
	for i, c := range chains {
		for _, e := range c.Rules {
			out[i].Rules = append(out[i].Rules, &rules.Rule{Chain: c.Name, Steps: legacySteps(f, e, sets, made)})
		}
	}
	return out, nil
}

func legacySteps(f decision.Family, e xtables.Rule, sets setName, made map[*xtables.Chain]*rules.Chain) []rules.Step {
	p := e.Parts(f)
	steps := genericTests(f, p.Generic)
	for _, x := range p.Matches {
		steps = append(steps, matchOf(f, x, sets))
	}
	kind, known := map[int32]rules.VerdictKind{xtables.Accept: rules.Accept, xtables.Drop: rules.Drop, xtables.Return: rules.Return}[e.Verdict]
	switch {
	case e.Target != xtables.StandardTarget:
		return append(steps, targetOf(f, p.Target))
	case e.To != nil && e.Goto(f):
		kind = rules.Goto
	case e.To != nil:
		kind = rules.Jump
	case e.Verdict >= 0: // on to the next rule
		return steps
	case !known:
		return append(steps, rules.Other{Words: rules.Words(fmt.Sprintf("-j verdict %d", e.Verdict))})
	}
	return append(steps, rules.Verdict{Kind: kind, Chain: made[e.To]})
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
