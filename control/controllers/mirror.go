package controllers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

const (
	// mirrorName is the value of the label endpointslice.kubernetes.io/managed-by of mirrored EndpointSlices.
	mirrorName = "endpointslicemirroring-controller.k8s.io"
	// leaderAnnotation marks Endpoints that are a lock of client-go (resourcelock.LeaderElectionRecordAnnotationKey).
	leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"
	// maxMirrored is kube-controller-manager's default of --mirroring-max-endpoints-per-subset.
	maxMirrored = 1000
)

// NotMirrored returns why the control plane makes no EndpointSlices of Endpoints; empty: it makes some. svc is the Service of
// the same name; nil: there is none.
func NotMirrored(e *corev1.Endpoints, svc *corev1.Service) string {
	switch _, leader := e.Annotations[leaderAnnotation]; {
	case e.Labels[discoveryv1.LabelSkipMirror] == "true":
		return "their label " + discoveryv1.LabelSkipMirror + " excludes them"
	case leader:
		return "their annotation " + leaderAnnotation + " marks them as a lock"
	case svc == nil:
		return "no Service has their name"
	case len(svc.Spec.Selector) > 0:
		return "the Service has a selector, so its Pods count"
	}
	return ""
}

// Mirrored reports whether an EndpointSlice is a mirror of Endpoints.
func Mirrored(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == mirrorName
}

// Mirror returns the EndpointSlices that kube-controller-manager makes of Endpoints (pkg/controller/endpointslicemirroring):
// one for each address family and set of ports. left is the number of addresses beyond its limit, which are left out.
func Mirror(e *corev1.Endpoints) (all []*discoveryv1.EndpointSlice, left int) {
	type key struct {
		family discoveryv1.AddressType
		ports  string
	}
	made := make(map[key]*discoveryv1.EndpointSlice)
	seen := make(map[key]map[string]int) // the position of each address
	for i := range e.Subsets {
		subset := &e.Subsets[i]
		ports := slicePorts(subset.Ports)
		addresses := slices.Concat(subset.Addresses, subset.NotReadyAddresses)
		left += max(len(addresses)-maxMirrored, 0)
		for j := range addresses[:min(len(addresses), maxMirrored)] {
			address, ready := &addresses[j], j < len(subset.Addresses)
			a, err := kubeaddr.Parse(address.IP)
			if err != nil {
				continue
			}
			k := key{discoveryv1.AddressType(familyOf(a)), portsText(ports)}
			if made[k] == nil {
				made[k], seen[k] = mirrorOf(e, k.family, ports), make(map[string]int)
				all = append(all, made[k])
				made[k].Name = made[k].GenerateName + suffix(e.Namespace, e.Name, string(k.family), k.ports)
			}
			if at, again := seen[k][a.String()]; again {
				// As in RepackSubsets of pkg/api/v1/endpoints: not ready trumps ready.
				c := &made[k].Endpoints[at].Conditions
				c.Ready = new(*c.Ready && ready)
				continue
			}
			seen[k][a.String()] = len(made[k].Endpoints)
			made[k].Endpoints = append(made[k].Endpoints, mirroredEndpoint(address, a.String(), ready))
		}
	}
	return all, left
}

// mirrorOf is an EndpointSlice of Endpoints without endpoints.
func mirrorOf(e *corev1.Endpoints, family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: e.Namespace, GenerateName: e.Name + "-", Labels: make(map[string]string), Annotations: maps.Clone(e.Annotations)},
		AddressType: family, Ports: ports,
	}
	maps.Copy(s.Labels, e.Labels)
	s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = e.Name, mirrorName
	delete(s.Annotations, corev1.EndpointsLastChangeTriggerTime)
	delete(s.Annotations, corev1.LastAppliedConfigAnnotation)
	return s
}

func mirroredEndpoint(a *corev1.EndpointAddress, address string, ready bool) discoveryv1.Endpoint {
	o := discoveryv1.Endpoint{
		Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(ready)}, TargetRef: a.TargetRef, NodeName: a.NodeName,
	}
	if a.Hostname != "" {
		o.Hostname = new(a.Hostname)
	}
	return o
}

func slicePorts(of []corev1.EndpointPort) []discoveryv1.EndpointPort {
	ports := make([]discoveryv1.EndpointPort, len(of))
	for i, p := range of {
		ports[i] = discoveryv1.EndpointPort{Name: new(p.Name), Port: new(p.Port), Protocol: new(cmp.Or(p.Protocol, corev1.ProtocolTCP)), AppProtocol: p.AppProtocol}
	}
	return ports
}

// portsText is the same for the same ports in another order.
func portsText(ports []discoveryv1.EndpointPort) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = fmt.Sprintf("%s/%s/%d", *p.Name, *p.Protocol, *p.Port)
	}
	slices.Sort(texts)
	return fmt.Sprint(texts)
}
