package reconcile

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// frontends are the addresses of UDP services, with their backends: cluster, external and load balancer IPs, and
// node ports at the unspecified address of their family.
type frontends map[netip.AddrPort]*backends

func nodePort(f decision.Family, port uint16) netip.AddrPort {
	if f == decision.IPv4 {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), port)
}

// backends are the endpoints of one service port.
type backends struct {
	// hasEndpoints: flows to it are not refused (decision.ServicePort.HasEndpoints).
	hasEndpoints bool
	// serving is true for each known endpoint that flows may stay with, anyServing if there is
	// one. kube-proxy uses the serving condition only (pkg/proxy/conntrack): neither traffic
	// policies, nor topology, nor termination move existing flows.
	serving    map[netip.AddrPort]bool
	anyServing bool
}

func newBackends(s *decision.ServicePort) *backends {
	b := &backends{hasEndpoints: s.HasEndpoints, serving: make(map[netip.AddrPort]bool, len(s.Endpoints))}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		stay := e.Serving && decision.FamilyOf(e.AddrPort.Addr()) == s.Family
		b.serving[unmap(e.AddrPort)] = stay
		b.anyServing = b.anyServing || stay
	}
	return b
}

// with adds the backends of another service port with the same frontend: the next one gets
// the packets that the first one skips.
func (b *backends) with(other *backends) *backends {
	if b == nil || b == other {
		return other
	}
	joint := &backends{b.hasEndpoints || other.hasEndpoints, maps.Clone(b.serving), b.anyServing || other.anyServing}
	for endpoint, stay := range other.serving {
		joint.serving[endpoint] = joint.serving[endpoint] || stay
	}
	return joint
}

// view is the part of a table about UDP flows.
type view struct {
	frontends
	table *decision.Table
}

// newView makes the view of a table, in time proportional to its UDP endpoints.
func newView(t *decision.Table) *view {
	v := &view{frontends: make(frontends), table: t}
	for _, s := range ofUDP(t.Services()) {
		b := newBackends(s)
		add := func(e decision.Entry, a netip.Addr, at netip.AddrPort) {
			if t.Reached(s, e, a) {
				v.frontends[at] = v.frontends[at].with(b)
			}
		}
		address := func(e decision.Entry, a netip.Addr) { add(e, a, netip.AddrPortFrom(a.Unmap(), s.Port)) }
		address(decision.EntryClusterIP, s.ClusterIP)
		for _, a := range s.ExternalIPs {
			address(decision.EntryExternalIP, a)
		}
		for _, a := range s.LoadBalancerIPs {
			address(decision.EntryLoadBalancer, a)
		}
		if s.NodePort != 0 {
			add(decision.EntryNodePort, netip.Addr{}, nodePort(s.Family, s.NodePort))
		}
	}
	return v
}

func ofUDP(services []*decision.ServicePort) []*decision.ServicePort {
	return slices.DeleteFunc(slices.Clone(services), func(s *decision.ServicePort) bool { return s.Protocol != decision.UDP })
}

// sameAs reports whether the view has the same results as one of the table for every flow.
func (v *view) sameAs(t *decision.Table) bool {
	old, new := v.table.Node(), t.Node()
	if old.LocalhostNodePorts != new.LocalhostNodePorts ||
		!slices.Equal(old.Addresses, new.Addresses) ||
		!slices.Equal(old.NodePortAddresses, new.NodePortAddresses) {
		return false
	}
	same := true
	t.ChangedServices(v.table, func(_ decision.ServiceName, before, after []*decision.ServicePort) {
		same = same && slices.EqualFunc(ofUDP(before), ofUDP(after), sameFlows)
	})
	return same
}

// sameFlows reports whether two service ports have the same frontends and backends, and skip the
// same packets for others with these frontends.
func sameFlows(a, b *decision.ServicePort) bool {
	return a == b ||
		a.Family == b.Family && a.ClusterIP == b.ClusterIP && a.Port == b.Port && a.NodePort == b.NodePort &&
			a.HasEndpoints == b.HasEndpoints && a.Restricted() == b.Restricted() &&
			a.InternalPolicy == b.InternalPolicy && a.ExternalPolicy == b.ExternalPolicy &&
			(len(a.Usable[decision.Cluster]) > 0) == (len(b.Usable[decision.Cluster]) > 0) &&
			(len(a.Usable[decision.Local]) > 0) == (len(b.Usable[decision.Local]) > 0) &&
			slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
			slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
			slices.EqualFunc(a.Endpoints, b.Endpoints, func(a, b decision.Endpoint) bool {
				return a.AddrPort == b.AddrPort && a.Serving == b.Serving
			})
}

// maxGone bounds how many frontends are remembered after the removal of their services. Flows of
// further ones end by themselves, as with kube-proxy.
const maxGone = 10_000

// addRemoved adds the frontends of old that next does not have.
func (f frontends) addRemoved(old, next frontends) {
	for at, b := range old {
		if next[at] == nil && len(f) < maxGone {
			f[at] = b
		}
	}
}

// at returns the backends of an address, by itself and as a node port; either may be nil.
func (f frontends) at(dst netip.AddrPort) (byAddress, byNodePort *backends) {
	return f[dst], f[nodePort(decision.FamilyOf(dst.Addr()), dst.Port())]
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
