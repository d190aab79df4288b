package diagnose

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Network policies are enforced by a network plugin, after the service proxy has translated the destination.
// What follows is what the objects say (API reference, NetworkPolicy of networking.k8s.io/v1).

// allowance is whether policies allow a connection. Of several rules, the highest counts.
type allowance int

const (
	denied  allowance = iota
	unknown           // the objects do not show it
	allowed
)

// direction is that of a policy's rules, seen from the Pod that the policy selects.
type direction networkingv1.PolicyType

const (
	ingress = direction(networkingv1.PolicyTypeIngress)
	egress  = direction(networkingv1.PolicyTypeEgress)
)

// rule is an ingress or an egress rule.
type rule struct {
	ports []networkingv1.NetworkPolicyPort
	peers []networkingv1.NetworkPolicyPeer
}

// rulesOf are the rules of a policy in one direction. ok is false if it has no effect in that direction.
func rulesOf(p *networkingv1.NetworkPolicy, d direction) (rules []rule, ok bool) {
	types := p.Spec.PolicyTypes
	if len(types) == 0 { // the API server's default
		if types = append(types, networkingv1.PolicyTypeIngress); len(p.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	if !slices.Contains(types, networkingv1.PolicyType(d)) {
		return nil, false
	}
	if d == ingress {
		for _, r := range p.Spec.Ingress {
			rules = append(rules, rule{r.Ports, r.From})
		}
	} else {
		for _, r := range p.Spec.Egress {
			rules = append(rules, rule{r.Ports, r.To})
		}
	}
	return rules, true
}

// policiesFor are the policies that select a Pod and have an effect in one direction. Those for Pods in the
// network of their node are not defined.
func (c *Cluster) policiesFor(p *corev1.Pod, d direction) (found []*networkingv1.NetworkPolicy) {
	if p.Spec.HostNetwork {
		return nil
	}
	for _, policy := range c.policies[p.Namespace] {
		if _, ok := rulesOf(policy, d); !ok {
			continue
		}
		if selects(&policy.Spec.PodSelector, p.Labels) {
			found = append(found, policy)
		}
	}
	return found
}

func selects(s *metav1.LabelSelector, of map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(of))
}

// connection is one that policies are about, after the destination was translated.
type connection struct {
	source      netip.Addr
	from        *corev1.Pod // nil: the source is no Pod with an address of its own
	destination netip.AddrPort
	to          *corev1.Pod // nil, likewise
	protocol    decision.Protocol
}

// forbids is why the policies of the destination, or of the source, would drop the connection; nil: the objects show no reason.
func (c *Cluster) forbids(d direction, conn *connection) *Finding {
	selected := conn.to
	if d == egress {
		selected = conn.from
	}
	if selected == nil || conn.to == conn.from {
		return nil
	}
	policies := c.policiesFor(selected, d)
	if c.allow(policies, d, conn) != denied {
		return nil
	}
	what := fmt.Sprintf("%s from %s to %d/%s of %s", strings.ToLower(string(d)), endText(conn.from, conn.source), conn.destination.Port(), conn.protocol, endText(conn.to, conn.destination.Addr()))
	return policyFinding(policies, d, conn.to, what)
}

// endText is an end of a connection: a Pod, or nil with its address.
func endText(p *corev1.Pod, a netip.Addr) string {
	if p == nil {
		return a.String()
	}
	return "Pod " + nameOf(p).String()
}

// policyFinding is about policies that do not allow a connection to a Pod; nil: it is to none.
func policyFinding(policies []*networkingv1.NetworkPolicy, d direction, to *corev1.Pod, what string) *Finding {
	names := policyNames(policies)
	f := &Finding{
		Code: PolicyForbids, Object: "NetworkPolicy " + names[0], Field: "spec",
		Text: fmt.Sprintf("%s %s %s not allow %s; the network plugin drops it, if it enforces policies", verb(len(names), "NetworkPolicy", "NetworkPolicies"), nearest.Few(names), verb(len(names), "does", "do"), what),
		Do:   "add a rule that allows it, or connect from a source that is allowed",
	}
	if port := unknownPort(policies, d, to); port != "" {
		f.Text += fmt.Sprintf(". A rule is for port %q, and no container of Pod %s has a port of that name", port, nameOf(to))
	}
	return f
}

func policyNames(policies []*networkingv1.NetworkPolicy) (names []string) {
	for _, p := range policies {
		names = append(names, nameOf(p).String())
	}
	return names
}

// unknownPort is the name of a port in rules of policies that no container of a Pod has; "": there is none.
func unknownPort(policies []*networkingv1.NetworkPolicy, d direction, pod *corev1.Pod) string {
	if pod == nil || arePrinted([]*corev1.Pod{pod}) {
		return ""
	}
	for _, p := range policies {
		rules, _ := rulesOf(p, d)
		for _, r := range rules {
			for _, q := range r.ports {
				if q.Port != nil && q.Port.Type == intstr.String && !slices.ContainsFunc(containerPorts(pod), func(of corev1.ContainerPort) bool { return of.Name == q.Port.StrVal }) {
					return q.Port.StrVal
				}
			}
		}
	}
	return ""
}

// allow reports whether a rule of the policies allows the connection. Without policies all is allowed.
func (c *Cluster) allow(policies []*networkingv1.NetworkPolicy, d direction, conn *connection) allowance {
	if len(policies) == 0 {
		return allowed
	}
	result := denied
	for _, p := range policies {
		rules, _ := rulesOf(p, d)
		for _, r := range rules {
			if allowsPort(r.ports, conn) {
				result = max(result, c.allowsPeer(r.peers, p.Namespace, d, conn))
			}
		}
	}
	return result
}

// allowsPort reports whether one of the ports is the connection's. An empty list is all ports.
func allowsPort(ports []networkingv1.NetworkPolicyPort, conn *connection) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool {
		if protocolOf(deref(p.Protocol)) != conn.protocol {
			return false
		}
		port := int32(conn.destination.Port())
		switch {
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			return conn.to != nil && slices.ContainsFunc(containerPorts(conn.to), func(q corev1.ContainerPort) bool {
				return q.Name == p.Port.StrVal && q.ContainerPort == port && protocolOf(q.Protocol) == conn.protocol
			})
		case p.EndPort != nil:
			return p.Port.IntVal <= port && port <= *p.EndPort
		}
		return p.Port.IntVal == port
	})
}

// allowsPeer reports whether one of the peers is the other end of the connection. An empty list is everything.
func (c *Cluster) allowsPeer(peers []networkingv1.NetworkPolicyPeer, namespace string, d direction, conn *connection) allowance {
	if len(peers) == 0 {
		return allowed
	}
	address, pod := conn.source, conn.from
	if d == egress {
		address, pod = conn.destination.Addr(), conn.to
	}
	result := denied
	for i := range peers {
		p := &peers[i]
		match := denied
		switch {
		case p.IPBlock != nil:
			match = inBlock(p.IPBlock, address)
		case pod == nil:
		case p.PodSelector != nil && !selects(p.PodSelector, pod.Labels):
		case p.NamespaceSelector != nil:
			match = c.inNamespaces(p.NamespaceSelector, pod.Namespace)
		case pod.Namespace == namespace:
			match = allowed
		}
		result = max(result, match)
	}
	return result
}

// blocks are the addresses that a policy allows as sources.
func blocks(p *networkingv1.NetworkPolicy) (all []string) {
	for _, r := range p.Spec.Ingress {
		for _, peer := range r.From {
			if peer.IPBlock != nil {
				all = append(all, peer.IPBlock.CIDR)
			}
		}
	}
	return all
}

func inBlock(b *networkingv1.IPBlock, a netip.Addr) allowance {
	in := func(cidr string) bool {
		p, err := kubeaddr.ParsePrefix(cidr)
		return err == nil && p.Contains(a)
	}
	if in(b.CIDR) && !slices.ContainsFunc(b.Except, in) {
		return allowed
	}
	return denied
}

// inNamespaces reports whether a selector selects the namespace. Without the Namespace object only its name is
// known.
func (c *Cluster) inNamespaces(s *metav1.LabelSelector, namespace string) allowance {
	of := map[string]string{corev1.LabelMetadataName: namespace}
	known := false
	for _, n := range c.objects.Context.Namespaces {
		if n.Name == namespace {
			known = true
			maps.Copy(of, n.Labels)
		}
	}
	if !known {
		for key := range s.MatchLabels {
			if key != corev1.LabelMetadataName {
				return unknown
			}
		}
		for _, e := range s.MatchExpressions {
			if e.Key != corev1.LabelMetadataName {
				return unknown
			}
		}
	}
	if selects(s, of) {
		return allowed
	}
	return denied
}

// closed reports whether policies allow no connection at all to a Pod's port.
func (c *Cluster) closed(p *corev1.Pod, port uint16, protocol decision.Protocol) *Finding {
	policies := c.policiesFor(p, ingress)
	if len(policies) == 0 {
		return nil
	}
	conn := &connection{destination: netip.AddrPortFrom(netip.Addr{}, port), to: p, protocol: protocol}
	for _, policy := range policies {
		rules, _ := rulesOf(policy, ingress)
		if slices.ContainsFunc(rules, func(r rule) bool { return allowsPort(r.ports, conn) }) {
			return nil
		}
	}
	return policyFinding(policies, ingress, p, "ingress from anywhere to "+strconv.Itoa(int(port))+"/"+protocol.String()+" of Pod "+nameOf(p).String())
}
