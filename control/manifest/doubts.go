package manifest

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/control/nearest"
)

// EndpointsNotShown is why the endpoints of a Service, NAMESPACE/NAME, are not known; "": they are, or a proxy has none for it.
func (o *Objects) EndpointsNotShown(service string) string {
	for _, s := range o.Services {
		if s.Namespace+"/"+s.Name != service {
			continue
		}
		switch {
		case s.Annotations[NotShown] != "":
			return s.Annotations[NotShown]
		case o.Made != nil && len(s.Spec.Selector) > 0 && len(o.EndpointSlices) == 0:
			return "the files contain no EndpointSlices: add the output of kubectl get endpointslices -A -o yaml"
		}
	}
	return ""
}

// Doubts are about what a decision that was made of completed objects leaves out, one line each: Services whose Pods are
// not in the files, and addresses of endpoints that no proxy uses.
func (o *Objects) Doubts() (all []string) {
	if o.Made == nil {
		return nil
	}
	shown := o.clusterNamespaces()
	for _, p := range o.Pods {
		shown[p.Namespace] = true
	}
	for _, t := range o.Templates {
		shown[t.Namespace] = true
	}
	var unknown, ignored []string
	for s := range o.Made.Services {
		if len(s.Spec.Selector) > 0 && !shown[s.Namespace] && !o.sliced(s) {
			unknown = append(unknown, s.Namespace+"/"+s.Name)
		}
	}
	if len(unknown) > 0 {
		all = append(all, fmt.Sprintf("whether these Services have endpoints is not known, for the files lack the Pods of their namespaces, and Deployments or other objects that make some: %s", nearest.Few(unknown)))
	}
	for _, s := range o.Services {
		if why := s.Annotations[NotShown]; why != "" {
			all = append(all, fmt.Sprintf("the endpoints of Service %s/%s are not known: %s", s.Namespace, s.Name, why))
		}
	}
	for _, s := range o.EndpointSlices {
		for i := range s.Endpoints {
			if a := s.Endpoints[i].Addresses; len(a) > 1 {
				ignored = append(ignored, fmt.Sprintf("%s of EndpointSlice %s/%s", a[1], s.Namespace, s.Name))
			}
		}
	}
	if len(ignored) > 0 {
		all = append(all, "ignored, for a proxy uses the first address of an endpoint only: "+nearest.Few(ignored))
	}
	return all
}
