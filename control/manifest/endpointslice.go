package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

// defaultEndpointSlice fills in what the API server would: the ports' names and
// protocols. Conditions stay unset, which has a meaning of its own.
func defaultEndpointSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		p := &s.Ports[i]
		p.Name, p.Protocol = cmp.Or(p.Name, new(string)), cmp.Or(p.Protocol, new(corev1.ProtocolTCP))
	}
	// Of many endpoints, what nothing depends on is a quarter of the memory.
	s.ManagedFields, s.OwnerReferences = nil, nil
	for i := range s.Endpoints {
		if ref := s.Endpoints[i].TargetRef; ref != nil {
			ref.UID, ref.ResourceVersion = "", ""
		}
	}
}

func validateEndpointSlice(s *discoveryv1.EndpointSlice, v *validation) {
	if s.AddressType == "" {
		v.fail("addressType", "missing")
	} else {
		oneOf(v, "addressType", s.AddressType, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	}
	for i, e := range s.Endpoints {
		validateEndpoint(fmt.Sprintf("endpoints[%d]", i), s.AddressType, e, v)
	}
	names := make(map[string]int)
	for i, p := range s.Ports {
		path := fmt.Sprintf("ports[%d]", i)
		if *p.Name != "" {
			v.syntax(path+".name", *p.Name, apivalidation.IsDNS1123Label)
		}
		if first, ok := claim(names, *p.Name, i); !ok {
			v.fail(path+".name", "%q is the name of ports[%d] already", *p.Name, first)
		}
		v.protocol(path+".protocol", *p.Protocol)
		if p.Port != nil {
			v.port(path+".port", *p.Port)
		}
	}
}

func validateEndpoint(path string, t discoveryv1.AddressType, e discoveryv1.Endpoint, v *validation) {
	if len(e.Addresses) == 0 {
		v.fail(path+".addresses", "missing")
	}
	var family corev1.IPFamily
	switch t {
	case discoveryv1.AddressTypeIPv4:
		family = corev1.IPv4Protocol
	case discoveryv1.AddressTypeIPv6:
		family = corev1.IPv6Protocol
	default:
		return // host names, which no one translates to; or a type that is an error already
	}
	for i, s := range e.Addresses {
		path := fmt.Sprintf("%s.addresses[%d]", path, i)
		a, ok := v.addressOf(path, s, family)
		if ok && !kubeaddr.CanBeHost(a) {
			v.fail(path, "%q cannot be an endpoint: unspecified, loopback, link-local and multicast addresses cannot", s)
		}
	}
}

// betaSlice is the type of EndpointSlices that Kubernetes had up to 1.24.
var betaSlice = typeName{"discovery.k8s.io/v1beta1", "EndpointSlice"}

// ofBeta is one in the form of v1: the node and the zone of an endpoint were labels in its field topology.
func ofBeta(m map[string]any) map[string]any {
	m = maps.Clone(m)
	endpoints, _ := m["endpoints"].([]any)
	endpoints = slices.Clone(endpoints)
	for i, e := range endpoints {
		e, ok := e.(map[string]any)
		topology, has := e["topology"].(map[string]any)
		if !ok || !has {
			continue
		}
		e = maps.Clone(e)
		delete(e, "topology")
		for field, label := range map[string]string{"nodeName": corev1.LabelHostname, "zone": corev1.LabelTopologyZone} {
			if v := topology[label]; v != nil && e[field] == nil {
				e[field] = v
			}
		}
		endpoints[i] = e
	}
	if endpoints != nil {
		m["endpoints"] = endpoints
	}
	return m
}
