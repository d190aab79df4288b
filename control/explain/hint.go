package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// hint returns advice: sentences, or nothing. next is the decision of the next node, if there is one; first: no node
// decided before this one.
func (s *Simulator) hint(p *decision.Packet, d *decision.Decision, next *flow.Record, first bool) string {
	near := ""
	switch {
	case next != nil:
		near = fmt.Sprintf("%s is an address of node %s, which gets the packet and decides.", p.Destination.Addr(), next.Node)
		if d.Verdict == decision.DNAT {
			near = fmt.Sprintf("%s is an address of node %s, which gets the packet and translates it once more.", d.Endpoint().Addr(), next.Node)
		}
	case d.ServicePort == nil && d.Verdict == decision.Accept:
		near = s.nearMiss(p)
	}
	if !first { // what follows is about the sources that a user gives
		return sentences(near, s.nodeHint(d), s.noEndpoints(d), s.terminating(d))
	}
	return sentences(near, s.sourceHint(p), s.nodeHint(d), s.interfaceHint(p, d), s.otherNodesPod(p, d), s.noEndpoints(d), s.terminating(d))
}

// sentences joins those that are not empty.
func sentences(list ...string) string {
	return strings.Join(slices.DeleteFunc(list, func(text string) bool { return text == "" }), " ")
}

// sourceHint is about packets with an unlikely source.
func (s *Simulator) sourceHint(p *decision.Packet) string {
	src := p.Source.Addr()
	switch own := s.table.IsLocal(src); {
	case !p.Local && src.IsLoopback():
		return fmt.Sprintf("A packet from %s originates on the node itself: set --local.", src)
	case !p.Local && own:
		return fmt.Sprintf("%s is an address of this node itself: for a packet that originates on it, set --local.", src)
	case p.Local && !own:
		return fmt.Sprintf("%s is not a known address of this node, as the source of a local packet must be: set --node-ip or --node.", src)
	}
	return ""
}

// nodeHint is about decisions that depend on the node, if none was given.
func (s *Simulator) nodeHint(d *decision.Decision) string {
	if s.table.Node().Name != "" || d.ServicePort == nil || d.Branch == decision.BranchNone && d.Reason != decision.NoLocalEndpoints {
		return ""
	}
	if d.Policy != decision.Local && d.Reason != decision.NoLocalEndpoints {
		return ""
	}
	var names []string
	for _, e := range d.ServicePort.Endpoints {
		if e.NodeName != "" {
			names = appendNew(names, e.NodeName)
		}
	}
	for _, n := range s.cluster.Nodes {
		names = appendNew(names, n.Name)
	}
	if slices.Sort(names); len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("The traffic policy is Local and no node is given, so no endpoint counts as local: set --node to one of %s.", some(names))
}

// interfaceHint is about detectors by interface, if none was given.
func (s *Simulator) interfaceHint(p *decision.Packet, d *decision.Decision) string {
	detector := &s.table.Node().Detector
	if p.Local || p.InInterface != "" || d.ServicePort == nil || detector.Bridge == "" && detector.InterfacePrefix == "" {
		return ""
	}
	return "Pods are detected by the interface and none is given, so the source does not count as a pod: set --in-interface."
}

// otherNodesPod is about pods on other nodes: their own node decides about services. Only its own node ports are left
// to this one.
func (s *Simulator) otherNodesPod(p *decision.Packet, d *decision.Decision) string {
	own, src := s.table.Node().Name, p.Source.Addr()
	if d.ServicePort == nil || d.Entry == decision.EntryNodePort || p.Local || own == "" || s.table.IsLocal(src) {
		return ""
	}
	if n := s.places.Pod(src); n != "" && n != own {
		return fmt.Sprintf("%s belongs to a pod on node %s, which decides this packet before it arrives here: set --node %s.", src, n, n)
	}
	if n := s.places.Node(src); n != "" && n != own {
		return fmt.Sprintf("%s is an address of node %s, which decides this packet before it arrives here: set --node %s and --local.", src, n, n)
	}
	return ""
}

// noEndpoints is about services without any endpoints, ready or not.
func (s *Simulator) noEndpoints(d *decision.Decision) string {
	sp := d.ServicePort
	if d.Reason != decision.NoEndpoints || len(sp.Endpoints) > 0 {
		return ""
	}
	name := sp.Name.Namespace + "/" + sp.Name.Name
	for _, slice := range s.slices[name] {
		if len(slice.Endpoints) > 0 {
			return fmt.Sprintf("There are endpoints of %s, but none with the %s port %q: ports of a Service and of its EndpointSlices are matched by name and protocol.", name, sp.Protocol, sp.Name.Port)
		}
	}
	return fmt.Sprintf("No EndpointSlice of %s (by its label %s) has an endpoint.", name, discoveryv1.LabelServiceName)
}

// terminating is about endpoints that get flows although they are not ready.
func (s *Simulator) terminating(d *decision.Decision) string {
	if d.Verdict != decision.DNAT {
		return ""
	}
	name, chosen := d.ServicePort.Name, d.Endpoint().Addr().String()
	fallback := false
	for _, slice := range s.slices[name.Namespace+"/"+name.Name] {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !slices.Contains(e.Addresses, chosen) {
				continue
			}
			c := e.Conditions
			if c.Terminating == nil || !*c.Terminating || c.Ready == nil || *c.Ready {
				return "" // of several slices with the endpoint, one in which it is ready counts
			}
			fallback = true
		}
	}
	if !fallback {
		return ""
	}
	where := ""
	if d.Policy == decision.Local {
		where = " on this node"
	}
	return fmt.Sprintf("No endpoint of %s%s is ready, so terminating endpoints get new flows while they are serving.", name, where)
}

// nearMiss returns what is near a destination that belongs to no service.
func (s *Simulator) nearMiss(p *decision.Packet) string {
	dst := p.Destination
	if ports := s.portsOf(dst.Addr()); len(ports) > 0 {
		return fmt.Sprintf("%s has other ports: %s.", dst.Addr(), some(ports))
	}
	var nodePorts []string
	for _, sp := range s.table.Services() {
		if sp.NodePort == 0 || sp.Family != decision.FamilyOf(dst.Addr()) {
			continue
		}
		if sp.NodePort == dst.Port() && sp.Protocol == p.Protocol {
			return fmt.Sprintf("%d is the node port of %s, but %s.", dst.Port(), sp.Name, s.closed(dst.Addr()))
		}
		nodePorts = append(nodePorts, fmt.Sprintf("%d/%s (%s)", sp.NodePort, sp.Protocol, sp.Name))
	}
	switch name := s.endpointOf(dst.Addr()); {
	case s.table.IsLocal(dst.Addr()) && len(nodePorts) > 0:
		return fmt.Sprintf("%s is an address of this node, whose node ports are: %s.", dst.Addr(), some(nodePorts))
	case name != "":
		return fmt.Sprintf("%s is an endpoint of %s: a packet to its own address reaches it without any service.", dst.Addr(), name)
	case len(s.table.Services()) == 0:
		return "There are no service ports."
	}
	return fmt.Sprintf("None of the %d service ports has the address %s.", len(s.table.Services()), dst.Addr())
}

// closed returns the reason why node ports are not open on an address.
func (s *Simulator) closed(a netip.Addr) string {
	switch {
	case a.Is6() && a.IsLoopback():
		return "node ports are never open on IPv6 loopback addresses"
	case a.IsLoopback() && !s.table.Node().LocalhostNodePorts && s.listed(a):
		return "--localhost-nodeports=false closes node ports on loopback addresses"
	case s.table.IsLocal(a):
		return fmt.Sprintf("--nodeport-addresses excludes %s", a)
	}
	if n := s.places.Node(a); n != "" {
		return fmt.Sprintf("%s is an address of node %s: set --node %s to decide there", a, n, n)
	}
	return fmt.Sprintf("%s is not a known address of this node: set --node-ip or --node", a)
}

// listed reports whether the node port addresses contain the address.
func (s *Simulator) listed(a netip.Addr) bool {
	return s.table.AllNodePortAddresses(decision.FamilyOf(a)) ||
		slices.ContainsFunc(s.table.Node().NodePortAddresses, func(p netip.Prefix) bool { return p.Contains(a) })
}

// portsOf lists the service ports with the address.
func (s *Simulator) portsOf(a netip.Addr) (ports []string) {
	for _, sp := range s.table.Services() {
		if sp.ClusterIP == a || slices.Contains(sp.ExternalIPs, a) || slices.Contains(sp.LoadBalancerIPs, a) {
			ports = append(ports, fmt.Sprintf("%d/%s (%s)", sp.Port, sp.Protocol, sp.Name))
		}
	}
	return ports
}

// endpointOf names a service port that has the address as an endpoint.
func (s *Simulator) endpointOf(a netip.Addr) string {
	for _, sp := range s.table.Services() {
		if slices.ContainsFunc(sp.Endpoints, func(e decision.Endpoint) bool { return e.AddrPort.Addr() == a }) {
			return sp.Name.String()
		}
	}
	return ""
}
