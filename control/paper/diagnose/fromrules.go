package diagnose

import (
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
	node := read.Node
	if node == nil {
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	if host != nil && host.Complete() {
		node.Status.Addresses = nil
		for _, i := range host.Interfaces {
			for _, a := range i.Addresses {
				if addr := a.Prefix.Addr(); i.Name != netfilter.IPVSDevice && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
					node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
				}
			}
		}
	}
	objects.Nodes = []*corev1.Node{node}
	return objects
}

// NotExamined is the scope of an examination without rules of a family, for a reason.
func NotExamined(family iptables.Family, why string) *Examined {
	return &Examined{Family: family.String(), Proxy: "not known: there are no rules", Sources: []string{}, Not: []string{why}, Guesses: []string{}}
}
