package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// dnsPort is the port of DNS servers.
const dnsPort = 53

// nodeLocalDNS is the usual address of NodeLocal DNSCache.
var nodeLocalDNS = netip.AddrPortFrom(netip.AddrFrom4([4]byte{169, 254, 20, 10}), dnsPort)

// noDNS is the finding about a Pod that cannot look up names: the cluster's DNS has no endpoints, or policies allow the Pod no queries to its
// servers. nil: it may be able to.
func (c *Cluster) noDNS(p *corev1.Pod) *Finding {
	if p.Spec.DNSPolicy != "" && p.Spec.DNSPolicy != corev1.DNSClusterFirst {
		return nil
	}
	if svc := c.deadDNS(); svc != nil {
		return &Finding{
			Code: NoEndpoints, Object: objectOf(svc),
			Text: fmt.Sprintf("the source cannot look up the name: %s, the cluster's DNS, has no ready endpoints", objectOf(svc)),
			Do:   fmt.Sprintf("kubectl -n %s get pods,deployments -l %s", svc.Namespace, labels.SelectorFromSet(svc.Spec.Selector)),
		}
	}
	policies := c.policiesFor(p, egress)
	servers, known := c.dnsServers()
	if len(policies) == 0 || !known {
		return nil
	}
	names := policyNames(policies)
	for _, policy := range policies {
		rules, _ := rulesOf(policy, egress)
		anyPort := func(r rule) bool {
			return allowsPort(r.ports, &connection{destination: nodeLocalDNS, protocol: decision.UDP}) ||
				slices.ContainsFunc(r.ports, func(q networkingv1.NetworkPolicyPort) bool { return q.Port != nil && q.Port.StrVal != "" })
		}
		if len(servers) == 0 && slices.ContainsFunc(rules, anyPort) {
			return nil
		}
	}
	for _, s := range append(servers, connection{destination: nodeLocalDNS}) {
		if s.from, s.protocol = p, decision.UDP; c.allow(policies, egress, &s) != denied {
			return nil
		}
	}
	return &Finding{
		Code: PolicyForbids, Object: "NetworkPolicy " + names[0], Field: "spec.egress",
		Text: fmt.Sprintf("the source cannot look up the name, if the network plugin enforces policies: NetworkPolicy %s does not allow egress from Pod %s to DNS servers (%d/UDP)", nearest.Few(names), nameOf(p), dnsPort),
		Do:   "add a rule that allows egress to the Pods of the cluster's DNS",
	}
}

// deadDNS is the Service of the cluster's DNS if it has no ready endpoints; nil: it has some, or is not among the objects.
func (c *Cluster) deadDNS() (dead *corev1.Service) {
	for n, svc := range c.services {
		if n.Namespace != metav1.NamespaceSystem && n.Namespace != "openshift-dns" || !servesDNS(svc) || len(svc.Spec.Selector) == 0 || len(c.slices[n]) == 0 {
			continue
		}
		for _, e := range c.endpointsOf(svc) {
			if isUsable(e) {
				return nil
			}
		}
		dead = svc
	}
	return dead
}

func servesDNS(svc *corev1.Service) bool {
	return slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == dnsPort && protocolOf(p.Protocol) == decision.UDP
	})
}

// dnsServers are connections to the endpoints of the Services for DNS. known is false if the Pods of some are not: whether policies select
// them cannot be told.
func (c *Cluster) dnsServers() (all []connection, known bool) {
	for _, svc := range c.services {
		if !servesDNS(svc) {
			continue
		}
		for s, e := range c.endpointsOf(svc) {
			a, err := kubeaddr.Parse(e.Addresses[0])
			if err != nil || c.owners[a] == nil || c.owners[a].Spec.HostNetwork {
				return nil, false
			}
			for _, q := range s.Ports {
				if q.Port != nil && protocolOf(corev1.Protocol(deref(q.Protocol))) == decision.UDP {
					all = append(all, connection{destination: netip.AddrPortFrom(a, uint16(*q.Port)), to: c.owners[a]})
				}
			}
		}
	}
	return all, true
}
