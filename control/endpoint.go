package control

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// conditions are an endpoint's conditions, the unset ones filled in.
type conditions struct {
	ready, serving, terminating bool
}

func conditionsOf(c discoveryv1.EndpointConditions) conditions {
	return conditions{
		ready:       c.Ready == nil || *c.Ready,
		serving:     c.Serving == nil || *c.Serving,
		terminating: c.Terminating != nil && *c.Terminating,
	}
}

// beats says whether, of two endpoints with the same address and port, the first
// is the one to believe. They are seen when an endpoint moves between slices, or
// when a new pod has the address of one that is still terminating: then the one
// that is not terminating counts. Between two of the same kind kube-proxy takes
// any; here the ready one counts.
func (c conditions) beats(d conditions) bool {
	if c.terminating != d.terminating {
		return !c.terminating
	}
	return c.ready && !d.ready
}

// exclusion says why an endpoint gets no new flows; 0 if it gets some.
func exclusion(c conditions) decision.ExclusionReason {
	switch {
	case c.ready: // even a terminating one: its Service asked for it
		return 0
	case c.terminating:
		return decision.Terminating
	}
	return decision.NotReady
}

// candidate is an endpoint of a service port before it is known what becomes of it.
type candidate struct {
	endpoint   decision.Endpoint
	conditions conditions
}

// endpoints finds the endpoints of a service port in the slices of its Service.
// Only the port's name, protocol and family matter; the port number is that of
// the slice, and may differ between slices.
func endpoints(sp *decision.ServicePort, from []*discoveryv1.EndpointSlice) ([]decision.Endpoint, []decision.ExcludedEndpoint) {
	found := make(map[netip.AddrPort]candidate)
	for _, s := range from {
		if _, headless := s.Labels[labelHeadless]; headless || string(s.AddressType) != sp.Family.String() {
			continue
		}
		for i := range s.Ports {
			port, ok := matchingPort(&s.Ports[i], sp)
			if !ok {
				continue
			}
			for j := range s.Endpoints {
				e := &s.Endpoints[j]
				addr, ok := addressOf(e, sp.Family)
				if !ok {
					continue
				}
				c := candidate{
					endpoint: decision.Endpoint{
						AddrPort: netip.AddrPortFrom(addr, port),
						NodeName: valueOf(e.NodeName),
						Pod:      podOf(e, s.Namespace),
					},
					conditions: conditionsOf(e.Conditions),
				}
				if other, ok := found[c.endpoint.AddrPort]; !ok || c.conditions.beats(other.conditions) {
					found[c.endpoint.AddrPort] = c
				}
			}
		}
	}
	return categorise(found)
}

// categorise parts the endpoints that get new flows from those that do not.
func categorise(found map[netip.AddrPort]candidate) (usable []decision.Endpoint, excluded []decision.ExcludedEndpoint) {
	for _, c := range found {
		if reason := exclusion(c.conditions); reason != 0 {
			excluded = append(excluded, decision.ExcludedEndpoint{Endpoint: c.endpoint, Reason: reason})
		} else {
			usable = append(usable, c.endpoint)
		}
	}
	slices.SortFunc(usable, func(a, b decision.Endpoint) int {
		return a.AddrPort.Compare(b.AddrPort)
	})
	slices.SortFunc(excluded, func(a, b decision.ExcludedEndpoint) int {
		return a.AddrPort.Compare(b.AddrPort)
	})
	return usable, excluded
}

// matchingPort gives the number of a slice's port if it is the service port's.
func matchingPort(p *discoveryv1.EndpointPort, sp *decision.ServicePort) (uint16, bool) {
	protocol := corev1.ProtocolTCP
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	if valueOf(p.Name) != sp.Name.Port || string(protocol) != sp.Protocol.String() {
		return 0, false
	}
	if p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
		return 0, false
	}
	return uint16(*p.Port), true
}

// addressOf gives the address of an endpoint. Others than the first have never
// had a meaning.
func addressOf(e *discoveryv1.Endpoint, family decision.Family) (netip.Addr, bool) {
	if len(e.Addresses) == 0 {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(e.Addresses[0])
	if err != nil || decision.FamilyOf(a) != family {
		return netip.Addr{}, false
	}
	return a.Unmap(), true
}

// podOf names the pod an endpoint stands for, if it is one.
func podOf(e *discoveryv1.Endpoint, namespace string) string {
	ref := e.TargetRef
	if ref == nil || ref.Kind != "Pod" || ref.Name == "" {
		return ""
	}
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	return namespace + "/" + ref.Name
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
