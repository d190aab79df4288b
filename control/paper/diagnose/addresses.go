package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// externalIPsIgnored is the finding of a Service whose externalIPs have no effect.
func externalIPsIgnored(svc *corev1.Service) Finding {
	return Finding{
		Code: ExternalIPsIgnored, Object: objectOf(svc), Field: "spec.externalIPs",
		Text: fmt.Sprintf("the externalIPs of %s have no effect: the feature gate AllowServiceExternalIPs is off", objectOf(svc)),
		Do:   "use type LoadBalancer, or Gateway API; the proxy's setting featureGates.AllowServiceExternalIPs turns them on",
	}
}

// inCIDRs checks whether the cluster IPs are in the service CIDRs, if these are known.
func (e *examination) inCIDRs(svc *corev1.Service) {
	cidrs := e.objects.Context.ServiceCIDRs
	for _, text := range svc.Spec.ClusterIPs {
		a, err := kubeaddr.Parse(text)
		if err != nil {
			continue
		}
		e.addAny(e.podNetwork(svc, a))
		if len(cidrs) == 0 {
			continue
		}
		var family []string // those of the address's family
		inside := false
		for _, c := range cidrs {
			for _, text := range c.Spec.CIDRs {
				if p, err := kubeaddr.ParsePrefix(text); err == nil && decision.FamilyOf(p.Addr()) == decision.FamilyOf(a) {
					family, inside = append(family, text), inside || p.Contains(a)
				}
			}
		}
		if !inside && len(family) > 0 {
			e.add(Finding{
				Code: OutsideCIDR, Object: objectOf(svc), Field: "spec.clusterIPs",
				Text: fmt.Sprintf("the cluster IP %s of %s is in none of the service CIDRs (%s): another network may use it", a, objectOf(svc), nearest.Few(family)),
				Do:   "delete and recreate the Service, or add a ServiceCIDR",
			})
		}
	}
}

// podNetwork is the finding of a cluster IP that a Pod has, or may get; nil: none.
func (e *examination) podNetwork(svc *corev1.Service, a netip.Addr) *Finding {
	f := &Finding{Code: OutsideCIDR, Object: objectOf(svc), Field: "spec.clusterIPs", Do: "delete and recreate the Service with an address that is in no network of Pods or Nodes"}
	if p := e.owners[a]; p != nil {
		f.Text = fmt.Sprintf("the cluster IP %s of %s is the address of Pod %s: what is sent to the Pod at a port of the Service goes to the Service", a, objectOf(svc), nameOf(p))
		return f
	}
	for _, n := range e.objects.Nodes {
		for _, text := range n.Spec.PodCIDRs {
			if p, err := kubeaddr.ParsePrefix(text); err == nil && p.Contains(a) {
				f.Text = fmt.Sprintf("the cluster IP %s of %s is in the pod CIDR %s of node %s: a Pod may get it", a, objectOf(svc), text, n.Name)
				return f
			}
		}
	}
	return nil
}

// sharedAddresses checks whether two ready Pods have one address.
func (e *examination) sharedAddresses() {
	with := make(map[netip.Addr]*corev1.Pod)
	for _, n := range sortedNames(e.pods) {
		p := e.pods[n]
		if p.Spec.HostNetwork || servicetable.PodEnded(p) || p.DeletionTimestamp != nil || e.templateOf(p) != nil || !isReady(p) {
			continue
		}
		for _, a := range servicetable.PodAddresses(p) {
			other := with[a]
			if other == nil {
				with[a] = p
				continue
			}
			e.add(Finding{
				Code: SharedAddress, Object: "Pod " + nameOf(p).String(), Field: "status.podIP",
				Text: fmt.Sprintf("Pods %s%s and %s%s have the same address, %s: what is sent to one of them may reach the other, or neither", nameOf(other), onNode(other), nameOf(p), onNode(p), a),
				Do:   "delete one of the Pods, and check the network plugin's management of addresses, and that the spec.podCIDR of the nodes do not overlap",
			})
		}
	}
}

// podsOutside compares the network that kube-proxy takes for that of the Pods with their addresses.
func (e *examination) podsOutside() {
	if e.proxy == nil || e.proxy.DetectLocalMode != "" && e.proxy.DetectLocalMode != string(servicetable.ClusterCIDR) || e.config.MasqueradeAll {
		return
	}
	var outside []string
	for _, n := range sortedNames(e.pods) {
		p := e.pods[n]
		if p.Spec.HostNetwork || servicetable.PodEnded(p) || e.templateOf(p) != nil {
			continue
		}
		for _, a := range servicetable.PodAddresses(p) {
			is := func(c netip.Prefix) bool { return c.Addr().Is4() == a.Is4() }
			if of := e.config.ClusterCIDRs; slices.ContainsFunc(of, is) && !slices.ContainsFunc(of, func(c netip.Prefix) bool { return c.Contains(a) }) {
				outside = append(outside, fmt.Sprintf("%s (%s)", n, a))
			}
		}
	}
	if len(outside) > 0 {
		e.add(Finding{
			Code: PodsOutside, Object: "ConfigMap kube-system/kube-proxy", Field: "clusterCIDR",
			Text: fmt.Sprintf(podsOutsideText, prefixes(e.config.ClusterCIDRs), nearest.Few(outside)),
			Do:   podsOutsideRemedy,
		})
	}
}

// onNode is " on node-a"; empty if the Pod has no node.
func onNode(p *corev1.Pod) string {
	if p.Spec.NodeName == "" {
		return ""
	}
	return " on " + p.Spec.NodeName
}

// addresses checks the addresses of all Services.
func (e *examination) addresses() {
	t := e.table(e.nodes.some())
	opens := map[decision.Family]bool{decision.IPv4: e.opensNodePorts(decision.IPv4), decision.IPv6: e.opensNodePorts(decision.IPv6)}
	for _, c := range t.Conflicts() {
		e.add(Finding{Code: ClaimedTwice, Text: c.Error(), Do: "give each Service its own addresses and ports"})
	}
	for _, s := range t.Services() {
		for _, a := range s.ExternalIPs {
			if n := e.nodes.Node(a); n != "" {
				e.add(Finding{
					Code: NodeAddress, Object: "Service " + s.Name.Service().String(), Field: "spec.externalIPs",
					Text: fmt.Sprintf("%s is an address of node %s: the Service takes all connections to its port %d, even those to programs on the node", a, n, s.Port),
					Do:   "use a node port, or an address that no node has: in IPVS mode, kube-proxy gives it to every node, and no other one reaches this node any more",
				})
			}
		}
		if s.NodePort != 0 && !opens[s.Family] {
			e.add(Finding{
				Code: AllClosed, Object: "Service " + s.Name.Service().String(), Field: "spec.ports.nodePort",
				Text: fmt.Sprintf("node port %d is not open on any %s address of any node: --nodeport-addresses excludes them (%s)", s.NodePort, s.Family, prefixes(e.config.NodePortAddresses)),
				Do:   "change --nodeport-addresses of the proxy",
			})
		}
	}
}

func prefixes(list []netip.Prefix) string { return strings.Join(texts(list), ", ") }
