package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// slicesOf is what the EndpointSlices of a Service have for a port and a family.
type slicesOf struct {
	wanted string // the port, as its name and protocol
	// families, ports and states are what there is instead: address types, ports, and the addresses of endpoints that are not ready.
	families, ports, states []string
	// withPort: one has the port. ignored: one has the label of headless Services. leaving: all endpoints of the port are terminating.
	withPort, ignored, leaving bool
	what                       string // the object without ready endpoints
}

// read reads one of them. ready: an endpoint of the family could get flows.
func (r *slicesOf) read(c *Cluster, svc *corev1.Service, s *discoveryv1.EndpointSlice, family string) (ready bool) {
	if len(s.Endpoints) == 0 {
		return false
	}
	if _, headless := s.Labels[corev1.IsHeadlessService]; headless && svc.Spec.ClusterIP != corev1.ClusterIPNone {
		r.ignored = true
		return false
	}
	if r.families = append(r.families, string(s.AddressType)); family != "" && string(s.AddressType) != family {
		return false
	}
	has := false
	for _, p := range s.Ports {
		text := fmt.Sprintf("%q/%s", deref(p.Name), protocolOf(corev1.Protocol(deref(p.Protocol))))
		if p.Port == nil {
			text += " without a number"
		}
		r.ports = append(r.ports, text)
		has = has || text == r.wanted
	}
	if !has {
		r.what = fmt.Sprintf("port %s of %s", r.wanted, objectOf(svc))
		return false
	}
	r.withPort = true
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if isUsable(e) {
			return true
		}
		state := strings.Join(e.Addresses, ", ")
		if a, err := kubeaddr.Parse(e.Addresses[0]); err == nil && c.owners[a] != nil && c.stateOf(c.owners[a]) != "" {
			state += fmt.Sprintf(" (%s: %s)", c.owners[a].Name, c.stateOf(c.owners[a]))
		}
		r.states = append(r.states, state)
		r.leaving = r.leaving && deref(e.Conditions.Terminating)
	}
	return false
}

// isUsable reports whether an endpoint gets flows: it is ready or, for want of others, still serves.
func isUsable(e *discoveryv1.Endpoint) bool {
	return isSet(e.Conditions.Ready) || isSet(e.Conditions.Serving) && deref(e.Conditions.Terminating)
}

// isSet reports whether a condition is true, as one that is not given is.
func isSet(condition *bool) bool { return condition == nil || *condition }

// sliced checks the EndpointSlices of a Service. ready: an endpoint of the family could get flows.
func (c *Cluster) sliced(svc *corev1.Service, port *corev1.ServicePort, family string, found []*discoveryv1.EndpointSlice) (ready bool, cause Finding) {
	r := slicesOf{wanted: fmt.Sprintf("%q/%s", port.Name, protocolOf(port.Protocol)), leaving: true, what: objectOf(svc)}
	for _, s := range found {
		if r.read(c, svc, s, family) {
			return true, cause
		}
	}
	slices.Sort(r.families)
	return false, c.explainSlices(svc, port, family, found, &r)
}

// explainSlices is why none of the EndpointSlices has an endpoint of the family that could get flows.
func (c *Cluster) explainSlices(svc *corev1.Service, port *corev1.ServicePort, family string, found []*discoveryv1.EndpointSlice, r *slicesOf) Finding {
	object := objectOf(svc)
	outdated := c.readyPods(svc)
	switch {
	case len(r.families) == 0 && r.ignored:
		return Finding{
			Code: NoEndpoints, Object: object, Text: fmt.Sprintf("the EndpointSlices of %s have the label %s: service proxies ignore them", object, corev1.IsHeadlessService),
			Do: "remove the label from the EndpointSlices: it is for those of headless Services",
		}
	case len(r.families) == 0 && found[0].Annotations[manifest.ReadyOnly] != "":
		f := Finding{
			Code: NoEndpoints, Object: object, Text: fmt.Sprintf("%s has no endpoints that are ready; kubectl lists no others", object),
			Do: fmt.Sprintf("check that Pods match the selector, run, are ready, and have the target port if it is a name: kubectl -n %s get pods -l %s", svc.Namespace, labels.SelectorFromSet(svc.Spec.Selector)),
		}
		if len(svc.Spec.Selector) == 0 {
			f.Do = fmt.Sprintf("see which selector it has, if any, and whether Pods match it and are ready: kubectl -n %s describe service %s", svc.Namespace, svc.Name)
		}
		var like []string
		for _, p := range c.objects.Pods {
			if state := c.stateOf(p); state != "" && p.Namespace == svc.Namespace && strings.HasPrefix(p.Name, svc.Name+"-") {
				like = append(like, fmt.Sprintf("%s (%s)", p.Name, state))
			}
		}
		if len(like) > 0 {
			f.Text += ". Pods with its name are not ready: " + nearest.Few(like)
		}
		return f
	case len(r.families) == 0:
		f := Finding{
			Code: NoEndpoints, Object: object, Text: fmt.Sprintf("the EndpointSlices of %s have no endpoints", object),
			Do: "check that the selector's Pods are running and have addresses",
		}
		addresses := c.addressesOf(svc)
		if family != "" && len(addresses) > 0 && !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return decision.FamilyOf(a).String() == family }) {
			f.Code, f.Field = OtherFamily, "spec.ipFamilies"
			f.Text += fmt.Sprintf(": it is %s, and its Pods have no address of that family", family)
			f.Do = "create the Service again with the family of its Pods (spec.ipFamilies), or give the Pods addresses of both"
		} else if outdated != "" {
			f.Text, f.Do = f.Text+outdated, checkController
		}
		return f
	case family != "" && !slices.ContainsFunc(r.families, func(f string) bool { return f != string(discoveryv1.AddressTypeFQDN) }):
		return Finding{
			Code: NoEndpoints, Object: object, Text: fmt.Sprintf("the EndpointSlices of %s have names instead of addresses (addressType FQDN): service proxies ignore them", object),
			Do: "write EndpointSlices with addresses, or make the Service one of type ExternalName",
		}
	case family != "" && !slices.Contains(r.families, family) && len(svc.Spec.IPFamilies) > 1 && string(svc.Spec.IPFamilies[0]) != family && fromEndpoints(svc, found[0]):
		return Finding{
			Code: NotShown, Object: object, Field: "spec.ipFamilies",
			Text: fmt.Sprintf("whether %s has %s endpoints is not known: Endpoints, and kubectl describe before 1.31, have those of its first family only", object, family),
			Do:   fmt.Sprintf("add the output of kubectl -n %s get endpointslices -o yaml", svc.Namespace),
		}
	case family != "" && !slices.Contains(r.families, family):
		f := Finding{
			Code: OtherFamily, Object: object, Field: "spec.ipFamilies",
			Text: fmt.Sprintf("%s has no %s endpoints; its EndpointSlices are %s", object, family, strings.Join(slices.Compact(r.families), ", ")),
			Do:   "use an address of the other family, or give the Pods addresses of both families",
		}
		if slices.ContainsFunc(c.addressesOf(svc), func(a netip.Addr) bool { return decision.FamilyOf(a).String() == family }) {
			f.Text, f.Do = f.Text+", although its Pods have addresses of both families", checkController
		}
		return f
	case !r.withPort && slices.ContainsFunc(found, func(s *discoveryv1.EndpointSlice) bool { return s.Annotations[manifest.ReadyOnly] != "" }):
		f := Finding{
			Code: NoEndpoints, Object: object, Text: fmt.Sprintf("port %s of %s has no endpoints that are ready, other ports have some; kubectl lists no others", r.wanted, object),
			Do: fmt.Sprintf("check that the Pods listen on the port, and if its target port is a name, that a container has it: kubectl -n %s describe pods -l %s", svc.Namespace, labels.SelectorFromSet(svc.Spec.Selector)),
		}
		if port.TargetPort.Type == intstr.String && port.TargetPort.StrVal != "" {
			f.Text += fmt.Sprintf(". Its target port is the name %q: perhaps no container has a port of that name", port.TargetPort.StrVal)
		}
		return f
	case !r.withPort:
		f := Finding{
			Code: SliceWithoutPort, Object: object, Field: "spec.ports.name",
			Text: fmt.Sprintf("the EndpointSlices of %s have no port %s, which the Service has; they have %s", object, r.wanted, nearest.Few(r.ports)),
			Do:   "give the port the same name and protocol in the Service and its EndpointSlices",
		}
		if len(r.ports) == 0 {
			f.Text = fmt.Sprintf("the EndpointSlices of %s have no ports at all, and the Service has %s", object, r.wanted)
			f.Do = "write the port into the EndpointSlices, with the name and protocol that it has in the Service"
		}
		return f
	}
	if r.leaving {
		return Finding{
			Code: PodsNotReady, Object: object, Text: fmt.Sprintf("all endpoints of %s are terminating, and do not serve any more: %s", r.what, nearest.Few(r.states)),
			Do: "check why no new Pods are started in their place",
		}
	}
	f := Finding{
		Code: PodsNotReady, Object: object, Text: fmt.Sprintf("no endpoint of %s is ready: %s", r.what, nearest.Few(r.states)),
		Do: fmt.Sprintf("check why its Pods are not ready: kubectl -n %s describe pods", svc.Namespace),
	}
	if len(svc.Spec.Selector) == 0 {
		f.Do = "check who writes its EndpointSlices or Endpoints, for it has no selector, and why they list these as not ready"
	}
	if outdated != "" {
		f.Text, f.Do = f.Text+outdated, checkController
	}
	return f
}

// addressesOf are the addresses of a Service's Pods.
func (c *Cluster) addressesOf(svc *corev1.Service) (addresses []netip.Addr) {
	for _, p := range c.podsIn[svc.Namespace].selected(svc.Spec.Selector) {
		addresses = append(addresses, servicetable.PodAddresses(p)...)
	}
	return addresses
}

// fromEndpoints reports whether an EndpointSlice of a Service with a selector was made of its Endpoints, or of what kubectl prints.
func fromEndpoints(svc *corev1.Service, s *discoveryv1.EndpointSlice) bool {
	return s.Annotations[manifest.ReadyOnly] != "" || controllers.Mirrored(s) && len(svc.Spec.Selector) > 0
}

// checkController is what to do about EndpointSlices that lack Pods that are ready.
const checkController = "check that kube-controller-manager is running, as the EndpointSlices should have these Pods; and the condition Ready of the Pods (kubectl describe pod)"
