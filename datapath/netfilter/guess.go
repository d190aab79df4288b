package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/iptables"
)

// Guess is something that a dump does not tell and that was made up.
type Guess struct {
	Text string // one sentence
	// Address, if valid, is the one made up; if no packet has it the guess does not
	// matter.
	Address netip.Addr
}

// GuessHost completes what is known of a host by what the rules and a packet suggest:
// interfaces and their networks, where pods are, the host's own addresses, and, if it is
// not told, the device that the packet comes in by, which is set in p. What is known is not
// contradicted, and not changed: the answer is another Host.
func GuessHost(d *iptables.Dump, known *Host, p *Packet) (*Host, []Guess) {
	h := *known
	h.Interfaces, h.Routes = slices.Clone(known.Interfaces), slices.Clone(known.Routes)
	g := &guesser{dump: d, host: &h, packet: p, is4: d.Family != iptables.IPv6, told: len(known.Routes) > 0}
	g.guess(len(known.Interfaces) > 0)
	return g.host, g.guesses
}

type guesser struct {
	dump    *iptables.Dump
	host    *Host
	packet  *Packet
	is4     bool
	told    bool // the routes are known
	guesses []Guess
	pods    netip.Prefix
	uplink  string
}

func (g *guesser) say(a netip.Addr, format string, args ...any) {
	g.guesses = append(g.guesses, Guess{fmt.Sprintf(format, args...), a})
}

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
	g.uplink = g.uplinkName()
	if !g.told {
		g.podRoute()
		g.defaultRoute()
	}
	if !addressesKnown {
		g.addresses()
	}
	g.inInterface()
}

// kubeProxy says whether the rules are kube-proxy's.
func (g *guesser) kubeProxy() bool {
	t := g.dump.Table("nat")
	return t != nil && (t.Has(servicesChain) || t.Has("KUBE-MARK-MASQ"))
}

const servicesChain = "KUBE-SERVICES"

// rulesOf are those of the nat and filter tables.
func (g *guesser) rulesOf(names ...string) []*iptables.Rule {
	var rules []*iptables.Rule
	for _, name := range names {
		if t := g.dump.Table(name); t != nil {
			rules = append(rules, t.Rules...)
		}
	}
	return rules
}

// findPods finds the pods' network: kube-proxy marks what does not come from it.
func (g *guesser) findPods() {
	for _, r := range g.rulesOf("nat") {
		if !isTo(r, markMasq) {
			continue
		}
		for _, m := range r.Matches {
			if s, ok := m.(iptables.Source); ok && s.Negated {
				if p, ok := s.Network.Prefix(); ok {
					g.pods = p
					return
				}
			}
		}
	}
}

func isTo(r *iptables.Rule, chain string) bool {
	name, _ := target(r)
	return name == chain
}

// bridges finds networks behind devices: "-s 192.168.122.0/24 -i virbr0", or "-s
// 172.17.0.0/16 ! -o docker0 -j MASQUERADE".
func (g *guesser) bridges() {
	for _, r := range g.rulesOf("nat", "filter") {
		var network netip.Prefix
		name := ""
		_, masquerades := r.Target.(iptables.Masquerade)
		for _, m := range r.Matches {
			switch m := m.(type) {
			case iptables.Source:
				if p, ok := m.Network.Prefix(); ok && !m.Negated {
					network = p
				}
			case iptables.Destination:
				if p, ok := m.Network.Prefix(); ok && !m.Negated && !network.IsValid() {
					network = p
				}
			case iptables.InInterface:
				if !m.Negated && !m.Interface.Wildcard {
					name = m.Interface.Name
				}
			case iptables.OutInterface:
				if m.Negated == masquerades && !m.Interface.Wildcard {
					name = m.Interface.Name
				}
			}
		}
		if name == "" || name == loopbackName || !network.IsValid() || network.Bits() < 8 || network.IsSingleIP() || network.Addr().IsMulticast() || g.host.device(name) != nil {
			continue
		}
		gateway := network.Addr().Next()
		g.host.AddAddress(name, netip.PrefixFrom(gateway, network.Bits()))
		g.say(gateway, "%s has the address %s and leads to %s: see line %d", name, gateway, network, r.Line)
	}
	for _, r := range g.rulesOf("filter", "mangle", "nat", "raw") {
		for _, m := range r.Matches {
			i, ok := m.(iptables.InInterface)
			if ok && !i.Interface.Wildcard && i.Interface.Name != "" && g.host.device(i.Interface.Name) == nil {
				g.host.Interfaces = append(g.host.Interfaces, Interface{Name: i.Interface.Name})
			}
		}
	}
}

// uplinkName is the device that leads elsewhere.
func (g *guesser) uplinkName() string {
	for _, r := range g.host.Routes {
		if r.Destination.Bits() == 0 && r.Destination.Addr().Is4() == g.is4 {
			return r.Interface
		}
	}
	p := g.packet
	if p.InInterface != "" && !g.near(p.Source.Addr()) {
		return p.InInterface
	}
	for _, i := range g.host.Interfaces {
		for _, prefix := range []string{"eth", "en", "bond", "wlan"} {
			if strings.HasPrefix(i.Name, prefix) {
				return i.Name
			}
		}
	}
	return "eth0"
}

// near says whether the address is a pod's, or behind a device that has its network.
func (g *guesser) near(a netip.Addr) bool {
	if g.pods.IsValid() && g.pods.Contains(a) {
		return true
	}
	return slices.ContainsFunc(newNetwork(g.host, g.dump.Family).routes, func(r Route) bool {
		return r.Destination.Bits() > 0 && r.Destination.Contains(a)
	})
}

// podRoute says where the pods are.
func (g *guesser) podRoute() {
	if !g.pods.IsValid() || g.routed(g.pods.Addr()) {
		return
	}
	name := "cni0"
	if p := g.packet; p.InInterface != "" && g.pods.Contains(p.Source.Addr()) {
		name = p.InInterface
	}
	g.host.Routes = append(g.host.Routes, Route{Destination: g.pods, Interface: name})
	if g.host.device(name) == nil {
		g.host.Interfaces = append(g.host.Interfaces, Interface{Name: name})
	}
	g.say(netip.Addr{}, "the pods' network %s is behind %s, all of it", g.pods, name)
}

// routed says whether there is a route already.
func (g *guesser) routed(a netip.Addr) bool {
	return newNetwork(g.host, g.dump.Family).route(a).Type != NoRoute
}

func (g *guesser) defaultRoute() {
	everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if !g.is4 {
		everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	g.host.Routes = append(g.host.Routes, Route{Destination: everything, Interface: g.uplink})
	if g.host.device(g.uplink) == nil {
		g.host.Interfaces = append(g.host.Interfaces, Interface{Name: g.uplink})
	}
	g.say(netip.Addr{}, "all other addresses are behind %s", g.uplink)
}

// addresses makes up the host's own.
func (g *guesser) addresses() {
	var own netip.Addr
	add := func(a netip.Addr, format string, args ...any) {
		if newNetwork(g.host, g.dump.Family).isLocal(a) {
			return
		}
		if !own.IsValid() {
			own = a
		}
		g.host.AddAddress(g.uplink, netip.PrefixFrom(a, a.BitLen()))
		g.say(a, format, args...)
	}
	p := g.packet
	from, to := p.Source.Addr(), p.Destination.Addr()
	if p.Local && from.IsValid() && !from.IsUnspecified() && !from.IsLoopback() {
		add(from, "%s is an address of this host, as the packet is made here", from)
	}
	named := g.named()
	if !p.Local && !g.near(from) && !g.near(to) && !to.IsMulticast() && !to.IsLoopback() && !named[to] {
		add(to, "%s is an address of this host, or a packet from %s would not come here", to, from)
	}
	for _, r := range g.rulesOf("nat") {
		if _, ok := r.Target.(iptables.DNAT); !ok || r.Chain != Prerouting.String() {
			continue
		}
		for _, m := range r.Matches {
			if d, ok := m.(iptables.Destination); ok && !d.Negated {
				if n, ok := d.Network.Prefix(); ok && n.IsSingleIP() {
					add(n.Addr(), "%s is an address of this host: see line %d", n.Addr(), r.Line)
				}
			}
		}
	}
	if own.IsValid() {
		return
	}
	stand := netip.MustParseAddr("192.0.2.1")
	if !g.is4 {
		stand = netip.MustParseAddr("2001:db8::1")
	}
	add(stand, "%s stands for the host's own address, which the rules do not tell", stand)
}

// named are the single addresses that rules of the nat table ask for as a destination.
func (g *guesser) named() map[netip.Addr]bool {
	named := make(map[netip.Addr]bool)
	for _, r := range g.rulesOf("nat") {
		for _, m := range r.Matches {
			if d, ok := m.(iptables.Destination); ok && !d.Negated {
				if n, ok := d.Network.Prefix(); ok && n.IsSingleIP() {
					named[n.Addr()] = true
				}
			}
		}
	}
	return named
}

// inInterface is where the packet comes from.
func (g *guesser) inInterface() {
	p := g.packet
	if p.Local || p.InInterface != "" {
		return
	}
	r := newNetwork(g.host, g.dump.Family).route(p.Source.Addr())
	p.InInterface = r.Interface
	if r.Type != Unicast {
		p.InInterface = g.uplink
	}
	g.say(netip.Addr{}, "the packet comes in by %s, which is the way to %s", p.InInterface, p.Source.Addr())
}
