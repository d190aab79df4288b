package diagnose

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// ObjectsOf are objects with the Services that a node's rules show, and the node with its addresses. host is nil if these are
// not known.
func ObjectsOf(name string, nodes []*audit.Node, host *netfilter.Host) *manifest.Objects {
	read := audit.NewObjects(name, nodes...)
	objects := &manifest.Objects{}
	objects.Services, objects.EndpointSlices = read.Services, read.EndpointSlices
	node := cmp.Or(read.Node, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if host != nil && host.Complete() {
		node.Status.Addresses = nil
	}
	addAddresses(node, host)
	objects.Nodes = []*corev1.Node{node}
	return objects
}

// AddAddresses gives a Node object the further addresses that its host has, such as those of bridges: kube-proxy serves node ports at them, too.
// Addresses of Services are left out.
func AddAddresses(objects *manifest.Objects, name string, host *netfilter.Host) {
	for _, n := range objects.Nodes {
		if n.Name == name {
			addAddresses(n, host, serviceAddresses(objects)...)
		}
	}
}

func addAddresses(node *corev1.Node, host *netfilter.Host, but ...string) {
	if host == nil || !host.Complete() {
		return
	}
	for _, i := range host.Interfaces {
		for _, a := range i.Addresses {
			addr := a.Prefix.Addr()
			known := slices.ContainsFunc(node.Status.Addresses, func(o corev1.NodeAddress) bool { return o.Address == addr.String() })
			if i.Name != netfilter.IPVSDevice && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() && !known && !slices.Contains(but, addr.String()) {
				node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
			}
		}
	}
}

func serviceAddresses(objects *manifest.Objects) (all []string) {
	for _, s := range objects.Services {
		all = append(append(all, s.Spec.ClusterIPs...), s.Spec.ExternalIPs...)
		for _, i := range s.Status.LoadBalancer.Ingress {
			all = append(all, i.IP)
		}
	}
	return all
}

// NotExamined is the scope of an examination without rules of a family, for a reason.
func NotExamined(family iptables.Family, why string) *Examined {
	return &Examined{Family: family.String(), Proxy: "not known: there are no rules", Sources: []string{}, Not: []string{why}, Guesses: []string{}}
}
