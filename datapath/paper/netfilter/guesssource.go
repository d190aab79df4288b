package netfilter

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// masqueraded finds the networks that rules masquerade wherever their packets leave: "-s 10.0.1.0/24 ! -d 10.0.0.0/16 -j
// MASQUERADE". They are behind the host.
func (g *guesser) masqueraded() {
	for i := range g.hints {
		h := &g.hints[i]
		p := h.source
		switch {
		case h.table != "nat" || !h.hooks.has(Postrouting) || !h.targets("MASQUERADE") && !h.targets("SNAT"),
			!ours(p), p.IsSingleIP(), p.Bits() < 8, h.destination.IsValid(), h.out != "" && h.out != g.uplink,
			g.pods.IsValid() && g.pods.Overlaps(p), g.leads(p), g.forwarded.network(p.Addr()) != nil:
			continue
		}
		device := g.insideDevice()
		if p == dockerNetwork { // iptables -L without -v leaves the device out
			device = dockerBridge
		}
		if in := g.packet.InInterface; in != "" && in != g.uplink && p.Contains(g.packet.Source.Addr()) {
			g.behind(g.packet.Source.Addr(), in)
		}
		g.toPods(p, device, "the network %s is behind %s: %s masquerades it", p, g.called(device), h.at())
	}
}

// innerDevices are the devices besides the uplink whose networks are not known, the most likely first: those of pods, then
// the others that rules name.
func (g *guesser) innerDevices() (names []string) {
	add := func(name string) {
		leads := slices.ContainsFunc(g.host.Routes, func(r Route) bool { return r.Interface == name && r.Destination.Bits() > 0 })
		if name != loopbackName && name != g.uplink && !meshDevice(name) && !g.addressed(name) && !leads && len(names) < mostDevices && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if !g.pods.IsValid() {
		for _, d := range g.namedPodDevices() {
			add(d.name)
		}
	}
	for _, i := range g.host.Interfaces {
		if g.names(i.Name) > 0 && !isPodDevice(i.Name) {
			add(i.Name)
		}
	}
	if len(names) == 0 {
		if name := g.ofKind("qr-"); name != "" {
			add(name)
		}
	}
	return names
}

// detectsByDevice reports whether kube-proxy detects pods by the device that their packets come by.
func (g *guesser) detectsByDevice() bool {
	return g.anyHint(func(h *hint) bool { return h.table == "nat" && len(h.devices) > 0 && marksMasquerade(h.Rule) })
}

// meshDevice reports whether network plugins give a device this name that leads to other nodes, or to none.
func meshDevice(name string) bool {
	return slices.ContainsFunc([]string{"vxlan", "flannel", "cilium", "tunl", "genev", "kube-ipvs", "nodelocaldns", "dummy"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// placeSource guesses where the packet's source is, if nothing shows it: a private address that no network has may be behind
// each device whose networks are not known.
func (g *guesser) placeSource(devices []string) {
	p := g.packet
	from, to := p.Source.Addr(), p.Destination.Addr()
	if len(devices) == 0 || p.Local || p.InInterface != "" || !from.IsValid() || !private(from) || g.leads(alone(from)) {
		return
	}
	in := g.uplink
	var as place // where the destination is, if the source is elsewhere
	switch c := g.choice.source; {
	case c != "":
		in = c
	case !private(to) && !to.IsMulticast() && !to.IsLoopback() && to != allOnes && !g.own(to):
		in, as = devices[0], beyond // a router has no way from the uplink back to it
	case g.hidesOthers(public) && !isPodDevice(devices[0]):
		in = devices[0]
	case isPodDevice(devices[0]) && g.named()[to] && g.detectsByDevice():
		if network, err := from.Prefix(from.BitLen() / 2); err == nil {
			i := len(g.guesses)
			g.toPods(network, devices[0], "%s is a pod behind %s: rules detect pods by such a device", from, devices[0])
			g.leaveOpenAt(i, choice{source: g.uplink})
			return
		}
	case isPodDevice(devices[0]) && !g.own(to) && !g.named()[to]:
		if network, err := from.Prefix(from.BitLen() / 2); err == nil && network.Contains(to) {
			i := len(g.guesses)
			g.toPods(network, devices[0], "%s and %s are pods behind %s: rules name such a device", from, to, devices[0])
			g.leaveOpenAt(i, choice{source: g.uplink, destination: here}, choice{source: g.uplink, destination: beyond})
			return
		}
	}
	if in != g.uplink {
		g.route(alone(from), in)
		g.gatewayOf(from, in)
		g.placed = g.choice.source != ""
	}
	g.note(alone(from), "%s is behind %s", from, in)
	g.last().Silent = true // the input device says it
	var others []choice
	for _, d := range append([]string{g.uplink}, devices...) {
		if d != in {
			others = append(others, choice{source: d, destination: as})
		}
	}
	g.leaveOpen(others...)
}

// own reports whether rules show that the address is one of the host's.
func (g *guesser) own(a netip.Addr) bool {
	if newNetwork(g.host, g.family).isLocal(a) {
		return true
	}
	return g.anyHint(func(h *hint) bool {
		for own := range h.nodePorts() {
			if own == a {
				return true
			}
		}
		if from, is := h.untracked(); is && from == a {
			return true
		}
		to, ok := h.wanted()
		return h.hides(g.uplink) == a || ok && to == a && (h.table == "nat" && h.hooks.has(Prerouting) && h.targets("DNAT") || h.hooks == only(Input))
	})
}

// placeServers guesses where the servers are that rules translate to, if nothing shows it.
func (g *guesser) placeServers(devices []string) {
	if len(devices) == 0 || g.pods.IsValid() {
		return
	}
	device := g.uplink
	var all netip.Prefix // the smallest network of all servers behind the device
	for i := range g.hints {
		h := &g.hints[i]
		t, ok := h.Target.(iptables.DNAT)
		if !ok || !h.hooks.has(Prerouting) || !private(t.To.First) || g.near(t.To.First) {
			continue
		}
		behind := g.uplink
		if c := g.choice.servers; c != "" {
			behind = c
		} else if !strings.HasPrefix(h.Chain, "KUBE-") && !strings.HasPrefix(h.Chain, "CNI-") { // those translate to pods
			behind = devices[0]
		}
		switch {
		case behind != device && device != g.uplink: // nothing is said of servers beside those behind another device
			continue
		case !all.IsValid() || behind != device:
			device, all = behind, alone(t.To.First)
		}
		for !all.Contains(t.To.First) {
			all = netip.PrefixFrom(all.Addr(), all.Bits()-1).Masked()
		}
		if behind != g.uplink {
			g.route(alone(t.To.First), behind)
		}
	}
	if !all.IsValid() {
		return
	}
	if all.IsSingleIP() {
		g.note(all, "%s is behind %s", all.Addr(), device)
	} else {
		g.note(all, "the servers that rules translate to are behind %s", device)
	}
	g.last().Silent = device == g.uplink
	var others []choice
	for _, d := range append([]string{g.uplink}, devices...) {
		if d != device {
			others = append(others, choice{servers: d})
		}
	}
	g.leaveOpen(others...)
}

// public is the contrary of private.
func public(a netip.Addr) bool { return !private(a) }

// gatewayOf gives a device without an address the one that the hosts behind it probably have as their gateway: rules may
// redirect to it.
func (g *guesser) gatewayOf(from netip.Addr, device string) {
	near, err := from.Prefix(from.BitLen() - 8)
	if err != nil || g.host.allAddresses || OfOnePod(device) || g.addressed(device) {
		return
	}
	if gateway := near.Addr().Next(); gateway != from && gateway != g.packet.Destination.Addr() {
		g.host.AddAddress(device, alone(gateway))
		g.note(alone(gateway), "%s has the address %s, as the gateway of %s", device, gateway, from)
	}
}
