package netfilter

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/sim/iptables"
)

// Guess is an assumption about something that a dump does not show.
type Guess struct {
	Text string // one sentence
	// About, if valid, is the network of the guess: it does not matter for packets without an
	// address in it.
	About netip.Prefix
}

// GuessHost completes a host with what the rules and a packet suggest: interfaces and their
// networks, the location of pods, the host's own addresses, and, if unknown, the packet's input
// device, which it sets in p. It never contradicts or changes given data, and returns another
// Host. p may be nil for many packets, see [Machine.Place].
func GuessHost(dumps []*iptables.Dump, known *Host, p *iptables.Packet) (*Host, []Guess) {
	if p == nil {
		p = &iptables.Packet{Local: true}
	}
	h := *known
	h.Interfaces, h.Routes = slices.Clone(known.Interfaces), slices.Clone(known.Routes)
	g := &guesser{host: &h, packet: p, family: dumps[0].Family, known: len(known.Routes) > 0, hints: hintsOf(dumps), inside: make(map[string]bool)}
	g.guess(len(known.Interfaces) > 0)
	return g.host, g.guesses
}

type guesser struct {
	host    *Host
	packet  *iptables.Packet
	family  iptables.Family
	known   bool // the routes are known
	hints   []hint
	guesses []Guess
	pods    netip.Prefix
	uplink  string
	inside  map[string]bool // devices with a network of their own
	gateway bool            // the rules hide networks behind addresses of the uplink
}

// note records a guess about a network; the zero prefix: about every packet.
func (g *guesser) note(about netip.Prefix, format string, args ...any) {
	g.guesses = append(g.guesses, Guess{fmt.Sprintf(format, args...), about})
}

// alone returns the network with one address.
func alone(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func (g *guesser) guess(addressesKnown bool) {
	if g.host.device(loopbackName) == nil {
		g.host.AddAddress(loopbackName, netip.MustParsePrefix("127.0.0.1/8"))
		g.host.AddAddress(loopbackName, netip.MustParsePrefix("::1/128"))
	}
	if g.kubeProxy() {
		g.host.RouteLocalnet = true // kube-proxy sets it; without it node ports on 127.0.0.1 fail
	}
	g.findPods()
	if !addressesKnown {
		g.bridges()
	}
	if !g.known {
		g.podRoute()
	}
	g.uplink = g.uplinkName()
	if !addressesKnown && !g.known {
		g.hidden()
	}
	if !g.known {
		g.behindIn()
		g.defaultRoute()
	}
	g.proxies()
	if !addressesKnown {
		g.addresses()
	}
	g.inInterface()
	if to := g.packet.Destination.Addr(); to.IsMulticast() && !g.packet.Local && !allHosts(to) {
		g.host.Groups = append(slices.Clip(g.host.Groups), to)
		g.note(alone(to), "a program on this host has joined the group %s", to)
	}
}

// kubeProxy reports whether the rules are kube-proxy's.
func (g *guesser) kubeProxy() bool {
	return slices.ContainsFunc(g.hints, func(h hint) bool {
		return h.table == "nat" && (h.Chain == servicesChain || isTo(h.Rule, servicesChain) || isTo(h.Rule, markMasq))
	})
}

const servicesChain = "KUBE-SERVICES"

func isTo(r *iptables.Rule, chain string) bool {
	name := target(r)
	return name == chain
}

// findPods finds the pods' network: kube-proxy marks packets from outside it.
func (g *guesser) findPods() {
	for _, h := range g.hints {
		if h.table == "nat" && h.notSource.IsValid() && isTo(h.Rule, markMasq) {
			g.pods = h.notSource
			return
		}
	}
}

// near reports whether the address is a pod's, or behind a device with its network.
func (g *guesser) near(a netip.Addr) bool {
	return g.pods.IsValid() && g.pods.Contains(a) || a.IsValid() && g.leads(alone(a))
}

// leads reports whether there is a route to a whole network, other than the default route.
func (g *guesser) leads(to netip.Prefix) bool { return newNetwork(g.host, g.family).leads(to) }

func (n *network) leads(to netip.Prefix) bool {
	return slices.ContainsFunc(n.routes, func(r Route) bool {
		return r.Destination.Bits() > 0 && r.Destination.Bits() <= to.Bits() && r.Destination.Contains(to.Addr())
	})
}

// ownPods returns this host's part of the pods' network, as in flannel's rule "! -s 10.244.0.0/16
// -d 10.244.0.0/24 -j RETURN"; line 0: there is no such rule.
func (g *guesser) ownPods() (own netip.Prefix, line int) {
	for _, h := range g.hints {
		if h.table != "nat" || h.Target != iptables.Return || h.notSource != g.pods {
			continue
		}
		if own := h.destination; own.IsValid() && own != g.pods && g.pods.Contains(own.Addr()) {
			return own, h.Line
		}
	}
	return netip.Prefix{}, 0
}

// podRoute adds the routes to the pods.
func (g *guesser) podRoute() {
	if !g.pods.IsValid() || g.routed(g.pods.Addr()) {
		return
	}
	if own, line := g.ownPods(); line > 0 {
		gateway := own.Addr().Next()
		g.host.AddAddress("cni0", netip.PrefixFrom(gateway, own.Bits()))
		g.route(g.pods, "flannel.1")
		g.host.AddAddress("flannel.1", netip.PrefixFrom(own.Addr(), own.Addr().BitLen()))
		g.note(netip.Prefix{}, "cni0 leads to the pods of this host, %s (see line %d), and flannel.1 to those of others", own, line)
		g.note(alone(own.Addr()), "flannel.1 has the address %s, as flannel gives it", own.Addr())
		return
	}
	p, name := g.packet, "cni0"
	if p.InInterface != "" && g.pods.Contains(p.Source.Addr()) {
		name = p.InInterface
	}
	g.route(g.pods, name)
	g.note(netip.Prefix{}, "the whole pod network %s is behind %s", g.pods, name)
	if near, err := p.Source.Addr().Prefix(p.Source.Addr().BitLen() - 8); err == nil && g.pods.Contains(p.Source.Addr()) {
		gateway := near.Addr().Next()
		g.host.AddAddress(name, netip.PrefixFrom(gateway, gateway.BitLen()))
		g.note(alone(gateway), "%s has the address %s, as the pod's gateway", name, gateway)
	}
}

// route adds a route through a device, and the device if it is missing.
func (g *guesser) route(to netip.Prefix, device string) {
	g.host.Routes = append(g.host.Routes, Route{Destination: to, Interface: device})
	if g.host.device(device) == nil {
		g.host.Interfaces = append(g.host.Interfaces, Interface{Name: device})
	}
}

// routed reports whether there is a route already.
func (g *guesser) routed(a netip.Addr) bool {
	return newNetwork(g.host, g.family).route(a).Type != NoRoute
}

func (g *guesser) defaultRoute() {
	everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if g.family == iptables.IPv6 {
		everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	g.route(everything, g.uplink)
	g.note(netip.Prefix{}, "all other addresses are behind %s", g.uplink)
}

// addresses guesses the host's own addresses.
func (g *guesser) addresses() {
	found, before := false, newNetwork(g.host, g.family) // made once: there may be many rules
	give := func(device string, a netip.Addr, format string, args ...any) {
		if before.isLocal(a) {
			return
		}
		before.local[a] = device
		g.host.AddAddress(device, alone(a))
		g.note(alone(a), format, args...)
	}
	add := func(a netip.Addr, format string, args ...any) {
		found = found || !before.isLocal(a)
		give(g.uplink, a, format, args...)
	}
	near := func(a netip.Addr) bool {
		return g.pods.IsValid() && g.pods.Contains(a) || before.leads(alone(a))
	}
	p := g.packet
	from, to := p.Source.Addr(), p.Destination.Addr()
	if p.Local && from.IsValid() && !from.IsUnspecified() && !from.IsLoopback() {
		add(from, "%s is an address of this host, because the packet originates here", from)
	}
	if g.meant(from, to) {
		add(to, "%s is an address of this host, or a packet from %s would not arrive here", to, from)
	}
	if i := slices.IndexFunc(g.hints, func(h hint) bool { return h.serves(p) }); i >= 0 && private(to) && !g.near(to) && !g.named()[to] {
		add(to, "%s is an address of this host, because line %d matches its port %d", to, g.hints[i].Line, p.Destination.Port())
	}
	for _, h := range g.hints {
		if a := h.hides(g.uplink); a.IsValid() && !near(a) {
			add(a, "%s is an address of this host: see line %d", a, h.Line)
		}
		if a, ok := h.wanted(); ok && h.table == "nat" && h.hooks.has(Prerouting) && h.targets("DNAT") {
			add(a, "%s is an address of this host: see line %d", a, h.Line)
		}
	}
	for _, h := range g.hints {
		a, ok := h.wanted()
		if from := h.source; h.in == loopbackName && from.IsValid() && from.IsSingleIP() {
			a, ok = from.Addr(), true
		} else if h.hooks != only(Input) {
			continue
		}
		if ok && !near(a) {
			give(loopbackName, a, "%s is an address of this host: see line %d", a, h.Line)
		}
	}
	if found {
		return
	}
	stand := netip.MustParseAddr("192.0.2.1")
	if g.family == iptables.IPv6 {
		stand = netip.MustParseAddr("2001:db8::1")
	}
	add(stand, "%s stands for the host's own address, which the rules do not show", stand)
}

// meant reports whether a packet from outside is probably for the host itself: neither its source
// nor its destination is behind the host, no rule translates the destination, and the packet does
// not go from a private network to the internet.
func (g *guesser) meant(from, to netip.Addr) bool {
	switch {
	case g.packet.Local, !to.IsValid(), g.near(from), g.near(to), g.named()[to],
		to.IsMulticast(), to.IsLoopback(), to == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return false
	}
	return !g.gateway || !private(from) || private(to)
}

// named returns the single addresses that rules of the nat table match as a destination.
func (g *guesser) named() map[netip.Addr]bool {
	named := make(map[netip.Addr]bool)
	for _, h := range g.hints {
		if a, ok := h.wanted(); ok && h.table == "nat" {
			named[a] = true
		}
	}
	return named
}

// inInterface guesses the packet's input device.
func (g *guesser) inInterface() {
	p := g.packet
	if p.Local || p.InInterface != "" {
		return
	}
	r := newNetwork(g.host, g.family).route(p.Source.Addr())
	p.InInterface = r.Interface
	if r.Type != Unicast {
		p.InInterface = g.uplink
	}
	g.note(netip.Prefix{}, "the packet arrives on %s, which leads to %s", p.InInterface, p.Source.Addr())
}
