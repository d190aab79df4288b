package servicetable

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// addressesOf returns the addresses of a family, each once.
func addressesOf(f decision.Family, texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range texts {
		a, err := kubeaddr.Parse(s)
		if err == nil && decision.FamilyOf(a) == f && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// rangesOf returns the prefixes of a family; none, if one of them is everything. White
// space around them is let pass, as the API server does.
func rangesOf(f decision.Family, texts []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, s := range texts {
		p, err := kubeaddr.ParsePrefix(strings.TrimSpace(s))
		if err != nil || decision.FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		prefixes = append(prefixes, p)
	}
	return prefixes
}

// serviceSpellings finds old spellings in a Service.
func serviceSpellings(svc *corev1.Service) (r kubeaddr.Respelled) {
	if len(svc.Spec.ClusterIPs) == 0 {
		r.See("spec.clusterIP", svc.Spec.ClusterIP)
	}
	see(&r, "spec.clusterIPs", svc.Spec.ClusterIPs)
	see(&r, "spec.externalIPs", svc.Spec.ExternalIPs)
	see(&r, "spec.loadBalancerSourceRanges", svc.Spec.LoadBalancerSourceRanges)
	for i := range svc.Status.LoadBalancer.Ingress {
		r.See(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), svc.Status.LoadBalancer.Ingress[i].IP)
	}
	return r
}

// sliceSpellings finds old spellings in an EndpointSlice, in the addresses that count.
func sliceSpellings(s *discoveryv1.EndpointSlice) (r kubeaddr.Respelled) {
	for i := range s.Endpoints {
		if len(s.Endpoints[i].Addresses) > 0 && kubeaddr.Plain(s.Endpoints[i].Addresses[0]) != "" {
			r.See(fmt.Sprintf("endpoints[%d].addresses[0]", i), s.Endpoints[i].Addresses[0])
		}
	}
	return r
}

// nodeSpellings finds old spellings in a Node. Addresses of other types are names.
func nodeSpellings(n *corev1.Node) (r kubeaddr.Respelled) {
	if len(n.Spec.PodCIDRs) == 0 {
		r.See("spec.podCIDR", n.Spec.PodCIDR)
	}
	see(&r, "spec.podCIDRs", n.Spec.PodCIDRs)
	for i, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			r.See(fmt.Sprintf("status.addresses[%d].address", i), a.Address)
		}
	}
	return r
}

// podSpellings finds old spellings in a Pod.
func podSpellings(p *corev1.Pod) (r kubeaddr.Respelled) {
	if len(p.Status.PodIPs) == 0 {
		r.See("status.podIP", p.Status.PodIP)
	}
	for i, ip := range p.Status.PodIPs {
		if kubeaddr.Plain(ip.IP) != "" {
			r.See(fmt.Sprintf("status.podIPs[%d].ip", i), ip.IP)
		}
	}
	return r
}

func see(r *kubeaddr.Respelled, field string, texts []string) {
	for i, s := range texts {
		r.See(fmt.Sprintf("%s[%d]", field, i), s)
	}
}

// PodAddresses are the addresses of a pod, each once, in the order of its status. Texts that are no address
// are left out.
func PodAddresses(p *corev1.Pod) (addrs []netip.Addr) {
	for _, ip := range append([]corev1.PodIP{{IP: p.Status.PodIP}}, p.Status.PodIPs...) {
		addrs = appendAddress(addrs, ip.IP)
	}
	return addrs
}

// NodeAddresses are the addresses of a node, each once, in the order of its status. Its host names are left
// out.
func NodeAddresses(n *corev1.Node) (addrs []netip.Addr) {
	for _, a := range n.Status.Addresses {
		addrs = appendAddress(addrs, a.Address)
	}
	return addrs
}

func appendAddress(addrs []netip.Addr, text string) []netip.Addr {
	if a, err := kubeaddr.Parse(text); err == nil && !slices.Contains(addrs, a) {
		addrs = append(addrs, a)
	}
	return addrs
}

// PodEnded reports whether a pod has ended: its addresses may be another one's.
func PodEnded(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
