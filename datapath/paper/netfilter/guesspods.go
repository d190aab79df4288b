package netfilter

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// findPods finds the pods' network: kube-proxy marks packets from outside it.
func (g *guesser) findPods() {
	for i := range g.hints {
		h := &g.hints[i]
		if h.table == "nat" && h.notSource.IsValid() && marksMasquerade(h.Rule) {
			g.pods = h.notSource
			return
		}
	}
	for i := range g.hints { // where all flows to cluster IPs are masqueraded: the short cut of pods to a service with policy Local
		if h := &g.hints[i]; h.source.IsValid() && !h.source.IsSingleIP() && (strings.HasPrefix(h.Chain, "KUBE-EXT-") || strings.HasPrefix(h.Chain, "KUBE-XLB-")) {
			g.pods = h.source
			return
		}
	}
}

// ownPods returns this host's part of the pods' network, as in flannel's rule "! -s 10.244.0.0/16
// -d 10.244.0.0/24 -j RETURN"; line 0: there is no such rule.
func (g *guesser) ownPods() (own netip.Prefix, line ruleAt) {
	for i := range g.hints {
		h := &g.hints[i]
		if h.table != "nat" || h.Target != iptables.Return || h.notSource != g.pods {
			continue
		}
		if own := h.destination; own.IsValid() && own != g.pods && g.pods.Contains(own.Addr()) {
			return own, h.at()
		}
	}
	return netip.Prefix{}, 0
}

const (
	bridgeDevice  = "cni0" // of flannel and others, where rules name no device of pods
	flannelDevice = "flannel.1"
)

// podRoute adds the routes to the pods.
func (g *guesser) podRoute() {
	if !g.pods.IsValid() || g.leads(alone(g.pods.Addr())) && !g.tunnelAround(g.pods) {
		return
	}
	name, line := g.podDevice()
	own, ownLine := g.ownPods()
	switch {
	case ownLine > 0:
		g.ownPodRoute(own, ownLine, name)
		return
	case g.hasPods():
		if line := g.names(flannelDevice); line > 0 {
			g.route(g.pods, flannelDevice)
			g.note(netip.Prefix{}, "the pods of other hosts are behind flannel.1: see %s", line)
		}
		return
	}
	in := g.packet.InInterface
	if !g.pods.Contains(g.packet.Source.Addr()) {
		in = ""
	}
	switch {
	case in == "":
	case name == "" && !OfOnePod(in):
		g.toPods(g.pods, in, "the whole pod network %s is behind %s", g.pods, in)
		return
	case name != in:
		g.behind(g.packet.Source.Addr(), in)
	}
	if name == "" {
		g.toPods(g.pods, bridgeDevice, "the whole pod network %s is behind %s", g.pods, bridgeDevice)
		return
	}
	g.toPods(g.pods, name, "the whole pod network %s is behind %s: see %s", g.pods, name, line)
}

// tunnelAround reports whether the rules only show that a network is part of a larger one behind a tunnel to other hosts, as
// 100.96.0.0/11 is of Tailscale's 100.64.0.0/10: pods have a device of their own then.
func (g *guesser) tunnelAround(network netip.Prefix) bool {
	r := newNetwork(g.host, g.family).route(network.Addr())
	return tunnel(r.Interface) && g.inside[r.Interface] && !isPodDevice(r.Interface) && r.Destination.Bits() < network.Bits()
}

// hasPods reports whether a device already leads to a part of the pods' network.
func (g *guesser) hasPods() bool {
	for _, i := range g.host.Interfaces {
		for _, a := range i.Addresses {
			if p := a.Prefix; !p.IsSingleIP() && g.pods.Contains(p.Addr()) && p.Bits() > g.pods.Bits() {
				return true
			}
		}
	}
	return false
}

// bridgeOr is the bridge of the pods, if the rules name none.
func (g *guesser) bridgeOr(name string) string {
	if name == "" {
		return bridgeDevice
	}
	return name
}

// ownPodRoute adds the routes of a host with flannel. The device to the pods of other hosts is the one by which the packet
// comes from them, or the one of flannel's most common backend.
func (g *guesser) ownPodRoute(own netip.Prefix, line ruleAt, name string) {
	const text = "%s leads to the pods of this host, %s (see %s), and %s to those of others"
	g.host.AddAddress(g.bridgeOr(name), netip.PrefixFrom(own.Addr().Next(), own.Bits()))
	in, from := g.packet.InInterface, g.packet.Source.Addr()
	if in != "" && in != flannelDevice && in != g.bridgeOr(name) && g.pods.Contains(from) && !own.Contains(from) {
		g.route(g.pods, in)
		g.note(netip.Prefix{}, text, g.bridgeOr(name), own, line, in)
		return
	}
	g.route(g.pods, flannelDevice)
	g.host.AddAddress(flannelDevice, alone(own.Addr()))
	g.note(netip.Prefix{}, text, g.bridgeOr(name), own, line, flannelDevice)
	g.note(alone(own.Addr()), "flannel.1 has the address %s, as flannel gives it", own.Addr())
}

// toPods adds the route to a network of pods, and the address that the device has for the packet's
// source, if that is one of them.
func (g *guesser) toPods(network netip.Prefix, device, format string, args ...any) {
	g.note(network, format, args...)
	g.route(network, device)
	if network == g.pods {
		g.last().About = netip.Prefix{}
	}
	g.last().Claim, _, _ = strings.Cut(g.last().Text, ": ")
	g.leaveOpen(g.otherDevices(device)...)
	from := g.packet.Source.Addr()
	if !from.IsValid() || !network.Contains(from) {
		return
	}
	near, err := from.Prefix(from.BitLen() - 8)
	if err != nil {
		return
	}
	if gateway := near.Addr().Next(); gateway != from && network.Contains(gateway) {
		g.host.AddAddress(device, alone(gateway))
		g.note(alone(gateway), "%s has the address %s, as the pod's gateway", device, gateway)
	}
}

// podDevices are the beginnings of the names of devices that lead to pods, those of network plugins
// first; each with whether every pod has one of its own.
var podDevices = []struct {
	prefix string
	each   bool
}{
	{"weave", false}, {"cbr0", false}, {"cni0", false}, {"kube-bridge", false}, {"antrea-gw", false}, {"ovn-k8s-mp", false}, {"tun0", false},
	{"cali", true}, {"lxc", true}, {"eni", true}, {"azv", true}, {"gke", true}, {"veth", true},
}

// isPodDevice reports whether a device of that name leads to pods.
func isPodDevice(name string) bool {
	return slices.ContainsFunc(podDevices, func(d struct {
		prefix string
		each   bool
	}) bool {
		return strings.HasPrefix(name, d.prefix) && name != "lxcbr0" && (d.each || name == d.prefix || d.prefix == "antrea-gw" || d.prefix == "ovn-k8s-mp")
	})
}

// OfOnePod reports whether a device of that name leads to one pod, and not to a network of pods.
func OfOnePod(name string) bool {
	for _, d := range podDevices {
		if strings.HasPrefix(name, d.prefix) {
			return d.each
		}
	}
	return false
}

// podDevice returns the most likely of the devices of pods that the rules name, and the line; empty:
// they name none.
func (g *guesser) podDevice() (name string, line ruleAt) {
	all := g.namedPodDevices()
	if c := cmp.Or(g.choice.device, g.host.PodDevice); c != "" {
		for _, d := range all {
			if d.name == c {
				return d.name, d.line
			}
		}
		return c, g.names(c)
	}
	if len(all) == 0 {
		return "", 0
	}
	return all[0].name, all[0].line
}

type namedDevice struct {
	name string
	line ruleAt
}

// mostDevices bounds the devices of pods that are tried.
const mostDevices = 8

// namedPodDevices are the devices of pods that the rules name. A device of one pod stands for all of
// their kind; if rules only name the kind, as cali+, one is made up.
func (g *guesser) namedPodDevices() []namedDevice {
	for _, d := range podDevices {
		if d.prefix == "tun0" && !g.openShift() {
			continue // usually a VPN's
		}
		var exact []namedDevice
		kind := ruleAt(0)
		for i := range g.hints {
			for _, named := range g.hints[i].devices {
				switch {
				case !strings.HasPrefix(named.Name, d.prefix) || named.Name == "lxcbr0":
				case named.Wildcard && d.each:
					kind = max(kind, g.hints[i].at())
				case named.Wildcard, !isPodDevice(named.Name), len(exact) == mostDevices:
				case !slices.ContainsFunc(exact, func(e namedDevice) bool { return e.name == named.Name }):
					exact = append(exact, namedDevice{named.Name, g.hints[i].at()})
				}
			}
		}
		switch {
		case len(exact) > 0 && (!d.each || kind > 0 || g.kubernetes()):
			return exact
		case kind > 0:
			return []namedDevice{{d.prefix + "1", kind}}
		}
	}
	return nil
}

// openShift reports whether OpenShift SDN wrote some of the rules: its pods are behind tun0.
func (g *guesser) openShift() bool {
	return g.anyHint(func(h *hint) bool {
		return strings.HasPrefix(h.Chain, "OPENSHIFT-") || strings.HasPrefix(h.Rule.JumpsTo(), "OPENSHIFT-")
	})
}

// PodDevices are the devices of pods that rules name, the most likely first.
func PodDevices(dumps []*iptables.Dump) (names []string) {
	g := &guesser{hints: hintsOf(dumps)}
	for _, d := range g.namedPodDevices() {
		names = append(names, d.name)
	}
	return names
}

// freeBridges are the bridges of Docker that the rules name without a network. They may be those of pods, where Docker
// runs these; Docker's own networks have rules that name them, if Docker masquerades.
func (g *guesser) freeBridges() []namedDevice {
	var free []namedDevice
	for i := range g.hints {
		for _, named := range g.hints[i].devices {
			if isDockerBridge(named.Name) && !named.Wildcard && !g.inside[named.Name] && len(free) < mostDevices &&
				!slices.ContainsFunc(free, func(f namedDevice) bool { return f.name == named.Name }) {
				free = append(free, namedDevice{named.Name, g.hints[i].at()})
			}
		}
	}
	return free
}

// Docker's own bridge, and its usual network.
const dockerBridge = "docker0"

var dockerNetwork = netip.MustParsePrefix("172.17.0.0/16")

// isDockerBridge reports whether the name is of a bridge that Docker makes.
func isDockerBridge(name string) bool {
	return name == dockerBridge || strings.HasPrefix(name, "br-") && len(name) == len("br-")+12
}

// otherDevices are the other devices that may lead to pods.
func (g *guesser) otherDevices(than string) []choice {
	all := g.namedPodDevices()
	if len(all) == 0 {
		all = g.freeBridges()
	}
	var others []choice
	for _, d := range all {
		if d.name != than {
			others = append(others, choice{device: d.name})
		}
	}
	return others
}

// names returns the first line that names the device; 0: none does.
func (g *guesser) names(device string) ruleAt {
	for i := range g.hints {
		for _, named := range g.hints[i].devices {
			if !named.Wildcard && named.Name == device {
				return g.hints[i].at()
			}
		}
	}
	return 0
}
