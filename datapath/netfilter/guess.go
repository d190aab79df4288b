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
// contradicted, and not changed: the answer is another Host. p may be nil: there will be
// many packets, see [Machine.Place].
func GuessHost(d *iptables.Dump, known *Host, p *Packet) (*Host, []Guess) {
	if p == nil {
		p = &Packet{Local: true}
	}
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
	if !g.told {
		g.podRoute()
	}
	g.uplink = g.uplinkName()
	if !g.told {
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

// bridges finds networks behind devices: "-s 192.168.122.0/24 -i virbr0", "-s
// 172.17.0.0/16 ! -o docker0 -j MASQUERADE" or "-d 172.25.11.0/24 -o eth1". The host has
// the address that a rule gives as a source there, or the first one.
func (g *guesser) bridges() {
	for _, r := range g.rulesOf("nat", "filter") {
		name, network := behind(r)
		if name == "" || name == loopbackName || network.Bits() < 8 || network.IsSingleIP() ||
			network.Addr().IsMulticast() || g.host.device(name) != nil {
			continue
		}
		own := network.Addr().Next()
		if t, ok := r.Target.(iptables.SNAT); ok && t.To.First == t.To.Last && network.Contains(t.To.First) {
			own = t.To.First
		}
		g.host.AddAddress(name, netip.PrefixFrom(own, network.Bits()))
		g.say(own, "%s has the address %s and leads to %s: see line %d", name, own, network, r.Line)
	}
	for _, r := range g.rulesOf("filter", "mangle", "nat", "raw") {
		for _, m := range r.Matches {
			name := ""
			switch m := m.(type) {
			case iptables.InInterface:
				name = exact(m.Interface)
			case iptables.OutInterface:
				name = exact(m.Interface)
			}
			if name != "" && g.host.device(name) == nil {
				g.host.Interfaces = append(g.host.Interfaces, Interface{Name: name})
			}
		}
	}
}

// exact is the name of a device; empty if it is a wildcard.
func exact(i iptables.Interface) string {
	if i.Wildcard {
		return ""
	}
	return i.Name
}

// behind is the device that a rule suggests to lead to a network; empty if to none.
func behind(r *iptables.Rule) (device string, network netip.Prefix) {
	var source, destination netip.Prefix
	var in, out, notOut string
	for _, m := range r.Matches {
		switch m := m.(type) {
		case iptables.Source:
			if p, ok := m.Network.Prefix(); ok && !m.Negated {
				source = p
			}
		case iptables.Destination:
			if p, ok := m.Network.Prefix(); ok && !m.Negated {
				destination = p
			}
		case iptables.InInterface:
			if !m.Negated {
				in = exact(m.Interface)
			}
		case iptables.OutInterface:
			if m.Negated {
				notOut = exact(m.Interface)
			} else {
				out = exact(m.Interface)
			}
		}
	}
	_, masquerades := r.Target.(iptables.Masquerade)
	switch {
	case in != "" && source.IsValid():
		return in, source
	case out != "" && destination.IsValid():
		return out, destination
	case notOut != "" && source.IsValid() && masquerades:
		return notOut, source
	}
	return "", netip.Prefix{}
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
	for _, r := range g.rulesOf("nat") {
		if _, ok := r.Target.(iptables.Masquerade); ok && len(r.Matches) == 1 {
			if o, ok := r.Matches[0].(iptables.OutInterface); ok && !o.Negated && exact(o.Interface) != "" {
				return o.Interface.Name // "-o eth0 -j MASQUERADE"
			}
		}
	}
	for _, i := range g.host.Interfaces {
		for _, prefix := range []string{"eth", "en", "bond", "wlan"} {
			if strings.HasPrefix(i.Name, prefix) && len(i.Addresses) == 0 {
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

// ownPods is the part of the pods' network that is on this host, as flannel's rule
// "! -s 10.244.0.0/16 -d 10.244.0.0/24 -j RETURN" tells it; line 0: none does.
func (g *guesser) ownPods() (own netip.Prefix, line int) {
	for _, r := range g.rulesOf("nat") {
		if v, ok := r.Target.(iptables.Verdict); !ok || v != iptables.Return {
			continue
		}
		outside := false
		own = netip.Prefix{}
		for _, m := range r.Matches {
			switch m := m.(type) {
			case iptables.Source:
				p, ok := m.Network.Prefix()
				outside = ok && m.Negated && p == g.pods
			case iptables.Destination:
				if p, ok := m.Network.Prefix(); ok && !m.Negated {
					own = p
				}
			}
		}
		if outside && own.IsValid() && own != g.pods && g.pods.Contains(own.Addr()) {
			return own, r.Line
		}
	}
	return netip.Prefix{}, 0
}

// podRoute says where the pods are.
func (g *guesser) podRoute() {
	if !g.pods.IsValid() || g.routed(g.pods.Addr()) {
		return
	}
	if own, line := g.ownPods(); line > 0 {
		gateway := own.Addr().Next()
		g.host.AddAddress("cni0", netip.PrefixFrom(gateway, own.Bits()))
		g.route(g.pods, "flannel.1")
		g.host.AddAddress("flannel.1", netip.PrefixFrom(own.Addr(), own.Addr().BitLen()))
		g.say(netip.Addr{}, "cni0 leads to the pods of this host, %s (see line %d), and flannel.1 to those of others", own, line)
		g.say(own.Addr(), "flannel.1 has the address %s, as flannel gives it", own.Addr())
		return
	}
	p, name := g.packet, "cni0"
	if p.InInterface != "" && g.pods.Contains(p.Source.Addr()) {
		name = p.InInterface
	}
	g.route(g.pods, name)
	g.say(netip.Addr{}, "the pods' network %s is behind %s, all of it", g.pods, name)
	if near, err := p.Source.Addr().Prefix(p.Source.Addr().BitLen() - 8); err == nil && g.pods.Contains(p.Source.Addr()) {
		gateway := near.Addr().Next()
		g.host.AddAddress(name, netip.PrefixFrom(gateway, gateway.BitLen()))
		g.say(gateway, "%s has the address %s, as the pod's gateway", name, gateway)
	}
}

// route adds a route by a device, which is made if there is none of that name.
func (g *guesser) route(to netip.Prefix, device string) {
	g.host.Routes = append(g.host.Routes, Route{Destination: to, Interface: device})
	if g.host.device(device) == nil {
		g.host.Interfaces = append(g.host.Interfaces, Interface{Name: device})
	}
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
	g.route(everything, g.uplink)
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
