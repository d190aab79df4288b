package apiserver

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim reduces an object, before it is cached, to what the service table depends on:
// of 100,000 endpoints the rest would be most of the memory. It may change the object,
// which nobody else has yet (see cache.TransformFunc).
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Service:
		trimMeta(&o.ObjectMeta)
		o.Status.Conditions = nil
	case *discoveryv1.EndpointSlice:
		trimMeta(&o.ObjectMeta)
		for i := range o.Ports {
			o.Ports[i].AppProtocol = nil
		}
		for i := range o.Endpoints {
			trimEndpoint(&o.Endpoints[i])
		}
	case *corev1.Node:
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.NodeSpec{PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs, Taints: o.Spec.Taints}
		o.Status = corev1.NodeStatus{Addresses: o.Status.Addresses}
	case *corev1.Pod:
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.PodSpec{HostNetwork: o.Spec.HostNetwork}
		o.Status = corev1.PodStatus{Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs}
	}
	return o, nil // whatever else: a DeletedFinalStateUnknown, which holds a trimmed one
}

// trimMeta leaves what names an object and what it is read for.
func trimMeta(m *metav1.ObjectMeta) {
	labels := m.Labels
	annotations := m.Annotations
	*m = metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID,
		ResourceVersion: m.ResourceVersion, DeletionTimestamp: m.DeletionTimestamp,
	}
	keep := func(from map[string]string, key string, to *map[string]string) {
		if v, ok := from[key]; ok {
			*to = maps.Clone(*to)
			if *to == nil {
				*to = make(map[string]string)
			}
			(*to)[key] = v
		}
	}
	for _, key := range []string{discoveryv1.LabelServiceName, corev1.IsHeadlessService, corev1.LabelTopologyZone} {
		keep(labels, key, &m.Labels)
	}
	keep(annotations, corev1.EndpointsLastChangeTriggerTime, &m.Annotations)
}

func trimEndpoint(e *discoveryv1.Endpoint) {
	trimmed := discoveryv1.Endpoint{
		Addresses: e.Addresses,
		Conditions: discoveryv1.EndpointConditions{
			Ready: shared(e.Conditions.Ready), Serving: shared(e.Conditions.Serving), Terminating: shared(e.Conditions.Terminating),
		},
		Hints: e.Hints,
	}
	if len(e.Addresses) > 1 {
		trimmed.Addresses = e.Addresses[:1:1] // the others have no meaning
	}
	if e.NodeName != nil {
		trimmed.NodeName = nodeNames.get(*e.NodeName)
	}
	if r := e.TargetRef; r != nil {
		trimmed.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: r.Namespace, Name: r.Name}
		if r.Kind != "Pod" {
			trimmed.TargetRef = nil // only pods are named
		}
	}
	*e = trimmed
}

var yes, no = true, false

// shared gives one of two pointers instead of one of each endpoint's own.
func shared(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return &yes
	}
	return &no
}

// names holds each name once: there are many endpoints, but few nodes.
type names struct {
	mu sync.Mutex
	of map[string]*string
}

var nodeNames = names{of: make(map[string]*string)}

func (n *names) get(name string) *string {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.of[name]
	if !ok {
		p = &name
		n.of[name] = p
	}
	return p
}
