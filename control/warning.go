package control

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// serviceWarnings tells of what an API server would have allocated and a file
// does not say, and of what the Service says to no effect.
func serviceWarnings(svc *corev1.Service) []string {
	if ignored(svc) {
		return nil
	}
	key := serviceKey{svc.Namespace, svc.Name}
	ips := clusterIPs(svc)
	if len(ips) == 0 {
		return []string{fmt.Sprintf("service %s has no clusterIP: no API server assigned one, so it is left out; set spec.clusterIP", key)}
	}
	var warnings []string
	// A LoadBalancer may do without node ports.
	if svc.Spec.Type == corev1.ServiceTypeNodePort {
		for i, p := range svc.Spec.Ports {
			if p.NodePort == 0 {
				warnings = append(warnings, fmt.Sprintf("service %s of type NodePort has no nodePort for port %d/%s: no API server assigned one; set spec.ports[%d].nodePort", key, p.Port, p.Protocol, i))
			}
		}
	}
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

// nodeWarnings tells of a Node object that is missing, or of what is missing in it.
func nodeWarnings(nodes []*corev1.Node, node NodeConfig) []string {
	object := nodeObject(nodes, node.Name)
	var warnings []string
	if object == nil && node.Name != "" && len(nodes) > 0 {
		// Names match exactly, so every endpoint would count as remote.
		warnings = append(warnings, fmt.Sprintf("node %q is none of the cluster's nodes (%s): no endpoint counts as local", node.Name, someNames(nodes)))
	}
	if node.Mode == NodeCIDR {
		switch {
		case object == nil:
			warnings = append(warnings, fmt.Sprintf("mode NodeCIDR: there is no Node object of the name %q: no packet counts as a pod's", node.Name))
		case len(podCIDRs(object)) == 0:
			warnings = append(warnings, fmt.Sprintf("mode NodeCIDR: node %q has no podCIDRs: no packet counts as a pod's", node.Name))
		}
	}
	return warnings
}

// someNames lists nodes, but not more of them than a reader wants.
func someNames(nodes []*corev1.Node) string {
	const shown = 5
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	if len(names) > shown {
		names = append(names[:shown], "...")
	}
	return strings.Join(names, ", ")
}
