package derivation

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// serviceNames are names of all services.
func (d *derivation) serviceNames(of func(*decision.ServicePort) string) (names []string) {
	for _, s := range d.services {
		names = append(names, of(s))
	}
	return names
}

// takeEndpoints makes hosts for the endpoints of the services that Nodes and Pods do not
// describe.
func (d *derivation) takeEndpoints() error {
	if len(d.services) == 0 {
		return errors.New("the objects contain no Services with a ClusterIP: a lab requires those of a cluster with their EndpointSlices; kubectl get svc,endpointslices,nodes,pods -A -o yaml prints all")
	}
	for _, s := range d.services {
		d.namesPods = d.namesPods || slices.ContainsFunc(s.Endpoints, func(e decision.Endpoint) bool { return e.Pod != "" })
	}
	for _, n := range d.options.Namespaces {
		if !slices.ContainsFunc(d.services, func(s *decision.ServicePort) bool { return s.Name.Namespace == n }) {
			return fmt.Errorf("no Service in namespace %q%s", n, nearest.Hint(n, d.serviceNames(func(s *decision.ServicePort) string { return s.Name.Namespace })))
		}
	}
	for _, n := range d.options.Services {
		if !slices.ContainsFunc(d.services, func(s *decision.ServicePort) bool { return s.Name.Service() == n }) {
			return fmt.Errorf("no Service %s%s", n, nearest.Hint(n.String(), d.serviceNames(func(s *decision.ServicePort) string { return s.Name.Service().String() })))
		}
	}
	undeclaring := make(map[*derivedPod]bool) // pods whose containers declare no ports: they listen on those of endpoints
	for _, s := range d.services {
		wanted := d.options.wants(s.Name.Namespace) || slices.Contains(d.options.Services, s.Name.Service())
		silent := false
		var undeclared []string
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			h, err := d.endpointHost(s, e)
			if err != nil {
				return fmt.Errorf("endpoint %s of Service %s: %w", e.AddrPort, s.Name.Service(), err)
			}
			if h == nil {
				continue
			}
			port := labapi.Port{Port: e.AddrPort.Port(), Protocol: s.Protocol}
			if s.Name.Service() == labfile.ClusterDNS && s.Port == dnsPort {
				port.Server = labapi.DNSServer
			}
			switch p, _ := h.(*derivedPod); {
			case p == nil || !p.known || s.Protocol == decision.SCTP || labfile.PortAt(p.Ports, port.Port, port.Protocol) >= 0:
				h.serve(port)
			case p.declared:
				undeclared = append(undeclared, fmt.Sprintf("%s of pod %s, which declares %s", e.AddrPort, p.FullName(), portTexts(p.Ports)))
			default:
				undeclaring[p] = true
				h.serve(port)
			}
			silent = silent || s.Protocol == decision.SCTP
			if wanted {
				h.choose()
			}
		}
		if len(undeclared) > 0 && wanted {
			d.guess("Service %s: no container declares the port of these endpoints, so nothing listens there; check targetPort: %s", s.Name, nearest.Some(undeclared))
		}
		if silent && wanted {
			d.guess("Service %s: its SCTP endpoints do not reply: the lab's servers support TCP and UDP", s.Name)
		}
	}
	var names []string
	for _, p := range d.pods {
		if undeclaring[p] && (p.chosen || !d.options.hasSelection()) {
			names = append(names, p.FullName())
		}
	}
	if len(names) > 0 {
		d.guess("these pods listen on the ports of their endpoints, because their containers declare none; a wrong targetPort is not noticed: %s", nearest.Some(names))
	}
	return nil
}

// portTexts lists ports as in "80/TCP, 53/UDP".
func portTexts(ports []labapi.Port) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	}
	return nearest.Some(texts)
}

const dnsPort = 53

// apiServer is the Service whose endpoints are never pods.
var apiServer = decision.ServiceName{Namespace: "default", Name: "kubernetes"}

// endpointHost finds or makes the host of an endpoint; nil: no host can have its address.
func (d *derivation) endpointHost(s *decision.ServicePort, e *decision.Endpoint) (host, error) {
	a := e.AddrPort.Addr()
	if !parseAddr(a.String()).IsValid() {
		return nil, nil
	}
	if h := d.at[a]; h != nil {
		return h, nil
	}
	var n *derivedNode
	if e.NodeName != "" {
		var err error
		if n, err = d.node(e.NodeName, "its nodeName"); err != nil {
			return nil, err
		}
	}
	if d.isPod(s, e) {
		return d.podFor(s, e)
	}
	if n != nil {
		if _, ok := decision.AddressOf(n.Addresses, decision.FamilyOf(a)); !ok {
			d.guessNode(n, "its address is %s, that of an endpoint of Service %s on it", a, s.Name.Service())
			d.addAddress(n, a)
			return n, nil
		}
	}
	name := d.newName(s.Name.Name)
	m := &derivedMachine{Client: labapi.Client{Name: name, Addresses: []netip.Addr{a}, RoutesToPods: true}, service: s.Name.Service().String()}
	d.machines = append(d.machines, m)
	d.at[a] = m
	return m, nil
}

// isPod guesses whether an endpoint without a Pod or Node object is a pod.
func (d *derivation) isPod(s *decision.ServicePort, e *decision.Endpoint) bool {
	a := e.AddrPort.Addr()
	if c, ok := decision.PrefixOf(d.options.ClusterCIDRs, decision.FamilyOf(a)); ok {
		return c.Contains(a)
	}
	return e.Pod != "" || !d.namesPods && s.Name.Service() != apiServer
}

// podFor makes the pod of an endpoint, or adds the address to the pod of the other family's
// endpoint.
func (d *derivation) podFor(s *decision.ServicePort, e *decision.Endpoint) (host, error) {
	a := e.AddrPort.Addr()
	p := d.byPod[e.Pod]
	if p != nil {
		if _, ok := decision.AddressOf(p.Addresses, decision.FamilyOf(a)); ok {
			p = nil // a Pod of that name has been there before, with another address
		}
	}
	if p == nil {
		namespace, name, ok := strings.Cut(e.Pod, "/")
		if !ok || d.byPod[e.Pod] != nil || !labfile.IsHostName(name) || !labfile.IsLabel(namespace) {
			namespace, name = s.Name.Namespace, d.newName(s.Name.Name)
		}
		if !labfile.IsLabel(namespace) || !labfile.IsHostName(name) {
			return nil, fmt.Errorf("a pod of a lab cannot be named %s/%s", namespace, name)
		}
		p = &derivedPod{Pod: labapi.Pod{Name: name, Namespace: namespace, Node: e.NodeName}, madeUp: e.Pod != namespace+"/"+name}
		d.addPod(p)
	}
	return p, d.addPodAddress(p, a, "pod "+p.FullName())
}

// newName makes an unused name: that of a Service, and a number.
func (d *derivation) newName(base string) string {
	base = base[:min(len(base), 56)] // of 63
	for i := 1; ; i++ {
		if name := fmt.Sprintf("%s-%d", base, i); !d.names[name] {
			d.names[name] = true
			return name
		}
	}
}

// placePods finds a node for each pod without a node name: the node whose pods are in the
// same network, or else a made-up one, in the order of the pods' addresses.
func (d *derivation) placePods() error {
	slices.SortFunc(d.nodes, func(a, b *derivedNode) int { return strings.Compare(a.Name, b.Name) })
	here := make(map[netip.Prefix]string) // the node of the pods in a network
	for _, p := range d.pods {
		for _, a := range p.Addresses {
			if p.Node != "" {
				here[assumedNetwork(a)] = p.Node
			}
		}
	}
	pods := slices.SortedFunc(slices.Values(d.pods), func(a, b *derivedPod) int { return a.Addresses[0].Compare(b.Addresses[0]) })
	for _, p := range pods {
		if p.Node == "" {
			p.Node = d.nodeFor(p, here)
		}
		for _, a := range p.Addresses {
			here[assumedNetwork(a)] = p.Node
		}
	}
	if len(d.nodes) == 0 {
		d.makeNode("because the objects have none")
	}
	return nil
}

func (d *derivation) nodeFor(p *derivedPod, here map[netip.Prefix]string) string {
	for _, a := range p.Addresses {
		for _, n := range d.nodes {
			if c, ok := decision.PrefixOf(n.declared, decision.FamilyOf(a)); ok && c.Contains(a) {
				return n.Name
			}
		}
	}
	for _, a := range p.Addresses {
		if node, ok := here[assumedNetwork(a)]; ok {
			return node
		}
	}
	return d.makeNode(fmt.Sprintf("for the pods in %s, which name no node", assumedNetwork(p.Addresses[0]))).Name
}

// makeNode makes a node up.
func (d *derivation) makeNode(why string) *derivedNode {
	n := &derivedNode{Node: labfile.Node{Name: d.newName("node")}}
	d.byName[n.Name] = n
	d.nodes = append(d.nodes, n)
	d.guessNode(n, "made up, %s", why)
	return n
}
