package netfilter

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/iptables"
)

// whyNot tells in one sentence why a match does not agree with the packet.
func (w *walk) whyNot(m iptables.Match) string {
	p := &w.packet
	switch m := m.(type) {
	case iptables.Source:
		return inNetwork("the source", p.Source.Addr(), m.Network, m.Negated)
	case iptables.Destination:
		return inNetwork("the destination", p.Destination.Addr(), m.Network, m.Negated)
	case iptables.InInterface:
		return device("comes in by", w.in, m.Interface, m.Negated)
	case iptables.OutInterface:
		return device("goes out by", w.out, m.Interface, m.Negated)
	case iptables.Protocol:
		return isNot("it is "+ProtocolName(p.Protocol), ProtocolName(m.Number), m.Negated)
	case iptables.TCP:
		if text := wrongPort(m.Source, m.Destination, p); text != "" {
			return text
		}
		if f := m.Flags; f.Given && (p.Flags&f.Value.Mask == f.Value.Compare) == f.Negated {
			return fmt.Sprintf("its TCP flags are %s", p.Flags)
		}
	case iptables.UDP:
		if text := wrongPort(m.Source, m.Destination, p); text != "" {
			return text
		}
	case iptables.SCTP:
		if text := wrongPort(m.Source, m.Destination, p); text != "" {
			return text
		}
	case iptables.Conntrack:
		if m.State.Given {
			return isNot("its state is "+w.stateBits().String(), listText(m.State.Value.String()), m.State.Negated)
		}
	case iptables.State:
		return isNot("its state is "+w.tracking.String(), listText(m.States.String()), m.Negated)
	case iptables.Mark:
		return isNot("the mark is "+hex(p.Mark), maskText(m.Mark), m.Negated)
	case iptables.Connmark:
		if w.entry == nil {
			return "it has no connection, so no connection's mark"
		}
		return isNot("the connection's mark is "+hex(w.entry.Mark), maskText(m.Mark), m.Negated)
	case iptables.Addrtype:
		for _, c := range []struct {
			iptables.Condition[iptables.AddrTypes]
			a netip.Addr
		}{{m.Source, p.Source.Addr()}, {m.Destination, p.Destination.Addr()}} {
			if c.Given && w.machine.network.isType(c.a, "", c.Value) == c.Negated {
				verb := "is not"
				if c.Negated {
					verb = "is"
				}
				return fmt.Sprintf("%s %s an address of type %s", c.a, verb, c.Value)
			}
		}
	case iptables.Owner:
		if p.Owner == nil {
			return "no program on this host sent it"
		}
	}
	return describe(m) + " does not match"
}

// why tells in one sentence why a match agrees with the packet; empty if that says little.
func (w *walk) why(m iptables.Match) string {
	p := &w.packet
	switch m := m.(type) {
	case iptables.Source:
		return inNetwork("the source", p.Source.Addr(), m.Network, !m.Negated)
	case iptables.Destination:
		return inNetwork("the destination", p.Destination.Addr(), m.Network, !m.Negated)
	case iptables.InInterface:
		return device("comes in by", w.in, m.Interface, !m.Negated)
	case iptables.OutInterface:
		return device("goes out by", w.out, m.Interface, !m.Negated)
	case iptables.Conntrack:
		if m.State.Given {
			return "its state is " + w.stateBits().String()
		}
	case iptables.State:
		return "its state is " + w.tracking.String()
	case iptables.Mark:
		return "the mark is " + hex(p.Mark)
	}
	return ""
}

func inNetwork(what string, a netip.Addr, n iptables.Network, negated bool) string {
	if p, ok := n.Prefix(); ok && p.IsSingleIP() {
		return isNot(fmt.Sprintf("%s is %s", what, a), p.Addr().String(), negated)
	}
	if negated {
		return fmt.Sprintf("%s %s is within %s", what, a, n)
	}
	return fmt.Sprintf("%s %s is not within %s", what, a, n)
}

// isNot is "the mark is 0x0, not 0x4000". Of a negated match the fact alone is the
// reason.
func isNot(fact, wanted string, negated bool) string {
	if negated {
		return fact
	}
	return fact + ", not " + wanted
}

func device(verb, name string, i iptables.Interface, negated bool) string {
	if name == "" {
		name = "no device"
	}
	return isNot("it "+verb+" "+name, i.String(), negated)
}

func wrongPort(source, destination iptables.Ports, p *Packet) string {
	for _, c := range []struct {
		what string
		iptables.Ports
		a netip.AddrPort
	}{{"source", source, p.Source}, {"destination", destination, p.Destination}} {
		if !portTest(c.Ports, c.a) {
			return isNot(fmt.Sprintf("the %s port is %d", c.what, c.a.Port()), c.Range.String(), c.Negated)
		}
	}
	return ""
}

func listText(list string) string { return strings.ReplaceAll(list, ",", " or ") }

func maskText(v iptables.MaskedValue) string { return strings.ToLower(v.String()) }
