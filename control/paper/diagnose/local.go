package diagnose

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// This file has what why and doctor find about traffic policies Local.

// onNoNode reports whether the service port has endpoints that can be used, and none with the name of a node.
func onNoNode(s *decision.ServicePort) bool {
	ready := 0
	for i := range s.Endpoints {
		if s.Endpoints[i].NodeName != "" {
			return false
		}
		if s.Endpoints[i].Ready {
			ready++
		}
	}
	return ready > 0
}

// placesNotShown is the finding about a policy Local of a Service whose endpoints are from what kubectl prints for people, which does not
// show the nodes of all of them, or are made up, on no Node or on any; nil: their nodes are shown.
func (c *Cluster) placesNotShown(svc *corev1.Service, field string) *Finding {
	for s, e := range c.endpointsOf(svc) {
		var why, do string
		switch {
		case c.isMade(e) && c.objects.Made.Guessed[c.podOf(e)]:
			why, do = "on which of the nodes its Pods run is not known: the files do not contain them", "add the output of kubectl get pods -A -o yaml"
		case deref(e.NodeName) != "":
			continue
		case s.Annotations[manifest.ReadyOnly] != "":
			why, do = "kubectl does not print here on which nodes its endpoints are", "give the output of kubectl get svc,endpointslices,nodes,pods with -o yaml"
		case c.isMade(e):
			why, do = "on which nodes its Pods run is not known: the files contain no Nodes for them", "add the output of kubectl get nodes -o yaml"
		default:
			continue
		}
		return &Finding{Code: NotShown, Object: objectOf(svc), Field: "spec." + field, Text: fmt.Sprintf("%s of %s is Local, and %s", field, objectOf(svc), why), Do: do}
	}
	return nil
}

// isMade reports whether the Pod of an endpoint was made up, or completed.
func (c *Cluster) isMade(e *discoveryv1.Endpoint) bool {
	if c.objects.Made == nil || e.TargetRef == nil {
		return false
	}
	_, made := c.objects.Made.Pods[c.podOf(e)]
	return made
}

// podOf is the Pod that an endpoint names; nil: it is not among the objects. e.TargetRef must not be nil.
func (c *Cluster) podOf(e *discoveryv1.Endpoint) *corev1.Pod {
	return c.pods[name{Namespace: e.TargetRef.Namespace, Name: e.TargetRef.Name}]
}

// policyField is the field with the traffic policy that a decision goes by.
func policyField(d *decision.Decision) string {
	if d.Entry == decision.EntryClusterIP {
		return "internalTrafficPolicy"
	}
	return "externalTrafficPolicy"
}

// isLocal reports whether that policy is Local.
func (w *inquiry) isLocal(d *decision.Decision) bool {
	if policyField(d) == "internalTrafficPolicy" {
		return deref(w.to.service.Spec.InternalTrafficPolicy) == corev1.ServiceInternalTrafficPolicyLocal
	}
	return w.to.service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// lacksLocal makes a node without endpoints the cause. If their nodes are not shown, the decision is one about made-up objects.
func (w *inquiry) lacksLocal(d *decision.Decision) {
	f := w.noLocal(d)
	if w.cause(f); f.Code == NotShown {
		w.answer.Record = nil
	}
}

// noLocal is about a node without endpoints under a policy Local.
func (w *inquiry) noLocal(d *decision.Decision) Finding {
	svc, field := w.to.service, policyField(d)
	var elsewhere []string
	for i := range d.ServicePort.Endpoints {
		if n := d.ServicePort.Endpoints[i].NodeName; n != "" && n != w.answer.Node {
			elsewhere = append(elsewhere, n)
		}
	}
	node := "the node"
	if w.answer.Node != "" {
		node = "node " + w.answer.Node
	}
	f := Finding{
		Code: NoLocalEndpoints, Object: objectOf(svc), Field: "spec." + field,
		Text: fmt.Sprintf("%s of %s is Local, and %s has no endpoint for it that gets new flows", field, objectOf(svc), node),
		Do:   fmt.Sprintf("set spec.%s to Cluster, or run one of its Pods on each node that gets packets", field),
	}
	if hidden := w.placesNotShown(svc, field); hidden != nil {
		return *hidden
	}
	switch {
	case len(elsewhere) > 0 && w.answer.Node == "":
		return Finding{
			Code: NotShown, Object: objectOf(svc), Field: "spec." + field, Do: "give the node as --node",
			Text: fmt.Sprintf("%s of %s is Local, it has endpoints on %s, and on which node the packet starts or arrives is not known", field, objectOf(svc), nearest.Few(elsewhere)),
		}
	case len(elsewhere) > 0:
		f.Text += "; there are some on " + nearest.Few(elsewhere)
		if !slices.ContainsFunc(elsewhere, func(n string) bool { return slices.Contains(w.nodes.names, n) }) {
			f.Text, f.Do = f.Text+", of which there is no Node here", checkNodeName
		}
	case onNoNode(d.ServicePort):
		f.Text += "; its EndpointSlices do not say on which node an endpoint is"
		f.Do = "set nodeName of each endpoint in the EndpointSlices, or spec." + field + " to Cluster"
	}
	return f
}
