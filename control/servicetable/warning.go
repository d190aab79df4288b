package servicetable

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Warning is about objects that are valid but probably not as intended.
type Warning struct {
	Service decision.ServiceName // the Service; zero: the node
	Text    string               // one line
}

func (w Warning) String() string { return w.Text }

// serviceWarnings reports fields that an API server would have allocated and a file lacks, and
// fields without effect.
func serviceWarnings(svc *corev1.Service) []string {
	if ignored(svc) != "" {
		return nil
	}
	key := decision.ServiceName{Namespace: svc.Namespace, Name: svc.Name}
	ips := clusterIPs(svc)
	if len(ips) == 0 {
		return []string{fmt.Sprintf("service %s has no clusterIP: no API server assigned one, so it is left out; set spec.clusterIP", key)}
	}
	var warnings []string
	if w := serviceSpellings(svc).Warning("service " + key.String()); w != "" {
		warnings = append(warnings, w)
	}
	// A LoadBalancer may do without node ports.
	if svc.Spec.Type == corev1.ServiceTypeNodePort {
		for i, p := range svc.Spec.Ports {
			if p.NodePort == 0 {
				warnings = append(warnings, fmt.Sprintf("service %s of type NodePort has no nodePort for port %d/%s: no API server assigned one; set spec.ports[%d].nodePort", key, p.Port, p.Protocol, i))
			}
		}
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && svc.Spec.HealthCheckNodePort == 0 {
		warnings = append(warnings, fmt.Sprintf("service %s of type LoadBalancer and externalTrafficPolicy Local has no healthCheckNodePort: load balancers cannot check which nodes have endpoints; no API server assigned one", key))
	}
	warnings = append(warnings, decideWarnings(svc)...)
	external := slices.Concat(svc.Spec.ExternalIPs, loadBalancerIPs(svc))
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		var lost []string
		for _, a := range addressesOf(f, external) {
			lost = append(lost, a.String())
		}
		if has := slices.ContainsFunc(ips, func(ip netip.Addr) bool { return decision.FamilyOf(ip) == f }); len(lost) > 0 && !has {
			warnings = append(warnings, fmt.Sprintf("service %s has no %s clusterIP, so these external addresses of it are left out: %s", key, f, strings.Join(lost, ", ")))
		}
	}
	return warnings
}

// nodeWarnings reports a missing Node object, or missing fields in it.
func (b *builder) nodeWarnings() []string {
	node, object := &b.config, b.node()
	var warnings []string
	if object == nil && node.Name != "" && len(b.nodes) > 0 {
		// Names match exactly, so this is probably not intended.
		warnings = append(warnings, fmt.Sprintf("node %q is not one of the cluster's nodes (%s): its zone and addresses are not known, and only endpoints on a node of exactly that name are local", node.Name, someNames(b.nodes)))
	}
	if node.Mode == NodeCIDR {
		switch {
		case object == nil:
			warnings = append(warnings, fmt.Sprintf("mode NodeCIDR: Node object %q not found: no source is detected as a pod", node.Name))
		case len(PodCIDRs(object)) == 0:
			warnings = append(warnings, fmt.Sprintf("mode NodeCIDR: node %q has no podCIDRs: no source is detected as a pod", node.Name))
		}
	}
	if node.PrimaryNodePorts && len(node.NodePortAddresses) == 0 && len(node.ips(object)) == 0 {
		warnings = append(warnings, fmt.Sprintf("--nodeport-addresses primary: the addresses of node %q are not known: node ports are open on all addresses", node.Name))
	}
	warnings = append(warnings, b.source...)
	for _, object := range slices.Sorted(maps.Keys(b.about)) {
		warnings = append(warnings, b.about[object]...)
	}
	return warnings
}

// someNames lists nodes, up to a limit.
func someNames(nodes map[string]*corev1.Node) string {
	const shown = 5
	names := slices.Sorted(maps.Keys(nodes))
	if len(names) > shown {
		names = append(names[:shown], "...")
	}
	return strings.Join(names, ", ")
}

// serviceSpellings finds old spellings in a Service.
func serviceSpellings(svc *corev1.Service) (r kubeaddr.Respelled) {
	if len(svc.Spec.ClusterIPs) == 0 {
		r.See(svc.Spec.ClusterIP, "spec.clusterIP")
	}
	see(&r, "spec.clusterIPs", svc.Spec.ClusterIPs)
	see(&r, "spec.externalIPs", svc.Spec.ExternalIPs)
	see(&r, "spec.loadBalancerSourceRanges", svc.Spec.LoadBalancerSourceRanges)
	for i := range svc.Status.LoadBalancer.Ingress {
		r.See(svc.Status.LoadBalancer.Ingress[i].IP, "status.loadBalancer.ingress[%d].ip", i)
	}
	return r
}

// sliceSpellings finds old spellings in an EndpointSlice, in the addresses that count.
func sliceSpellings(s *discoveryv1.EndpointSlice) (r kubeaddr.Respelled) {
	for i := range s.Endpoints {
		if addresses := s.Endpoints[i].Addresses; len(addresses) > 0 {
			r.See(addresses[0], "endpoints[%d].addresses[0]", i)
		}
	}
	return r
}

// nodeSpellings finds old spellings in a Node. Addresses of other types are names.
func nodeSpellings(n *corev1.Node) (r kubeaddr.Respelled) {
	if len(n.Spec.PodCIDRs) == 0 {
		r.See(n.Spec.PodCIDR, "spec.podCIDR")
	}
	see(&r, "spec.podCIDRs", n.Spec.PodCIDRs)
	for i, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			r.See(a.Address, "status.addresses[%d].address", i)
		}
	}
	return r
}

// podSpellings finds old spellings in a Pod.
func podSpellings(p *corev1.Pod) (r kubeaddr.Respelled) {
	if len(p.Status.PodIPs) == 0 {
		r.See(p.Status.PodIP, "status.podIP")
	}
	for i, ip := range p.Status.PodIPs {
		r.See(ip.IP, "status.podIPs[%d].ip", i)
	}
	return r
}

func see(r *kubeaddr.Respelled, field string, texts []string) {
	for i, s := range texts {
		r.See(s, "%s[%d]", field, i)
	}
}
