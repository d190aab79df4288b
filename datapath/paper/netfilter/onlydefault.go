package netfilter

import (
	"net/netip"
	"slices"
)

// OnlyDefault reports whether nothing but the default route leads to an address, although other networks beside it have routes
// of their own: a network plugin sets a route to the pods of each node, and one of them may be missing. route is the default route, and
// other one of the others. It is false if not all routes are known.
func (m *Machine) OnlyDefault(to netip.Addr) (route, other Route, is bool) {
	n := m.network
	route = n.route(to)
	if !n.Complete() || n.OtherRules || n.Rules != nil || route.Type != Unicast || route.Destination.Bits() != 0 || !route.Via.IsValid() {
		return route, other, false
	}
	// A cluster has one network for all pods, and gives each node a part of it.
	whole, least, most := 16, 20, 30
	if to.Is6() {
		whole, least, most = 48, 56, 126
	}
	cluster, err := to.Prefix(whole)
	if err != nil {
		return route, other, false
	}
	ofPods := false // the cluster's network is that of pods: some are on this host, or behind a tunnel
	for _, r := range n.tables[mainTable] {
		if !cluster.Contains(r.Destination.Addr()) {
			continue
		}
		ofPods = ofPods || r.Type == Blackhole || r.Type == Unicast && (isPodDevice(r.Interface) || slices.Contains(overlayDevices, r.Interface))
		bits := r.Destination.Bits()
		if !is && r.Type == Unicast && bits >= least && bits <= most && r.Via.IsValid() && r.Via != route.Via && r.Interface != "cilium_host" {
			other, is = r, true
		}
	}
	return route, other, is && ofPods
}

// overlayDevices are those by which network plugins send packets to pods.
var overlayDevices = []string{"cilium_host", "cilium_vxlan", flannelDevice, "flannel-wg", "vxlan.calico", "wireguard.cali", "tunl0"}

// Bridge reports whether what goes from one port of a bridge to another passes the rules. known: the device is a bridge, and the
// host says so.
func (m *Machine) Bridge(device string) (passes, known bool) {
	b, known := m.network.Bridges[device]
	return b.PassesRules, known
}
