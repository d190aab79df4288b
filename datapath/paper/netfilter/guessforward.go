package netfilter

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// place is where an address is, seen from the host.
type place uint8

const (
	unsettled place = iota
	here            // the host has it
	beyond          // packets to it are forwarded
)

// forwarded is what rules of FORWARD say about the networks that the host forwards for.
type forwarded struct {
	networks  []forwardedNetwork
	addresses map[netip.Addr]ruleAt // the line that names each first
}

type forwardedNetwork struct {
	netip.Prefix
	line   ruleAt
	device string // that the rule names; empty: none
}

// network returns the forwarded network that an address is in; nil: there is none.
func (f *forwarded) network(a netip.Addr) *forwardedNetwork {
	for i := range f.networks {
		if f.networks[i].Contains(a) {
			return &f.networks[i]
		}
	}
	return nil
}

// findForwarded collects the addresses and networks of FORWARD, and of chains that only FORWARD
// leads to. Neither the source nor the destination of a forwarded packet is the host itself. A
// network is behind the host if a rule allows it one end only, whatever the other one is: "-A
// FORWARD -s 10.42.0.0/16 -j ACCEPT".
func (g *guesser) findForwarded() {
	g.forwarded.addresses = make(map[netip.Addr]ruleAt)
	for i := range g.hints {
		h := &g.hints[i]
		if !h.hooks.has(Forward) || h.hooks.has(Input) || h.hooks.has(Prerouting) {
			continue
		}
		for _, p := range []netip.Prefix{h.source, h.destination} {
			if p.IsValid() && p.IsSingleIP() && p.Addr() != netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
				if _, known := g.forwarded.addresses[p.Addr()]; !known {
					g.forwarded.addresses[p.Addr()] = h.at()
				}
			}
		}
		if h.hooks == only(Forward) {
			g.forwardedNetwork(h)
		}
	}
}

// forwardedNetwork adds the network of a rule of FORWARD.
func (g *guesser) forwardedNetwork(h *hint) {
	p, device, towards := h.destination, h.out, h.in
	if !p.IsValid() {
		p, device, towards = h.source, h.in, h.out
	}
	switch {
	case h.bounded, h.refuses(), h.source.IsValid() == h.destination.IsValid(), !ours(p), p.Bits() < 8, p.IsSingleIP(),
		isPodDevice(towards), g.forwarded.network(p.Addr()) != nil:
		return
	}
	g.forwarded.networks = append(g.forwarded.networks, forwardedNetwork{p, h.at(), device})
}

// ours reports whether it is a network that may be behind a host: a private one, or one of IPv6.
func ours(p netip.Prefix) bool {
	return p.IsValid() && !p.Addr().IsMulticast() && !p.Addr().IsLoopback() && (p.Addr().Is6() || private(p.Addr()))
}

// forwardedRoutes adds the routes to the forwarded networks, and to the packet's addresses that
// rules of FORWARD name.
func (g *guesser) forwardedRoutes() {
	for _, n := range g.forwarded.networks {
		if g.leads(n.Prefix) {
			continue
		}
		device := n.device
		if device == "" || g.host.device(device) != nil && device == g.uplink {
			device = g.insideDevice()
		}
		g.toPods(n.Prefix, device, "the network %s is behind %s: %s forwards it", n.Prefix, g.called(device), n.line)
	}
	for _, a := range []netip.Addr{g.packet.Source.Addr(), g.packet.Destination.Addr()} {
		line, named := g.forwarded.addresses[a]
		if !named || !private(a) || g.named()[a] || g.leads(alone(a)) || a == g.packet.Source.Addr() && g.packet.InInterface != "" {
			continue
		}
		device := g.insideDevice()
		g.note(alone(a), "%s is behind %s: %s of FORWARD names it", a, g.called(device), line)
		g.route(alone(a), device)
	}
}

// insideDevice is the device that leads to a forwarded network, if no rule names one for it.
func (g *guesser) insideDevice() string {
	if name, _ := g.podDevice(); name != "" {
		return name
	}
	if name := g.inner(); name != "" {
		return name
	}
	if g.kubernetes() {
		return "cni0"
	}
	return "lan"
}

// called is a device in a sentence: one that the rules name, or a made-up one.
func (g *guesser) called(device string) string {
	if g.host.device(device) != nil || g.names(device) > 0 {
		return device
	}
	return "a device called " + device + " here"
}

// destination is where the packet's destination is, and why; open: the rules leave it open.
func (g *guesser) destination(from, to netip.Addr) (where place, open bool) {
	_, named := g.forwarded.addresses[to]
	switch {
	case g.packet.Local, !to.IsValid(), to.IsMulticast(), to.IsLoopback(), to == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return unsettled, false
	case named, g.near(to):
		return beyond, false
	case g.named()[to]:
		return beyond, g.balanced(to)
	case g.near(from) && !g.placed:
		return beyond, private(to)
	case private(from) && g.endpoint(to) > 0:
		return beyond, true
	case g.gateway && private(from) && !private(to):
		return beyond, false
	case g.leadsAway(), g.addressed(g.uplink), private(from) && g.hidesOthers(private), g.listsForward(): // it has another address there
		return beyond, true
	}
	return here, true
}

// listsForward reports whether the text has chain FORWARD of table filter and not INPUT: what it was asked for is forwarded.
func (g *guesser) listsForward() bool {
	return slices.ContainsFunc(g.dumps, func(d *iptables.Dump) bool {
		t := d.Table("filter")
		return t != nil && d.Listing != nil && t.Chain("FORWARD") != nil && t.Chain("INPUT") == nil
	})
}

// endpoint is the line of a rule of kube-proxy that translates to the address, as to a pod; 0: there is none. Endpoints of API
// servers are addresses of nodes.
func (g *guesser) endpoint(a netip.Addr) ruleAt {
	for i := range g.hints {
		h := &g.hints[i]
		t, ok := h.Target.(iptables.DNAT)
		if ok && strings.HasPrefix(h.Chain, "KUBE-SEP-") && t.To.First == a && private(a) && !slices.ContainsFunc(h.Matches, func(m iptables.Match) bool {
			c, ok := m.(iptables.Comment)
			return ok && strings.HasPrefix(c.Text, "default/kubernetes:")
		}) {
			return h.at()
		}
	}
	return 0
}

// leadsAway reports whether the packet arrives on a device of a router: a given default route
// leads elsewhere, or rules of FORWARD accept what arrives on the device.
func (g *guesser) leadsAway() bool {
	in := g.packet.InInterface
	if in == "" {
		return false
	}
	for _, r := range g.host.Routes {
		if r.Destination.Bits() == 0 && r.Type == Unicast && r.Interface != in && r.Destination.Addr().Is4() == (g.family != iptables.IPv6) {
			return true
		}
	}
	for i := range g.hints {
		h := &g.hints[i]
		if h.hooks.has(Forward) && !h.hooks.has(Input) && !h.refuses() && h.arrives(in) {
			return true
		}
	}
	return false
}

// hidesOthers reports whether rules hide others behind an address of the host of that kind.
func (g *guesser) hidesOthers(kind func(netip.Addr) bool) bool {
	return g.anyHint(func(h *hint) bool {
		a := h.hides(g.uplink)
		return a.IsValid() && kind(a) && !g.near(a)
	})
}
