package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// whyNot returns one sentence about why a match fails.
func (w *walk) whyNot(m iptables.Match) string {
	p := &w.packet
	switch m := m.(type) {
	case iptables.Source:
		return inNetwork("the source", p.Source.Addr(), m.Network, m.Negated)
	case iptables.Destination:
		return inNetwork("the destination", p.Destination.Addr(), m.Network, m.Negated)
	case iptables.InInterface:
		return device("arrives on", w.in, m.Interface, m.Negated)
	case iptables.OutInterface:
		return device("leaves on", w.out, m.Interface, m.Negated)
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
		if c := m.UID; c.Given && c.Value.Contains(p.Owner.UID) == c.Negated {
			return isNot(fmt.Sprintf("its user is %d", p.Owner.UID), idText(c.Value), c.Negated)
		}
		if c := m.GID; c.Given {
			return isNot(fmt.Sprintf("its group is %d", p.Owner.GID), idText(c.Value), c.Negated)
		}
	case iptables.Multiport:
		return wrongPorts(m, p)
	case iptables.Recent:
		return w.notRecent(m)
	case iptables.SetMatch:
		verb := "is not"
		if m.Negated {
			verb = "is"
		}
		return fmt.Sprintf("%s %s in the ipset %s", w.asElement(m), verb, m.Set)
	case iptables.TTL:
		return w.notHops(m)
	case iptables.HopLimit:
		return w.notHops(iptables.TTL(m))
	case iptables.TOS:
		return isNot(fmt.Sprintf("the type of service is %#02x", p.TOS), fmt.Sprintf("%#02x/%#02x", m.Value, m.Mask), m.Negated)
	case iptables.DSCP:
		return isNot(fmt.Sprintf("the DSCP is %#02x", p.TOS>>2), fmt.Sprintf("%#02x", m.DSCP), m.Negated)
	case iptables.SegmentSize:
		if !slices.Contains(p.TCPOptions, tcpOptionMSS) {
			return "it does not offer a segment size"
		}
		return isNot(fmt.Sprintf("the segment size that it offers is %d", p.MSS), m.Range.String(), m.Negated)
	case iptables.RoutingHeader:
		return "it has no routing header"
	case iptables.IPsec:
		return "IPsec is not applied to it"
	case iptables.Quota:
		if m.Negated {
			return fmt.Sprintf("the quota of %d bytes is not used up", m.Bytes)
		}
		return fmt.Sprintf("the quota of %d bytes is used up", m.Bytes)
	case iptables.Connlimit:
		if m.UpTo {
			return fmt.Sprintf("there are more than %d connections", m.Limit)
		}
		return fmt.Sprintf("there are no more than %d connections", m.Limit)
	case iptables.Connbytes:
		if w.entry == nil || !w.tracked {
			return "it has no connection that is counted"
		}
		return isNot(connbytesText(m, w.entry.amount(m)), amountText(m.Count), m.Negated)
	case iptables.BPF:
		return "the program returns 0"
	case iptables.CPU:
		return isNot(fmt.Sprintf("processor %d handles it", p.CPU), strconv.FormatUint(uint64(m.Number), 10), m.Negated)
	case iptables.Helper:
		return "its connection is not related to another one"
	case iptables.Time:
		return "it is " + w.now().Format("Monday, 2006-01-02 15:04:05 UTC")
	case iptables.String:
		if m.Negated {
			return fmt.Sprintf("%q is in the packet", m.Pattern)
		}
		return fmt.Sprintf("%q is not in the packet", m.Pattern)
	case iptables.MAC:
		if !w.frame() {
			return "it came in no Ethernet frame"
		}
		return isNot("the frame's source is "+p.MAC.String(), m.Address.String(), m.Negated)
	case iptables.Length:
		return isNot(fmt.Sprintf("the packet has %d bytes", p.Length), m.Range.String(), m.Negated)
	case iptables.Socket:
		return "no known socket matches it"
	case iptables.Rpfilter:
		if r := w.machine.network.route(p.Source.Addr()); r.Type == Unicast {
			back := fmt.Sprintf("the route back to %s is by %s", p.Source.Addr(), r.Interface)
			if m.Invert {
				return back + ", as it came"
			}
			return back + ", not by " + w.in
		}
	}
	return describe(m) + " does not match"
}

// notRecent returns why -m recent does not match.
func (w *walk) notRecent(m iptables.Recent) string {
	a := w.recentAddress(m)
	if m.Negated {
		return fmt.Sprintf("%s is on the list %s", a, m.Name)
	}
	for _, e := range w.state.recent[m.Name] {
		if e.addr != a {
			continue
		}
		text := fmt.Sprintf("%s is on the list %s, but was not seen", a, m.Name)
		if m.HitCount > 1 {
			text += fmt.Sprintf(" %d times", m.HitCount)
		}
		if m.Seconds > 0 {
			text += fmt.Sprintf(" in the last %d s", m.Seconds)
		}
		return text
	}
	return fmt.Sprintf("%s is not on the list %s", a, m.Name)
}

// asElement is the element that -m set looks up.
func (w *walk) asElement(m iptables.SetMatch) string {
	var parts []string
	for i, d := range m.Directions {
		what := w.packet.Source
		if d == iptables.SetDestination {
			what = w.packet.Destination
		}
		if i == 0 && len(m.Directions) == 1 {
			return what.Addr().String()
		}
		parts = append(parts, d.String())
	}
	return fmt.Sprintf("%s -> %s, as %s,", w.packet.SourceText(), w.packet.DestinationText(), strings.Join(parts, ","))
}

// wrongPorts returns why -m multiport does not match.
func wrongPorts(m iptables.Multiport, p *Packet) string {
	var list []string
	for _, r := range m.Ports {
		list = append(list, r.String())
	}
	wanted := strings.Join(list, " or ")
	switch m.Side {
	case iptables.SourcePorts:
		return isNot(fmt.Sprintf("the source port is %d", p.Source.Port()), wanted, m.Negated)
	case iptables.DestinationPorts:
		return isNot(fmt.Sprintf("the destination port is %d", p.Destination.Port()), wanted, m.Negated)
	}
	return isNot(fmt.Sprintf("the ports are %d and %d", p.Source.Port(), p.Destination.Port()), wanted, m.Negated)
}

// idText is a range of users or groups.
func idText(r iptables.Range[uint32]) string {
	if r.First == r.Last {
		return strconv.FormatUint(uint64(r.First), 10)
	}
	return fmt.Sprintf("%d to %d", r.First, r.Last)
}

// why returns one sentence about why a match succeeds; empty if that is obvious.
func (w *walk) why(m iptables.Match) string {
	p := &w.packet
	switch m := m.(type) {
	case iptables.Source:
		return inNetwork("the source", p.Source.Addr(), m.Network, !m.Negated)
	case iptables.Destination:
		return inNetwork("the destination", p.Destination.Addr(), m.Network, !m.Negated)
	case iptables.InInterface:
		return device("arrives on", w.in, m.Interface, !m.Negated)
	case iptables.OutInterface:
		return device("leaves on", w.out, m.Interface, !m.Negated)
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

// isNot is "the mark is 0x0, not 0x4000". For a negated match the fact alone is the reason.
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

// notHops returns why -m ttl or -m hl does not match.
func (w *walk) notHops(m iptables.TTL) string {
	name := "the time to live is"
	if !w.packet.is4() {
		name = "the hop limit is"
	}
	fact := fmt.Sprintf("%s %d", name, w.packet.TTL)
	switch m.Compare {
	case iptables.CompareEqual:
		return fmt.Sprintf("%s, not %d", fact, m.Value)
	case iptables.CompareLess:
		return fmt.Sprintf("%s, not less than %d", fact, m.Value)
	case iptables.CompareGreater:
		return fmt.Sprintf("%s, not more than %d", fact, m.Value)
	}
	return fact
}

// connbytesText is "packets of its connection in both directions: 3".
func connbytesText(m iptables.Connbytes, n uint64) string {
	direction := [...]string{"in its own direction", "in the reply direction", "in both directions"}[m.Direction]
	switch m.Unit {
	case iptables.ConnbytesPackets:
		return fmt.Sprintf("packets of its connection %s: %d", direction, n)
	case iptables.ConnbytesBytes:
		return fmt.Sprintf("bytes of its connection %s: %d", direction, n)
	}
	return fmt.Sprintf("bytes per packet of its connection %s: %d", direction, n)
}

func amountText(r iptables.Range[uint64]) string {
	if r.Last == ^uint64(0) {
		return fmt.Sprintf("%d or more", r.First)
	}
	return fmt.Sprintf("%d to %d", r.First, r.Last)
}
