package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// trim reduces an object, before it is cached, to what the service table depends on:
// of 100,000 endpoints the rest would be most of the memory. It may change the object,
// which has no other user yet, or return another in its place (see cache.TransformFunc).
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Service:
		trimService(o)
		return servicetable.NewService(o), nil
	case *discoveryv1.EndpointSlice:
		return servicetable.NewEndpointSlice(o), nil
	case *corev1.Node:
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.NodeSpec{PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs, Taints: o.Spec.Taints}
		o.Status = corev1.NodeStatus{Addresses: o.Status.Addresses}
	case *corev1.Pod:
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.PodSpec{HostNetwork: o.Spec.HostNetwork, NodeName: o.Spec.NodeName}
		o.Status = corev1.PodStatus{Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs}
	}
	return o, nil // whatever else: what was trimmed before, or a DeletedFinalStateUnknown, which holds such
}

// trimMeta leaves what names an object and what it is read for.
func trimMeta(m *metav1.ObjectMeta) {
	zone, zoned := m.Labels[corev1.LabelTopologyZone]
	annotations := m.Annotations
	*m = metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID,
		ResourceVersion: m.ResourceVersion, DeletionTimestamp: m.DeletionTimestamp,
	}
	if zoned {
		m.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	for _, name := range []string{servicetable.AnnotationDecide, servicetable.AnnotationBalance, servicetable.AnnotationWeight} {
		if value, ok := annotations[name]; ok {
			metav1.SetMetaDataAnnotation(m, name, value)
		}
	}
}

// trimService drops allocation fields and the pod selector.
func trimService(s *corev1.Service) {
	trimMeta(&s.ObjectMeta)
	s.UID = ""
	s.Spec.Selector = nil
	s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil
	s.Spec.AllocateLoadBalancerNodePorts, s.Spec.LoadBalancerClass, s.Spec.TrafficDistribution = nil, nil, nil
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].AppProtocol = nil
		s.Spec.Ports[i].TargetPort = intstr.IntOrString{}
	}
	s.Status.Conditions = nil
}
