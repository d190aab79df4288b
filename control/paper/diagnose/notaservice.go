package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// notAService is about a destination that belongs to no Service, as the last node sees it.
func (w *inquiry) notAService(p *decision.Packet) {
	to := p.Destination
	if pod := w.owners[to.Addr()]; pod != nil {
		w.pod(pod, to, p.Protocol)
		return
	}
	if w.config.IgnoreExternalIPs {
		for _, svc := range w.objects.Services {
			if slices.Contains(svc.Spec.ExternalIPs, to.Addr().String()) {
				w.cause(externalIPsIgnored(svc))
				return
			}
		}
	}
	if w.balanced(to, p.Protocol) {
		return
	}
	if node := w.nodes.Node(to.Addr()); node != "" && w.otherProgram(node, to, p.Protocol) {
		return
	}
	if svc := w.endpointAt(to, p.Protocol); svc != nil {
		if f := w.policyAt(nil, to, p.Protocol); f != nil {
			w.cause(*f)
			return
		}
		w.answer.Endpoints = []Endpoint{{Address: to.String(), Node: w.nodes.Node(to.Addr()), Flows: w.flows(to.String(), p.Protocol)}}
		w.answer.abroad = true
		w.otherNote(objectOf(svc), fmt.Sprintf("%s is an endpoint of %s: a packet to its own address reaches it without a service proxy", to, objectOf(svc)))
		return
	}
	w.nothing(to, p.Protocol)
}

// endpointAt is a Service with an endpoint at the destination that is ready; nil: there is none.
func (w *inquiry) endpointAt(to netip.AddrPort, protocol decision.Protocol) *corev1.Service {
	for _, s := range w.table(w.answer.Node).Services() {
		if s.Protocol == protocol && slices.ContainsFunc(s.Endpoints, func(e decision.Endpoint) bool { return e.Ready && e.AddrPort == to }) {
			return w.services[s.Name.Service()]
		}
	}
	return nil
}

// balanced is about a load balancer's address that nodes do not serve. It reports false if the destination is none.
func (w *inquiry) balanced(to netip.AddrPort, protocol decision.Protocol) bool {
	if s := w.balancedPort(to, protocol); s != nil {
		svc := w.services[s.Name.Service()]
		w.take(&decision.Decision{ServicePort: s})
		return w.toPods(svc, w.port, s.Family)
	}
	var ports []string
	for _, svc := range w.balancedAt(to.Addr()) {
		ports = append(ports, portsOf(svc)+" of "+objectOf(svc))
	}
	if len(ports) == 0 {
		return false
	}
	w.cause(Finding{
		Code: NoSuchPort, Text: fmt.Sprintf("the load balancer %s has no port %d/%s; it has %s", to.Addr(), to.Port(), protocol, nearest.Few(ports)),
		Do: "use one of these ports",
	})
	return true
}

// otherProgram is about a port of a node that something else than the service proxy serves, as objects show it.
func (w *inquiry) otherProgram(node string, to netip.AddrPort, protocol decision.Protocol) bool {
	for _, n := range sortedNames(w.pods) {
		p := w.pods[n]
		if p.Spec.NodeName != node {
			continue
		}
		for _, q := range containerPorts(p) {
			if protocolOf(q.Protocol) != protocol {
				continue
			}
			switch number := int32(to.Port()); {
			case p.Spec.HostNetwork && q.ContainerPort == number:
				w.pod(p, to, protocol)
				w.otherNote("Pod "+n.String(), fmt.Sprintf("Pod %s is in the network of %s, and declares port %d", n, node, number))
				return true
			case !p.Spec.HostNetwork && q.HostPort == number && (q.HostIP == "" || q.HostIP == "0.0.0.0" || q.HostIP == "::" || q.HostIP == to.Addr().String()):
				w.hostPort(p, &q, to, protocol)
				return true
			}
		}
	}
	if l := w.objects.Lab; l != nil {
		if slices.ContainsFunc(l.NodePorts(node), func(p labapi.Port) bool { return p.Port == to.Port() && p.Protocol == protocol }) {
			w.otherNote("Node "+node, fmt.Sprintf("a program on %s itself listens on port %d", node, to.Port()))
			return true
		}
	}
	for _, svc := range w.objects.Services {
		if h := svc.Spec.HealthCheckNodePort; h == int32(to.Port()) && protocol == decision.TCP {
			w.healthCheck(svc, node)
			return true
		}
	}
	return false
}

func (w *inquiry) otherNote(object, text string) {
	w.note(Finding{Code: OtherProgram, Object: object, Text: text, Do: "nothing: no Service is involved"})
}

// healthCheck is about the health check node port of a Service on a node.
func (w *inquiry) healthCheck(svc *corev1.Service, node string) {
	says := "200 if it has an endpoint for it that is ready, 503 if not"
	for i := range svc.Spec.Ports {
		if _, cause := w.backends(svc, &svc.Spec.Ports[i], ""); cause.Code == NotShown || w.placesNotShown(svc, "") != nil {
			break
		}
		says = fmt.Sprintf("503, as no endpoint of the Service on %s is ready: load balancers leave the node out", node)
		if slices.ContainsFunc(w.table(node).Service(nameOf(svc)), func(s *decision.ServicePort) bool {
			return slices.ContainsFunc(s.Endpoints, func(e decision.Endpoint) bool { return e.Ready && e.NodeName == node })
		}) {
			says = fmt.Sprintf("200, as it has an endpoint on %s that is ready", node)
			break
		}
	}
	w.note(Finding{
		Code: OtherProgram, Object: objectOf(svc), Field: "spec.healthCheckNodePort",
		Text: fmt.Sprintf("%d is the health check node port of %s: the proxy of %s answers over HTTP: %s", svc.Spec.HealthCheckNodePort, objectOf(svc), node, says),
		Do:   "nothing: load balancers ask this port which nodes have endpoints",
	})
}

// hostPort is about a port of a node that the network plugin translates to a Pod.
func (w *inquiry) hostPort(p *corev1.Pod, port *corev1.ContainerPort, to netip.AddrPort, protocol decision.Protocol) {
	w.otherNote("Pod "+nameOf(p).String(), fmt.Sprintf("%d is a hostPort of Pod %s: the network plugin (portmap), not the service proxy, translates it to port %d of the Pod", to.Port(), nameOf(p), port.ContainerPort))
	for _, a := range w.podParty(p).addrs {
		if decision.FamilyOf(a) == decision.FamilyOf(to.Addr()) {
			w.pod(p, netip.AddrPortFrom(a, uint16(port.ContainerPort)), protocol)
			return
		}
	}
	w.cause(Finding{
		Code: OtherFamily, Object: "Pod " + nameOf(p).String(), Field: "status.podIPs",
		Text: fmt.Sprintf("Pod %s has no %s address", nameOf(p), decision.FamilyOf(to.Addr())), Do: "use the node's address of the other family",
	})
}

// nothing is about a destination that nothing serves, as far as the objects show: it tells what is near.
func (w *inquiry) nothing(to netip.AddrPort, protocol decision.Protocol) {
	if len(w.objects.Services) == 0 && w.objects.Made != nil {
		w.cause(Finding{
			Code: NotShown, Text: fmt.Sprintf("whether a Service has %s is not known: the files contain no Services", to),
			Do: "add the output of kubectl get svc,endpointslices,nodes,pods -A -o yaml",
		})
		return
	}
	node := w.nodes.Node(to.Addr())
	var ports, open []string
	var other *decision.ServicePort // of the other family, with the node port
	for _, s := range w.table(w.answer.Node).Services() {
		switch {
		case node != "" && s.NodePort == to.Port() && s.Protocol == protocol && s.Family != decision.FamilyOf(to.Addr()):
			other = s
		case s.ClusterIP == to.Addr() || slices.Contains(s.ExternalIPs, to.Addr()) || slices.Contains(s.LoadBalancerIPs, to.Addr()):
			ports = append(ports, fmt.Sprintf("%d/%s (%s)", s.Port, s.Protocol, s.Name))
		case s.NodePort != 0 && s.Family == decision.FamilyOf(to.Addr()):
			if s.NodePort == to.Port() && s.Protocol == protocol {
				w.cause(w.nodePort(s, to))
				return
			}
			open = append(open, fmt.Sprintf("%d/%s", s.NodePort, s.Protocol))
		}
	}
	switch {
	case len(ports) > 0 && node == "":
		w.cause(Finding{
			Code: NoSuchPort, Text: fmt.Sprintf("%s has no port %d/%s; it has %s", to.Addr(), to.Port(), protocol, nearest.Few(ports)),
			Do: "use one of these ports",
		})
	case other != nil:
		w.cause(Finding{
			Code: OtherFamily, Object: "Service " + other.Name.Service().String(), Field: "spec.ipFamilies",
			Text: fmt.Sprintf("%d is the node port of %s, which is %s only: it is not open on %s", to.Port(), other.Name, other.Family, to.Addr()),
			Do:   fmt.Sprintf("use an %s address of the node, or make the Service dual-stack (spec.ipFamilyPolicy: PreferDualStack)", other.Family),
		})
	case node != "":
		text, do := "there are no node ports", "check that this is the port that a program on the node itself listens on"
		if len(open) > 0 {
			text, do = "node ports are "+nearest.Few(open), "use one of these, unless a program on the node itself listens on the port"
		}
		if w.objects.Lab == nil && (to.Port() < firstNodePort || to.Port() > lastNodePort) {
			w.answer.Unless = fmt.Sprintf("a program on %s itself listens on the port", node)
		}
		w.cause(Finding{
			Code: UnknownAddress, Object: "Node " + node,
			Text: fmt.Sprintf("no Service has node port %d/%s; %s", to.Port(), protocol, text),
			Do:   do,
		})
	case w.pending(to.Addr()) != nil:
		w.cause(noAddressYet(w.pending(to.Addr())))
	case !w.from.outside && w.objects.Lab == nil && !w.nearCluster(to.Addr()) && w.outsideCluster(to, protocol):
	case w.from.outside && len(w.objects.Nodes) == 0 && !w.nearCluster(to.Addr()):
		w.cause(Finding{
			Code: NotShown, Text: fmt.Sprintf("no Service has the address %s or the node port %d/%s, no Pod has the address, and whether a node does is not known: the objects contain no Nodes", to.Addr(), to.Port(), protocol),
			Do: "add the output of kubectl get svc,nodes -A -o yaml",
		})
	default:
		w.cause(Finding{
			Code: UnknownAddress, Text: fmt.Sprintf("no Service and no Pod has the address %s", to.Addr()),
			Do: "check the address: a Service that was deleted and recreated has a new one",
		})
	}
}

// askedAddress are the annotations that ask MetalLB, kube-vip or Cilium for addresses.
var askedAddress = regexp.MustCompile(`(?i)/(loadBalancerIPs|lb-ipam-ips)$|^lbipam\.cilium\.io/ips$`)

// pending is the Service that asks for the address as that of its load balancer, and does not have it; nil: there is none.
func (w *inquiry) pending(a netip.Addr) *corev1.Service {
	for _, svc := range w.objects.Services {
		asked := []string{svc.Spec.LoadBalancerIP}
		for key, value := range svc.Annotations {
			if askedAddress.MatchString(key) {
				asked = append(asked, strings.Split(value, ",")...)
			}
		}
		if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && slices.ContainsFunc(asked, func(text string) bool {
			ip, err := kubeaddr.Parse(strings.TrimSpace(text))
			return err == nil && ip == a
		}) {
			return svc
		}
	}
	return nil
}

// nearCluster reports whether an address may be one of a Service or Pod that is gone: it has the first half of its bits with another
// one in common.
func (w *inquiry) nearCluster(a netip.Addr) bool {
	near := func(other netip.Addr) bool {
		p, err := other.Prefix(other.BitLen() / 2)
		return err == nil && p.Contains(a)
	}
	for ip := range w.clusterIPs {
		if near(ip) {
			return true
		}
	}
	for ip := range w.owners {
		if near(ip) {
			return true
		}
	}
	return w.nodes.Pod(a) != ""
}

// shared are the addresses of RFC 6598, which clusters use like private ones.
var shared = netip.MustParsePrefix("100.64.0.0/10")

// outsideCluster is about a destination that nothing in the cluster has: only the source's policies concern it. It reports false if it is
// as likely that nothing has the address.
func (w *inquiry) outsideCluster(to netip.AddrPort, protocol decision.Protocol) bool {
	a := to.Addr()
	switch f := w.policyAt(nil, to, protocol); {
	case f != nil:
		w.cause(*f)
	case !a.IsGlobalUnicast() || a.IsPrivate() || shared.Contains(a):
		w.answer.Unless = "something has the address that is not among the objects"
		return false
	default:
		w.note(Finding{
			Code: OtherProgram, Text: fmt.Sprintf("no Service, Pod or Node has the address %s: it is outside of the cluster, and no service proxy translates it", a),
			Do: "check that it answers from the source, and that the nodes masquerade what Pods send there; objects do not show it",
		})
		w.answer.abroad = true
		w.answer.Unless = to.String() + " does not answer the source, which objects do not show"
	}
	return true
}

// isExternal reports whether the address is an ExternalIP of a Node that has an InternalIP too.
func (w *inquiry) isExternal(a netip.Addr) bool {
	return slices.ContainsFunc(w.objects.Nodes, func(n *corev1.Node) bool {
		types := make(map[corev1.NodeAddressType]bool)
		for _, o := range n.Status.Addresses {
			types[o.Type] = types[o.Type] || o.Type == corev1.NodeInternalIP || o.Address == a.String()
		}
		return types[corev1.NodeInternalIP] && types[corev1.NodeExternalIP]
	})
}

// nodePort is about a node port at an address where it is not open.
func (w *inquiry) nodePort(s *decision.ServicePort, to netip.AddrPort) Finding {
	f := Finding{Object: "Service " + s.Name.Service().String(), Field: "spec.ports"}
	if len(w.objects.Nodes) == 0 && !to.Addr().IsLoopback() {
		svc := cmp.Or(w.services[s.Name.Service()], new(corev1.Service))
		for i := range svc.Spec.Ports { // without endpoints, the node does not matter
			if svc.Spec.Ports[i].Name == s.Name.Port {
				if ready, cause := w.backends(svc, &svc.Spec.Ports[i], s.Family.String()); !ready && cause.Code != NotShown {
					w.answer.Record = nil
					return cause
				}
			}
		}
		f.Code = NotShown
		f.Text = fmt.Sprintf("%d is the node port of %s, and whether a node has the address %s is not known: the objects contain no Nodes", to.Port(), s.Name, to.Addr())
		f.Do = "add the output of kubectl get nodes -o yaml"
		return f
	}
	if node := w.nodes.Node(to.Addr()); node == "" && !to.Addr().IsLoopback() {
		f.Code = UnknownAddress
		f.Text = fmt.Sprintf("%d is the node port of %s, but no Node has the address %s", to.Port(), s.Name, to.Addr())
		f.Do = "use the address of a Node, or name the Node"
		w.answer.Unless = fmt.Sprintf("%s is a further address of a node, such as a virtual IP, which Node objects do not show", to.Addr())
		return f
	}
	f.Code = NodePortClosed
	f.Text = fmt.Sprintf("%d is the node port of %s, but node ports are not open on %s", to.Port(), s.Name, to.Addr())
	f.Do = "use another address of the node, or change --nodeport-addresses of the proxy"
	switch {
	case to.Addr().IsLoopback(): // in other modes, no value of --nodeport-addresses opens them there
		f.Do = "use another address of the node; only mode iptables of kube-proxy opens node ports on 127.0.0.1, unless --localhost-nodeports=false or --nodeport-addresses excludes it"
	case w.from.outside && w.isExternal(to.Addr()):
		w.answer.Unless = fmt.Sprintf("the network of the cloud translates %s to an internal address of the node, so that the node does not see it", to.Addr())
	}
	return f
}
