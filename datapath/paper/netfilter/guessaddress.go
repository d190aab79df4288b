package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// addresses guesses the host's own addresses.
func (g *guesser) addresses() {
	before := newNetwork(g.host, g.family) // made once: there may be many rules
	found := g.addressGiven
	give := func(device string, a netip.Addr, format string, args ...any) {
		if before.isLocal(a) || g.given.leads(alone(a)) { // a neighbour, or behind a given route
			return
		}
		before.local[a] = device
		g.host.AddAddress(device, alone(a))
		g.note(alone(a), format, args...)
	}
	add := func(a netip.Addr, format string, args ...any) {
		found = found || !before.isLocal(a) && !a.IsLinkLocalUnicast() // the kernel masquerades with no such address
		give(g.uplink, a, format, args...)
	}
	near := func(a netip.Addr) bool {
		return g.pods.IsValid() && g.pods.Contains(a) || before.leads(alone(a)) || g.forwarded.network(a) != nil
	}
	p := g.packet
	from, to := p.Source.Addr(), p.Destination.Addr()
	if p.Local && from.IsValid() && !from.IsUnspecified() && !from.IsLoopback() {
		add(from, "%s is an address of this host, because the packet originates here", from)
	}
	if !before.isLocal(to) {
		g.settleDestination(from, to, add)
	}
	for i := range g.hints {
		h := &g.hints[i]
		for _, a := range []netip.Addr{h.hides(g.uplink), h.proxied()} {
			if a.IsValid() && !near(a) {
				add(a, "%s is an address of this host: see %s", a, h.at())
			}
		}
		if a, ok := h.wanted(); ok && h.table == "nat" && h.hooks.has(Prerouting) && (h.targets("DNAT") && !h.intercepts(a) || forNodePorts(h.Rule) && !a.IsLoopback()) {
			add(a, "%s is an address of this host: see %s", a, h.at())
		}
		for a := range h.nodePorts() {
			add(a, "%s is an address of this host: see %s", a, h.at())
		}
	}
	for i := range g.hints {
		h := &g.hints[i]
		a, ok := h.wanted()
		if from := h.source; h.in == loopbackName && from.IsValid() && from.IsSingleIP() {
			a, ok = from.Addr(), true
		} else if from, untracked := h.untracked(); untracked {
			a, ok = from, true
		} else if h.hooks != only(Input) {
			continue
		}
		if ok && !near(a) {
			give(loopbackName, a, "%s is an address of this host: see %s", a, h.at())
		}
	}
	if found {
		return
	}
	stand := netip.MustParseAddr("192.0.2.1")
	if g.family == iptables.IPv6 {
		stand = netip.MustParseAddr("2001:db8::1")
	}
	for stand == from || stand == to {
		stand = stand.Next() // the host would take the packet for its own
	}
	add(stand, "%s stands for the host's own address, which the rules do not show", stand)
}

// untracked is the address of this host whose packets the rule keeps from connection tracking as they leave: those of a program
// here, such as NodeLocal DNSCache.
func (h *hint) untracked() (netip.Addr, bool) {
	from := h.source
	if h.hooks != only(Output) || !from.IsValid() || !from.IsSingleIP() {
		return netip.Addr{}, false
	}
	switch t := h.Target.(type) {
	case iptables.Notrack:
		return from.Addr(), true
	case iptables.CT:
		return from.Addr(), t.NoTrack
	}
	return netip.Addr{}, false
}

// proxied is the address of this host to which kube-proxy in userspace mode translates what the host sends, for itself.
func (h *hint) proxied() netip.Addr {
	if t, ok := h.Target.(iptables.DNAT); ok && (h.Chain == "KUBE-PORTALS-HOST" || h.Chain == "KUBE-NODEPORT-HOST") {
		return t.To.First
	}
	return netip.Addr{}
}

const (
	nodePortsChain = "KUBE-NODEPORTS"
	firstNodePort  = 30000 // unless --service-node-port-range changes it; few servers in the internet have one
)

// settleDestination decides whether the packet's destination is an address of the host, for which
// rules give others only a reason where they name it.
func (g *guesser) settleDestination(from, to netip.Addr, add func(a netip.Addr, format string, args ...any)) {
	if g.own(to) && !g.near(to) {
		return // the rule that shows it is named
	}
	where, open := g.destination(from, to)
	if c := g.choice.destination; c != unsettled && open {
		where, open = c, false
	}
	_, forwarded := g.forwarded.addresses[to]
	i := slices.IndexFunc(g.hints, func(h hint) bool { return h.serves(g.packet) })
	maybeNode := i >= 0 && (private(to) || g.hints[i].Chain == nodePortsChain && g.packet.Destination.Port() >= firstNodePort)
	if maybeNode && !g.near(to) && !g.named()[to] && !forwarded && g.choice.destination != beyond {
		add(to, "%s is an address of this host, because %s matches its port %d", to, g.hints[i].at(), g.packet.Destination.Port())
		if g.near(from) || g.packet.Local { // it may also be another host's
			g.last().Claim = fmt.Sprintf("%s is an address of this host", to)
			g.leaveOpen(choice{destination: beyond})
		}
		return
	}
	switch {
	case where == here:
		add(to, "%s is an address of this host, or a packet from %s would not arrive here", to, from)
		g.last().Claim = fmt.Sprintf("%s is an address of this host", to)
		g.leaveOpen(append(g.otherWays(), choice{destination: beyond})...)
	case where == beyond && open && g.balanced(to):
		g.note(alone(to), "%s is no address of this host, but a load balancer's", to)
		g.last().Claim, g.last().Silent = fmt.Sprintf("%s is no address of this host", to), true
		g.leaveOpen(choice{destination: here})
	case where == beyond && open && g.endpoint(to) > 0 && !g.near(from):
		g.note(alone(to), "%s is behind this host, as a pod: see %s", to, g.endpoint(to))
		g.last().Claim = fmt.Sprintf("%s is behind this host", to)
		g.leaveOpen(choice{destination: here})
	case where == beyond && open && g.listsForward():
		g.note(alone(to), "%s is behind this host: the text has chain FORWARD, and not INPUT", to)
		g.last().Claim = fmt.Sprintf("%s is behind this host", to)
		g.leaveOpen(append(g.otherWays(), choice{destination: here})...)
	case where == beyond && open:
		g.note(alone(to), "%s is behind this host, like the destinations of other packets from %s", to, from)
		g.last().Claim, g.last().Silent = fmt.Sprintf("%s is behind this host", to), true
		other := g.otherWays()
		if len(other) > 0 {
			g.last().Text += fmt.Sprintf(": behind %s, the way out", g.uplink)
			g.last().Claim = fmt.Sprintf("%s is behind %s", to, g.uplink)
		}
		g.leaveOpen(append(other, choice{destination: here})...)
	}
}

// balanced reports whether it is the address of a load balancer, by rules of kube-proxy. Some clouds give such an address to
// the nodes, so that packets to it are for the host itself.
func (g *guesser) balanced(a netip.Addr) bool {
	return g.anyHint(func(h *hint) bool {
		to, ok := h.wanted()
		return ok && to == a && h.Chain == servicesChain && slices.ContainsFunc([]string{"KUBE-FW-", "KUBE-XLB-", "KUBE-EXT-"}, func(prefix string) bool {
			return strings.HasPrefix(h.Rule.JumpsTo(), prefix)
		})
	})
}

// otherWays are the devices besides the uplink that may lead to the packet's destination: those that the rules name and whose
// networks are not known.
func (g *guesser) otherWays() (ways []choice) {
	if !private(g.packet.Destination.Addr()) || g.host.allRoutes {
		return nil
	}
	for _, i := range g.host.Interfaces {
		if i.Name != loopbackName && i.Name != g.uplink && !g.addressed(i.Name) && g.names(i.Name) > 0 && !OfOnePod(i.Name) && len(ways) < mostDevices {
			ways = append(ways, choice{destination: beyond, via: i.Name})
		}
	}
	if pods := g.namedPodDevices(); !g.pods.IsValid() && len(pods) > 0 && OfOnePod(pods[0].name) {
		ways = append(ways, choice{destination: beyond, via: pods[0].name})
	}
	return ways
}

// named returns the single addresses that rules match as destinations of others: in the table nat,
// and in KUBE-SERVICES.
func (g *guesser) named() map[netip.Addr]bool {
	if g.services != nil {
		return g.services
	}
	g.services = make(map[netip.Addr]bool)
	for i := range g.hints {
		h := &g.hints[i]
		if a, ok := h.wanted(); ok && (h.table == "nat" && !forNodePorts(h.Rule) || h.Chain == servicesChain) {
			g.services[a] = true
		}
		if h.named == nil || h.table != "nat" || forNodePorts(h.Rule) {
			continue
		}
		for _, p := range h.named.Destinations() {
			if p.IsSingleIP() {
				g.services[p.Addr()] = true
			}
		}
	}
	return g.services
}
