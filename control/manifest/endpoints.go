package manifest

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

// defaultEndpoints fills in what the API server would.
func defaultEndpoints(e *corev1.Endpoints) {
	e.ManagedFields = nil
	for i := range e.Subsets {
		for j := range e.Subsets[i].Ports {
			setDefault(&e.Subsets[i].Ports[j].Protocol, corev1.ProtocolTCP)
		}
	}
}

func validateEndpoints(e *corev1.Endpoints, v *validation) {
	for i := range e.Subsets {
		s, path := &e.Subsets[i], fmt.Sprintf("subsets[%d]", i)
		validateAddresses(path+".addresses", s.Addresses, v)
		validateAddresses(path+".notReadyAddresses", s.NotReadyAddresses, v)
		names := make(map[string]int)
		for j, p := range s.Ports {
			at := fmt.Sprintf("%s.ports[%d]", path, j)
			if p.Name != "" {
				v.syntax(at+".name", p.Name, apivalidation.IsDNS1123Label)
			}
			if first, ok := claim(names, p.Name, j); !ok {
				v.fail(at+".name", "%q is the name of %s.ports[%d] already", p.Name, path, first)
			}
			v.port(at+".port", p.Port)
			v.protocol(at+".protocol", p.Protocol)
		}
	}
}

func validateAddresses(path string, addresses []corev1.EndpointAddress, v *validation) {
	for i, a := range addresses {
		at := fmt.Sprintf("%s[%d].ip", path, i)
		if ip, ok := v.address(at, a.IP); ok && !kubeaddr.CanBeHost(ip) {
			v.fail(at, "%q cannot be an endpoint: unspecified, loopback, link-local and multicast addresses cannot", a.IP)
		}
	}
}

// mirror adds the EndpointSlices that the control plane makes of Endpoints. Those of a Service with a selector stand for
// its EndpointSlices if they are from a cluster, where a controller keeps both alike, and no EndpointSlice of it is known. Those that
// name Pods are, whatever was cut out of their metadata, and those without addresses: nobody writes them by hand.
func (l *loader) mirror() {
	o := l.objects
	if len(o.Endpoints) == 0 {
		return
	}
	services := make(map[string]*corev1.Service)
	for _, s := range o.Services {
		services[s.Namespace+"/"+s.Name] = s
	}
	sliced, mirrored := make(map[string]bool), make(map[string]bool)
	for _, s := range o.EndpointSlices {
		name := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		sliced[name], mirrored[name] = true, mirrored[name] || controllers.Mirrored(s)
	}
	for _, e := range o.Endpoints {
		name := e.Namespace + "/" + e.Name
		svc := services[name]
		stands := svc != nil && len(svc.Spec.Selector) > 0 && (fromCluster(e) || len(e.Subsets) == 0 || slices.ContainsFunc(e.Subsets, namesPods)) && !sliced[name]
		if mirrored[name] || controllers.NotMirrored(e, svc) != "" && !stands {
			continue
		}
		if stands {
			o.Notes = append(o.Notes, fmt.Sprintf("the files have no EndpointSlice of Service %s: its Endpoints stand for them", name))
		}
		made, left := controllers.Mirror(e)
		if stands && len(made) == 0 { // none is ready, or running
			made = []*discoveryv1.EndpointSlice{{
				ObjectMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name, Labels: map[string]string{discoveryv1.LabelServiceName: e.Name}},
				AddressType: discoveryv1.AddressTypeIPv4,
			}}
		}
		if left > 0 {
			o.Warnings = append(o.Warnings, fmt.Sprintf("Endpoints %s: %d addresses are left out: the control plane mirrors 1,000 of each subset", name, left))
		}
		o.EndpointSlices = append(o.EndpointSlices, made...)
	}
}

// namesPods reports whether addresses have the names of Pods, as a controller writes them.
func namesPods(s corev1.EndpointSubset) bool {
	return slices.ContainsFunc(slices.Concat(s.Addresses, s.NotReadyAddresses), func(a corev1.EndpointAddress) bool { return a.TargetRef != nil })
}

// fromCluster reports whether an API server has seen an object.
func fromCluster(o named) bool {
	created := o.GetCreationTimestamp()
	return o.GetUID() != "" || o.GetResourceVersion() != "" || !created.IsZero()
}
