package control

import (
	"cmp"
	"maps"
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

// location is where a node is: what makes an endpoint local or near.
type location struct {
	node, zone string // empty: not known
}

// candidate is an endpoint of a service port before it is known what becomes of it.
type candidate struct {
	decision.Endpoint
	conditions
	text         string // of the address and port, which kube-proxy sorts by
	zones, nodes []string
}

// fallback says whether the endpoint takes flows where none is ready.
func (c *candidate) fallback() bool { return c.serving && c.terminating }

// setEndpoints finds the endpoints of a service port in the slices of its Service.
// Only the port's name, protocol and family matter; the port number is that of
// the slice, and may differ between slices.
func setEndpoints(sp *decision.ServicePort, from []*discoveryv1.EndpointSlice, at location) {
	found := make(map[netip.AddrPort]*candidate)
	for _, s := range from {
		family, ok := familyOf(s)
		if _, headless := s.Labels[labelHeadless]; headless || !ok {
			continue
		}
		for i := range s.Ports {
			port, ok := matchingPort(&s.Ports[i], sp)
			if !ok {
				continue
			}
			for j := range s.Endpoints {
				c, ok := newCandidate(&s.Endpoints[j], s.Namespace, family, port, at)
				if !ok {
					continue
				}
				if other, ok := found[c.AddrPort]; !ok || c.beats(other.conditions) {
					found[c.AddrPort] = c
				}
			}
		}
	}
	candidates := slices.SortedFunc(maps.Values(found), func(a, b *candidate) int { return cmp.Compare(a.text, b.text) })
	categorise(sp, candidates, at)
}

func newCandidate(e *discoveryv1.Endpoint, namespace string, f decision.Family, port uint16, at location) (*candidate, bool) {
	addr, ok := addressOf(e, f)
	if !ok {
		return nil, false
	}
	is := conditionsOf(e.Conditions)
	c := &candidate{
		Endpoint: decision.Endpoint{
			AddrPort: netip.AddrPortFrom(addr, port),
			NodeName: valueOf(e.NodeName),
			Pod:      podOf(e, namespace),
			Local:    e.NodeName != nil && at.node != "" && *e.NodeName == at.node,
			Ready:    is.ready,
			Serving:  is.serving,
		},
		conditions: is,
	}
	c.text = c.AddrPort.String()
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			c.zones = append(c.zones, z.Name)
		}
		for _, n := range e.Hints.ForNodes {
			c.nodes = append(c.nodes, n.Name)
		}
	}
	return c, true
}

// familyOf gives the family of a slice's addresses; false if they are no addresses.
func familyOf(s *discoveryv1.EndpointSlice) (decision.Family, bool) {
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4:
		return decision.IPv4, true
	case discoveryv1.AddressTypeIPv6:
		return decision.IPv6, true
	}
	return 0, false
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
	a, err := parseAddr(e.Addresses[0])
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
