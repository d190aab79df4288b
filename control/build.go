// Package control makes the service table: from Kubernetes objects and what is
// known of the node to an immutable [decision.Table]. Making it is pure
// ([Build]); the [Controller] does it again whenever an input changes.
package control

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// serviceKey names a Service.
type serviceKey struct {
	namespace, name string
}

func (k serviceKey) String() string { return k.namespace + "/" + k.name }

// Build makes the service ports of all Services, in the order of namespace and
// name, ready for [decision.NewTable]. Warnings, one line each, are about
// objects that are right but will hardly do what was meant. Build is pure: the
// same input gives the same output, and it does not change or keep the objects.
func Build(objects *manifest.Objects, node NodeConfig) ([]*decision.ServicePort, []string) {
	byService := slicesByService(objects.EndpointSlices)
	services := slices.SortedFunc(slices.Values(objects.Services), func(a, b *corev1.Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var ports []*decision.ServicePort
	at := location{node: node.Name, zone: node.zone(nodeObject(objects.Nodes, node.Name))}
	warnings := nodeWarnings(objects.Nodes, node)
	for _, svc := range services {
		ports = append(ports, servicePorts(svc, byService[serviceKey{svc.Namespace, svc.Name}], at)...)
		warnings = append(warnings, serviceWarnings(svc)...)
	}
	return ports, warnings
}

// slicesByService groups slices by the Service their label names, each group in
// the order of the slices' names. A slice without the label is no Service's.
func slicesByService(all []*discoveryv1.EndpointSlice) map[serviceKey][]*discoveryv1.EndpointSlice {
	groups := make(map[serviceKey][]*discoveryv1.EndpointSlice)
	for _, s := range all {
		if name := s.Labels[discoveryv1.LabelServiceName]; name != "" {
			k := serviceKey{s.Namespace, name}
			groups[k] = append(groups[k], s)
		}
	}
	for _, g := range groups {
		slices.SortFunc(g, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	}
	return groups
}
