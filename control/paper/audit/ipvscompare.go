package audit

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/ipvs"
)

// CompareIPVS returns how the virtual servers of a node, of one family, differ from those that kube-proxy would make for the
// service table of the node: what the table asks for is before, and what the node has is after. Real servers with weight 0
// are being removed, and do not count.
func CompareIPVS(t *decision.Table, s *ipvs.State, family decision.Family) (changes []ServiceChange) {
	seen := make(map[*ipvs.VirtualServer]bool)
	for _, port := range t.Services() {
		if port.Family != family {
			continue
		}
		want := &Service{Name: port.Name, Protocol: port.Protocol, Family: family, ClusterIP: port.ClusterIP, Port: port.Port, NodePort: port.NodePort}
		d := &details{}
		found := false
		compare := func(at netip.AddrPort, policy decision.Policy) {
			v := s.Find(uint8(port.Protocol), at, 0)
			if v == nil || v.Address != at {
				d.add(Removed, "one at %s", at)
				return
			}
			found, seen[v] = true, true
			compareReal(d, v, realServers(port, policy), s.Format.HasWeights())
			if s.Format.HasSchedulers() {
				value(d, fmt.Sprintf("session affinity at %s:", at), affinityText(port.AffinitySeconds), affinityText(v.Persistence))
			}
		}
		if port.ClusterIP.IsValid() {
			compare(netip.AddrPortFrom(port.ClusterIP, port.Port), port.InternalPolicy)
		}
		for _, a := range slices.Concat(port.ExternalIPs, port.LoadBalancerIPs) {
			compare(netip.AddrPortFrom(a, port.Port), port.ExternalPolicy)
		}
		for _, a := range t.Node().Addresses {
			if port.NodePort != 0 && decision.FamilyOf(a) == family && t.OpensNodePorts(a) {
				compare(netip.AddrPortFrom(a, port.NodePort), port.ExternalPolicy)
			}
		}
		switch {
		case len(*d) == 0:
		case !found:
			changes = append(changes, ServiceChange{Before: want, IPVS: true})
		default:
			changes = append(changes, ServiceChange{want, want, *d, true})
		}
	}
	others, _ := ServicesOfIPVS(s, nil, family, nil)
	for _, o := range others {
		at := netip.AddrPortFrom(o.ClusterIP, o.Port)
		if o.NodePort != 0 || len(t.Candidates(&decision.Packet{Protocol: o.Protocol, Destination: at})) > 0 {
			continue // of node ports, the addresses are not among the objects
		}
		if v := s.Find(uint8(o.Protocol), at, 0); !seen[v] {
			changes = append(changes, ServiceChange{After: o, IPVS: true})
		}
	}
	return changes
}

// realServers are the endpoints that kube-proxy gives a virtual server. Without one on the node, policy Local has all
// (syncEndpoint of pkg/proxy/ipvs/proxier.go).
func realServers(port *decision.ServicePort, policy decision.Policy) (at []netip.AddrPort) {
	usable := port.UsableEndpoints(policy)
	if len(usable) == 0 {
		usable = port.UsableEndpoints(decision.Cluster)
	}
	for i := range usable {
		at = append(at, usable[i].AddrPort)
	}
	return at
}

func compareReal(d *details, v *ipvs.VirtualServer, want []netip.AddrPort, weighted bool) {
	wanted, has, balanced := setOf(want), make(map[netip.AddrPort]bool), make(map[netip.AddrPort]bool)
	for _, r := range v.Real {
		has[r.Address] = true
		balanced[r.Address] = r.Weight > 0 || !weighted
	}
	for _, a := range want {
		switch {
		case balanced[a]:
		case has[a]:
			d.add(Removed, "endpoint %s with a weight above 0 at %s", a, v.Address)
		default:
			d.add(Removed, "endpoint %s at %s", a, v.Address)
		}
	}
	for _, r := range v.Real {
		if balanced[r.Address] && !wanted[r.Address] {
			d.add(Added, "endpoint %s at %s", r.Address, v.Address)
		}
	}
}
