package health

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Changes returns the argument of [ServiceServer.Update] for the change from one table to the next;
// nil: there was none.
func Changes(t, since *decision.Table) map[types.NamespacedName]*Service {
	changes := make(map[types.NamespacedName]*Service)
	t.ChangedServices(since, func(name decision.ServiceName, before, after []*decision.ServicePort) {
		// Among the Services there may be some that are the same as before.
		if old, service := serviceOf(before), serviceOf(after); !old.equal(service) {
			changes[types.NamespacedName(name)] = service
		}
	})
	return changes
}

// equal reports whether the health checks are the same.
func (s *Service) equal(other *Service) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.Port == other.Port && maps.Equal(s.LocalEndpoints, other.LocalEndpoints)
}

// serviceOf sums up the service ports of a Service; nil: it has no
// health check.
func serviceOf(ports []*decision.ServicePort) *Service {
	var service *Service
	addresses := make(map[netip.Addr]bool)
	for _, p := range ports {
		if p.HealthCheckNodePort == 0 {
			continue
		}
		if service == nil {
			service = &Service{Port: p.HealthCheckNodePort, LocalEndpoints: make(map[decision.Family]int)}
		}
		service.LocalEndpoints[p.Family] += 0 // there is an entry even without endpoints
		for i := range p.Endpoints {
			e := &p.Endpoints[i]
			a := e.AddrPort.Addr()
			if e.Local && e.Ready && decision.FamilyOf(a) == p.Family && !addresses[a] {
				addresses[a] = true
				service.LocalEndpoints[p.Family]++
			}
		}
	}
	return service
}

// ListenAddresses returns the listen addresses of health check node ports: the addresses that node
// ports are restricted to, loopback ones included, or all of a family, as its unspecified address
// (kube-proxy: NodePortAddresses).
func ListenAddresses(t *decision.Table) []netip.Addr {
	var list []netip.Addr
	for f, all := range map[decision.Family]netip.Addr{decision.IPv4: netip.IPv4Unspecified(), decision.IPv6: netip.IPv6Unspecified()} {
		if t.AllNodePortAddresses(f) {
			list = append(list, all)
			continue
		}
		for _, a := range append(t.NodePortAddresses(), loopbacks...) {
			// Binding a link-local address requires its interface, which is not known here.
			if decision.FamilyOf(a) == f && !(a.Is6() && a.IsLinkLocalUnicast()) && slices.ContainsFunc(t.Node().NodePortAddresses, func(p netip.Prefix) bool { return p.Contains(a) }) {
				list = append(list, a)
			}
		}
	}
	return normal(list)
}

var loopbacks = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
