package crossnode

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// Places are where addresses are.
type Places struct {
	PodCIDRs []PodCIDR

	nodes map[netip.Addr]string // by an address of the node
	pods  map[netip.Addr]string // the node of a pod with the address
}

// PodCIDR is a prefix of a node's pods.
type PodCIDR struct {
	netip.Prefix
	Node string
}

// PlacesOf are the places that objects show.
func PlacesOf(nodes []*corev1.Node, pods []*corev1.Pod) *Places {
	p := &Places{nodes: make(map[netip.Addr]string), pods: make(map[netip.Addr]string)}
	for _, n := range nodes {
		for _, a := range servicetable.NodeAddresses(n) {
			p.AddNode(n.Name, a)
		}
		for _, prefix := range servicetable.PodCIDRs(n) {
			p.PodCIDRs = append(p.PodCIDRs, PodCIDR{prefix, n.Name})
		}
	}
	for _, pod := range pods {
		if pod.Spec.HostNetwork || servicetable.PodEnded(pod) || pod.Spec.NodeName == "" {
			continue
		}
		for _, a := range servicetable.PodAddresses(pod) {
			p.pods[a] = pod.Spec.NodeName
		}
	}
	return p
}

// Pod is the node of the pod with the address; "" if it is none, or not known.
func (p *Places) Pod(a netip.Addr) string {
	if n := p.pods[a]; n != "" {
		return n
	}
	if i := slices.IndexFunc(p.PodCIDRs, func(c PodCIDR) bool { return c.Contains(a) }); i >= 0 {
		return p.PodCIDRs[i].Node
	}
	return ""
}

// AddNode adds an address of a node, unless another node has it.
func (p *Places) AddNode(node string, a netip.Addr) { p.nodes[a] = cmp.Or(p.nodes[a], node) }

// Node is the node that has the address; "" if none has.
func (p *Places) Node(a netip.Addr) string { return p.nodes[a] }

// Origin is the node that decides a packet first: the source's node or, from outside, the one with the destination's
// address; "" if it is not known.
func (p *Places) Origin(source, destination netip.Addr) string {
	return cmp.Or(p.Node(source), p.Pod(source), p.Node(destination))
}
