package servicetable

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

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
