package netfilter

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// bridges finds networks behind devices: "-s 192.168.122.0/24 -i virbr0", "-s 172.17.0.0/16 ! -o
// docker0 -j MASQUERADE", "-d 172.25.11.0/24 -o eth1", or "-s 100.64.0.0/10 ! -i tailscale0 -j
// DROP". The host's address there is the one that a rule uses, or the first one.
func (g *guesser) bridges() {
	for i := range g.hints {
		h := &g.hints[i]
		name, network := h.behind()
		if h.table != "nat" && h.table != "filter" || name == "" || name == loopbackName || network.Bits() < 8 ||
			network.IsSingleIP() || network.Addr().IsMulticast() || g.addressed(name) ||
			slices.ContainsFunc(g.given.tables[mainTable], func(r Route) bool {
				return r.Destination == network.Masked() && r.Interface != name && r.Interface != ""
			}) {
			continue
		}
		own, _ := g.ownIn(network)
		g.host.AddAddress(name, netip.PrefixFrom(own, network.Bits()))
		g.inside[name] = true
		g.note(network, "%s has the address %s and leads to %s: see %s", name, own, network, h.at())
	}
	for i := range g.hints {
		h := &g.hints[i]
		for _, name := range []string{h.in, h.out, h.notIn, h.notOut} {
			if name != "" && g.host.device(name) == nil {
				g.host.Interfaces = append(g.host.Interfaces, Interface{Name: name})
			}
		}
	}
	g.usualNetworks()
}

// usualNetworks adds the networks that programs give to their devices unless they are told otherwise, if an address of the
// packet is in one and the rules name the device.
func (g *guesser) usualNetworks() {
	for _, usual := range []struct {
		device  string
		network netip.Prefix
	}{
		{"weave", netip.MustParsePrefix("10.32.0.0/12")},
		{dockerBridge, dockerNetwork},
		{"virbr0", netip.MustParsePrefix("192.168.122.0/24")},
	} {
		line := g.names(usual.device)
		of := usual.network.Contains(g.packet.Source.Addr()) || usual.network.Contains(g.packet.Destination.Addr())
		known := slices.ContainsFunc(g.given.tables[mainTable], func(r Route) bool { return r.Interface == usual.device })
		if line == 0 || !of || known || g.addressed(usual.device) || g.leads(usual.network) || g.forwarded.network(usual.network.Addr()) != nil {
			continue
		}
		own, _ := g.ownIn(usual.network)
		g.host.AddAddress(usual.device, netip.PrefixFrom(own, usual.network.Bits()))
		g.inside[usual.device] = true
		g.note(usual.network, "%s has the address %s and leads to %s, as usual: %s names the device", usual.device, own, usual.network, line)
	}
}

// addressed reports whether an address of the device is known in the rules' family.
func (g *guesser) addressed(device string) bool {
	d := g.host.device(device)
	return d != nil && slices.ContainsFunc(d.Addresses, func(a Address) bool { return a.Prefix.Addr().Is4() == (g.family != iptables.IPv6) })
}

// ownIn returns the host's own address in a network: one that is given, that rules translate others to, that
// arrives on lo, or that packets for the host itself have; else the first one, which nothing shows.
func (g *guesser) ownIn(network netip.Prefix) (own netip.Addr, shown bool) {
	for i, p := range g.unplaced {
		if network.Contains(p.Addr()) {
			g.unplaced = slices.Delete(g.unplaced, i, i+1)
			return p.Addr(), true
		}
	}
	for i := range g.hints {
		h := &g.hints[i]
		if t, ok := h.Target.(iptables.SNAT); ok && t.To.First == t.To.Last && network.Contains(t.To.First) {
			return t.To.First, true
		}
		if h.in == loopbackName && h.source.IsValid() && h.source.IsSingleIP() && network.Contains(h.source.Addr()) {
			return h.source.Addr(), true
		}
		if a, ok := h.wanted(); ok && h.hooks == only(Input) && network.Contains(a) {
			return a, true
		}
	}
	return network.Masked().Addr().Next(), false
}

// uplinkName returns the device of the default route.
func (g *guesser) uplinkName() string {
	for _, r := range g.host.Routes {
		if r.Destination.Bits() == 0 && r.Destination.Addr().Is4() == (g.family != iptables.IPv6) {
			return r.Interface
		}
	}
	in, from := g.packet.InInterface, g.packet.Source.Addr()
	if in != "" && (from.IsUnspecified() || g.near(from) || isPodDevice(in)) {
		in = "" // it shows nothing
	}
	hiding := ""
	for i := range g.hints {
		h := &g.hints[i]
		name := h.hidesBehind() // "-o eth0 -j MASQUERADE"
		if name != "" && name != loopbackName && !g.inside[name] && !(g.kubernetes() && tunnel(name) && !strings.HasPrefix(name, "ppp")) {
			hiding, g.gateway = name, true
			break
		}
	}
	switch {
	case in != "" && (!private(from) || hiding == "" && private(g.packet.Destination.Addr())):
		return in
	case hiding != "":
		return hiding
	}
	for _, prefix := range uplinks {
		for _, i := range g.host.Interfaces {
			if strings.HasPrefix(i.Name, prefix) && (len(i.Addresses) == 0 || g.addressGiven) && !g.inside[i.Name] && !isPodDevice(i.Name) {
				return i.Name
			}
		}
		if name := g.ofKind(prefix); name != "" {
			return name
		}
	}
	return "eth0"
}

// uplinks are the beginnings of the names of uplinks, the usual ones first.
var uplinks = []string{"eth", "en", "bond", "wl", "ww", "ppp", "wan", "qg-"}

// MayBeUplink reports whether a device of that name leads out of the host, by the habits of programs.
func MayBeUplink(device string) bool {
	return !isPodDevice(device) && slices.ContainsFunc(uplinks, func(prefix string) bool { return strings.HasPrefix(device, prefix) })
}

// ofKind makes up a device of a kind that the rules name, as ens+; empty: they name none that begins
// with the prefix.
func (g *guesser) ofKind(prefix string) string {
	for i := range g.hints {
		for _, d := range g.hints[i].devices {
			if d.Wildcard && strings.HasPrefix(d.Name, prefix) && !isPodDevice(d.Name) {
				return d.Name + "0"
			}
		}
	}
	return ""
}

// hidden finds the private networks that a gateway hides behind its uplink: those in its rules,
// that of the packet, and those of its published servers.
func (g *guesser) hidden() {
	inner := g.inner()
	device, called := inner, inner
	if inner == "" {
		device, called = "lan", "a device named lan here"
	}
	for i := range g.hints {
		h := &g.hints[i]
		g.gateway = g.gateway || h.table == "nat" && (h.targets("SNAT") || h.targets("MASQUERADE"))
		if p := h.source; p.IsValid() && h.hidesBehind() == g.uplink && !p.IsSingleIP() && p.Bits() >= 8 && p != g.pods && !g.leads(p) {
			device, called := device, called
			if in := g.packet.InInterface; in != "" && in != g.uplink && p.Contains(g.packet.Source.Addr()) {
				device, called = in, in
			}
			g.lan(p, device, "%s is behind %s, because %s hides it behind %s", p, called, h.at(), g.uplink)
		}
	}
	if !g.gateway || inner == "" {
		return
	}
	for _, a := range g.members(inner) {
		if a.IsValid() && private(a) && !g.near(a) && !g.named()[a] {
			bits := 24
			if a.Is6() {
				bits = 64
			}
			network, _ := a.Prefix(bits)
			i := len(g.guesses)
			g.lan(network, inner, "%s is behind %s, the only other device that the rules name", network, inner)
			if p := g.packet; p.InInterface == "" && !p.Local && network.Contains(p.Source.Addr()) {
				g.guesses[i].Claim = fmt.Sprintf("%s is behind %s", network, inner)
				g.leaveOpenAt(i, choice{source: g.uplink})
			}
		}
	}
}

// members are addresses that may be in a network behind a gateway's inner device. The packet's source is not, if the
// packet arrives on another one.
func (g *guesser) members(inner string) []netip.Addr {
	var members []netip.Addr
	switch in := g.packet.InInterface; {
	case g.packet.Local:
		members = append(members, g.packet.Destination.Addr())
	case g.choice.source != "":
	case in == "" || in == inner:
		members = append(members, g.packet.Source.Addr())
	}
	for i := range g.hints {
		h := &g.hints[i]
		if t, ok := h.Target.(iptables.DNAT); ok && h.hooks.has(Prerouting) && !strings.HasPrefix(h.Chain, "KUBE-") {
			members = append(members, t.To.First)
		}
	}
	return members
}

// lan adds a network behind a device, with a sentence about it.
func (g *guesser) lan(network netip.Prefix, device, format string, args ...any) {
	own, shown := g.ownIn(network)
	to := g.packet.Destination.Addr()
	_, forwarded := g.forwarded.addresses[to]
	// Its neighbours do not use this host as a gateway, unless they are pods.
	neighbour := !shown && !forwarded && !g.packet.Local && network.Contains(to) && network.Contains(g.packet.Source.Addr()) && !tunnel(device) && !isPodDevice(device)
	if neighbour && g.choice.destination != beyond {
		own = to
	}
	g.host.AddAddress(device, netip.PrefixFrom(own, network.Bits()))
	g.note(network, format, args...)
	g.note(alone(own), "%s is the host's own address there", own)
	if neighbour {
		g.leaveOpen(choice{destination: beyond})
	}
}

// inner returns the one device whose networks are unknown; empty if there are none or several.
func (g *guesser) inner() string {
	var names []string
	for _, i := range g.host.Interfaces {
		if i.Name != loopbackName && i.Name != g.uplink && len(i.Addresses) == 0 && !isDockerBridge(i.Name) && !g.leadsToNetwork(i.Name) && g.names(i.Name) > 0 {
			names = append(names, i.Name)
		}
	}
	if len(names) > 1 {
		names = slices.DeleteFunc(names, func(name string) bool {
			return !slices.ContainsFunc([]string{"br", "lan", "eth", "en"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		})
	}
	if len(names) == 1 {
		return names[0]
	}
	return ""
}

// leadsToNetwork reports whether a network is known to be behind a device, such as that of the pods.
func (g *guesser) leadsToNetwork(device string) bool {
	return slices.ContainsFunc(g.host.Routes, func(r Route) bool {
		return r.Interface == device && r.Destination.Bits() > 0 && !r.Destination.IsSingleIP()
	})
}

// takeUnplaced takes the addresses without a device from the host.
func (g *guesser) takeUnplaced() {
	g.host.Interfaces = slices.DeleteFunc(g.host.Interfaces, func(i Interface) bool {
		if i.Name != "" {
			return false
		}
		for _, a := range i.Addresses {
			g.unplaced = append(g.unplaced, a.Prefix)
		}
		return true
	})
}

// placeAddresses gives each address without a device to the one that leads to its network, or else to the uplink.
func (g *guesser) placeAddresses() {
	for _, p := range g.unplaced {
		device := g.uplink
		for _, r := range newNetwork(g.host, g.family).tables[mainTable] {
			if r.Destination.Bits() > 0 && r.Destination.Contains(p.Addr()) && !r.Via.IsValid() && r.Type == Unicast {
				device = r.Interface
				break
			}
		}
		g.host.AddAddress(device, p)
	}
}

// tunnel reports whether hosts behind a device of that name reach each other only through this
// host.
func tunnel(device string) bool {
	return slices.ContainsFunc([]string{"wg", "tun", "tap", "ppp", "tailscale"}, func(prefix string) bool { return strings.HasPrefix(device, prefix) })
}

// behindIn puts the packet's source behind its given input device, unless it is known where it is.
func (g *guesser) behindIn() {
	in, from := g.packet.InInterface, g.packet.Source.Addr()
	if in == "" || in == g.uplink || !from.IsValid() || from.IsUnspecified() || g.near(from) {
		return
	}
	g.behind(from, in)
}

// behind puts the packet's source behind its given input device.
func (g *guesser) behind(from netip.Addr, in string) {
	g.route(alone(from), in)
	g.note(netip.Prefix{}, "%s is behind %s, because the packet arrives on it", from, in)
	g.gatewayOf(from, in)
}

// proxies finds programs that get packets by TPROXY. Routing rules for the mark deliver the
// packets.
func (g *guesser) proxies() {
	for i := range g.hints {
		h := &g.hints[i]
		t, ok := h.Target.(iptables.TProxy)
		if !ok || t.Port == 0 {
			continue
		}
		address := t.Addr
		if !address.IsValid() {
			address = netip.IPv4Unspecified()
			if g.family == iptables.IPv6 {
				address = netip.IPv6Unspecified()
			}
		}
		s := Socket{Protocol: h.protocol, Address: netip.AddrPortFrom(address, t.Port), Transparent: true}
		if !slices.Contains(g.host.Sockets, s) {
			g.host.Sockets = append(slices.Clip(g.host.Sockets), s)
		}
		if rule := (RoutingRule{Mark: t.Mark, Type: Local}); t.Mark.Value != 0 && !slices.Contains(g.host.Rules, rule) {
			g.host.Rules = append([]RoutingRule{rule}, g.host.Rules...)
		}
		if h.protocol == g.packet.Protocol {
			g.note(alone(g.packet.Destination.Addr()), "a program listens at %s, and packets with the mark %s are routed to this host, as TPROXY requires: see %s", s.Address, t.Mark, h.at())
		}
	}
}
