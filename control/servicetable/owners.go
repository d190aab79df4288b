package servicetable

import (
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Owners maps addresses to pods and nodes. The zero value is empty. It is safe for concurrent
// use.
type Owners struct {
	mu        sync.RWMutex
	pods      map[netip.Addr]types.NamespacedName
	places    map[types.NamespacedName]place
	nodes     map[netip.Addr]string
	addresses map[string][]netip.Addr // of nodes
}

// place is where a pod is.
type place struct {
	node      string
	addresses []netip.Addr
}

// Owner returns the owner of the address: a pod or a node. It is a [flow.Names].
func (o *Owners) Owner(a netip.Addr) flow.Owner {
	a = a.Unmap()
	o.mu.RLock()
	defer o.mu.RUnlock()
	if name, ok := o.pods[a]; ok {
		return flow.Owner{Pod: name.String(), Node: o.places[name].node}
	}
	return flow.Owner{Node: o.nodes[a]}
}

// Pods calls each for every known pod, in no order.
func (o *Owners) Pods(each func(name, node string, addresses []netip.Addr)) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for name, p := range o.places {
		each(name.String(), p.node, p.addresses)
	}
}

// Nodes calls each for every known node, in no order.
func (o *Owners) Nodes(each func(name string, addresses []netip.Addr)) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for name, addresses := range o.addresses {
		each(name, addresses)
	}
}

// update takes an update's pods and nodes over. Pods in the node's own network, whose
// address is not theirs alone, and those that have ended are left out.
func (o *Owners) update(u Update) {
	if len(u.Pods)+len(u.Nodes) == 0 && !u.All {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if u.All || o.pods == nil {
		o.pods, o.places = make(map[netip.Addr]types.NamespacedName), make(map[types.NamespacedName]place)
		o.nodes, o.addresses = make(map[netip.Addr]string), make(map[string][]netip.Addr)
	}
	for name, pod := range u.Pods {
		o.updatePod(name, pod)
	}
	for name, node := range u.Nodes {
		forget(o.nodes, o.addresses[name], name)
		delete(o.addresses, name)
		if node == nil {
			continue
		}
		o.addresses[name] = NodeAddresses(node)
		for _, a := range o.addresses[name] {
			o.nodes[a] = name
		}
	}
}

func (o *Owners) updatePod(name types.NamespacedName, pod *corev1.Pod) {
	forget(o.pods, o.places[name].addresses, name)
	delete(o.places, name)
	if pod == nil || pod.Spec.HostNetwork || PodEnded(pod) {
		return
	}
	p := place{node: pod.Spec.NodeName, addresses: PodAddresses(pod)}
	for _, a := range p.addresses {
		o.pods[a] = name
	}
	o.places[name] = p
}

// forget removes addresses of an owner, unless they have another owner by now.
func forget[T comparable](owners map[netip.Addr]T, addresses []netip.Addr, owner T) {
	for _, a := range addresses {
		if owners[a] == owner {
			delete(owners, a)
		}
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
