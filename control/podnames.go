package control

import (
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodNames knows which pod has which address. The zero value knows none. It is safe
// for concurrent use.
type PodNames struct {
	mu        sync.RWMutex
	names     map[netip.Addr]types.NamespacedName
	addresses map[types.NamespacedName][]netip.Addr
}

// Name gives the namespace/name of the pod that has the address; empty: none is known.
func (p *PodNames) Name(a netip.Addr) string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	name, ok := p.names[a.Unmap()]
	if !ok {
		return ""
	}
	return name.String()
}

// update takes an update's pods over. Those in the node's own network, whose address is
// not theirs alone, and those that have ended are left out.
func (p *PodNames) update(u Update) {
	if len(u.Pods) == 0 && !u.All {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if u.All || p.names == nil {
		p.names, p.addresses = make(map[netip.Addr]types.NamespacedName), make(map[types.NamespacedName][]netip.Addr)
	}
	for name, pod := range u.Pods {
		for _, a := range p.addresses[name] {
			if p.names[a] == name { // another pod may have got it by now
				delete(p.names, a)
			}
		}
		delete(p.addresses, name)
		if pod == nil || pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, ip := range append([]corev1.PodIP{{IP: pod.Status.PodIP}}, pod.Status.PodIPs...) {
			if a, err := parseAddr(ip.IP); err == nil {
				p.names[a.Unmap()] = name
				p.addresses[name] = append(p.addresses[name], a.Unmap())
			}
		}
	}
}
