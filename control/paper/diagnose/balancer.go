package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Nodes serve the addresses of a load balancer themselves, unless its ipMode is Proxy. Then, and with a name instead of
// an address, packets go to the load balancer, which sends them to a node port, or to Pods if there is none.

// proxied reports whether nodes leave packets to a load balancer's ingress.
func proxied(i *corev1.LoadBalancerIngress) bool {
	return i.IP == "" || i.IPMode != nil && *i.IPMode != corev1.LoadBalancerIPModeVIP
}

// balancers are the addresses and names of the Service's load balancer that nodes do not serve.
func balancers(svc *corev1.Service) (names []string) {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	for i := range svc.Status.LoadBalancer.Ingress {
		switch in := &svc.Status.LoadBalancer.Ingress[i]; {
		case !proxied(in):
		case in.IP != "":
			names = append(names, in.IP)
		case in.Hostname != "":
			names = append(names, in.Hostname)
		}
	}
	return names
}

// balancedAt are the Services with a load balancer at the address that nodes do not serve.
func (c *Cluster) balancedAt(a netip.Addr) (list []*corev1.Service) {
	for _, svc := range c.objects.Services {
		for _, text := range balancers(svc) {
			if ip, err := kubeaddr.Parse(text); err == nil && ip == a {
				list = append(list, svc)
				break
			}
		}
	}
	return list
}

// balancedAs is the Service whose load balancer has the name in DNS; nil: there is none.
func (c *Cluster) balancedAs(host string) *corev1.Service {
	for _, svc := range c.objects.Services {
		if slices.ContainsFunc(balancers(svc), func(name string) bool { return name == strings.TrimSuffix(host, ".") }) {
			return svc
		}
	}
	return nil
}

// balancedPort is the service port to which the load balancer at the destination sends a packet; nil: there is none.
func (w *inquiry) balancedPort(to netip.AddrPort, protocol decision.Protocol) *decision.ServicePort {
	t := w.table(w.nodes.some())
	for _, svc := range w.balancedAt(to.Addr()) {
		for _, s := range t.Service(nameOf(svc)) {
			if s.Port == to.Port() && s.Protocol == protocol && s.Family == decision.FamilyOf(to.Addr()) {
				return s
			}
		}
	}
	return nil
}

// passBalancer follows the packet through the load balancer at its destination, if there is one, to a node port.
func (w *inquiry) passBalancer(p *decision.Packet) {
	s := w.balancedPort(p.Destination, p.Protocol)
	if s == nil || s.NodePort == 0 {
		return
	}
	source, _ := decision.AddressOf(w.outsiders(), s.Family)
	node, at := w.arrival(source, func(n string) (netip.AddrPort, bool) {
		a, ok := decision.AddressOf(w.nodes.addresses[n], s.Family)
		return netip.AddrPortFrom(a, s.NodePort), ok
	})
	if node == "" {
		return
	}
	w.behindBalancer(w.services[s.Name.Service()])
	w.hop(Place{node, "a guess: the load balancer may send packets to any node"}, w.packetOn(source, at))
}

// behindBalancer notes what a load balancer does that nodes do not. Source ranges are its own to apply.
func (w *inquiry) behindBalancer(svc *corev1.Service) {
	w.note(Finding{
		Code: BehindBalancer, Object: objectOf(svc), Field: "status.loadBalancer",
		Text: fmt.Sprintf("nodes do not serve %s: packets go to the load balancer of %s, which sends them to a node port, or to Pods", nearest.Few(balancers(svc)), objectOf(svc)),
		Do:   "check the load balancer and its health checks: the objects do not show them",
	})
	ranges := svc.Spec.LoadBalancerSourceRanges
	if len(ranges) > 0 && !slices.ContainsFunc(ranges, func(text string) bool {
		p, err := kubeaddr.ParsePrefix(strings.TrimSpace(text))
		return err == nil && (p.Bits() == 0 || w.from.outside && slices.ContainsFunc(w.from.addrs, p.Contains))
	}) {
		w.answer.Unless = fmt.Sprintf("the load balancer keeps out sources that are not in spec.loadBalancerSourceRanges (%s)", strings.Join(ranges, ", "))
	}
}

// toPods is about a load balancer that has no node port to send to, and so sends to Pods. It reports false if the Service
// has no load balancer that nodes do not serve.
func (w *inquiry) toPods(svc *corev1.Service, port *corev1.ServicePort, family decision.Family) bool {
	if len(balancers(svc)) == 0 {
		return false
	}
	w.behindBalancer(svc)
	if ready, cause := w.backends(svc, port, family.String()); !ready {
		w.cause(cause)
	}
	return true
}
