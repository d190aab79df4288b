package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// validateNode checks the addresses of a Node.
func validateNode(n *corev1.Node, v *validation) {
	if n.Spec.PodCIDR != "" {
		v.prefix("spec.podCIDR", n.Spec.PodCIDR)
	}
	for i, p := range n.Spec.PodCIDRs {
		v.prefix(fmt.Sprintf("spec.podCIDRs[%d]", i), p)
	}
	for i, a := range n.Status.Addresses {
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			v.address(fmt.Sprintf("status.addresses[%d].address", i), a.Address)
		}
	}
}

// validatePod checks the addresses of a Pod; one that does not run yet has none.
func validatePod(p *corev1.Pod, v *validation) {
	for _, a := range []struct{ path, address string }{
		{"status.podIP", p.Status.PodIP},
		{"status.hostIP", p.Status.HostIP},
	} {
		if a.address != "" {
			v.address(a.path, a.address)
		}
	}
	for i, a := range p.Status.PodIPs {
		v.address(fmt.Sprintf("status.podIPs[%d].ip", i), a.IP)
	}
	for i, a := range p.Status.HostIPs {
		v.address(fmt.Sprintf("status.hostIPs[%d].ip", i), a.IP)
	}
}
