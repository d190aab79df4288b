package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Hints are advice about a decision, sentences each; "" where there is nothing to say.
type Hints struct {
	Near      string // what is near a destination that belongs to no service
	Source    string // the source is unlikely
	Interface string // the detector needs an interface, and none is given
	Endpoints string // the service has no endpoints, ready or not
}

// String joins the hints.
func (h *Hints) String() string { return Sentences(h.Near, h.Source, h.Interface, h.Endpoints) }

// Sentences joins those that are not empty.
func Sentences(list ...string) string {
	return strings.Join(slices.DeleteFunc(list, func(text string) bool { return text == "" }), " ")
}

// Hints returns what the service table tells about a packet and its decision.
func (s *Simulator) Hints(p *decision.Packet, d *decision.Decision) *Hints {
	h := &Hints{Source: s.sourceHint(p)}
	if d.ServicePort == nil && d.Verdict == decision.Accept {
		h.Near = s.nearMiss(p)
	}
	detector := &s.table.Node().Detector
	if d.ServicePort != nil && !p.Local && p.InInterface == "" && (detector.Bridge != "" || detector.InterfacePrefix != "") {
		h.Interface = "Pods are detected by the interface and none is given, so the source does not count as a pod: set --in-interface."
	}
	if sp := d.ServicePort; d.Reason == decision.NoEndpoints && len(sp.Endpoints) == 0 {
		h.Endpoints = fmt.Sprintf("No EndpointSlice of %s/%s (by its label %s) has an endpoint.", sp.Name.Namespace, sp.Name.Name, discoveryv1.LabelServiceName)
	}
	return h
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

// nearMiss returns what is near a destination that belongs to no service.
func (s *Simulator) nearMiss(p *decision.Packet) string {
	dst := p.Destination
	if ports := s.portsOf(dst.Addr()); len(ports) > 0 {
		return fmt.Sprintf("%s has other ports: %s.", dst.Addr(), nearest.Some(ports))
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
		return fmt.Sprintf("%s is an address of this node, whose node ports are: %s.", dst.Addr(), nearest.Some(nodePorts))
	case name != "":
		return fmt.Sprintf("%s is an endpoint of %s: a packet to its own address reaches it without any service.", dst.Addr(), name)
	case len(s.table.Services()) == 0:
		return "There are no service ports."
	}
	return fmt.Sprintf("None of the %d service ports has the address %s.", len(s.table.Services()), dst.Addr())
}

// closed returns the reason why node ports are not open on an address.
func (s *Simulator) closed(a netip.Addr) string {
	node := s.table.Node()
	switch {
	case a.Is6() && a.IsLoopback():
		return "node ports are never open on IPv6 loopback addresses"
	case a.IsLoopback() && !node.LocalhostNodePorts && decision.ServesNodePorts(a, node.NodePortAddresses):
		return "--localhost-nodeports=false closes node ports on loopback addresses"
	case s.table.IsLocal(a):
		return fmt.Sprintf("--nodeport-addresses excludes %s", a)
	}
	if s.NodeOf != nil {
		if n := s.NodeOf(a); n != "" {
			return fmt.Sprintf("%s is an address of node %s: set --node %s to decide there", a, n, n)
		}
	}
	return fmt.Sprintf("%s is not a known address of this node: set --node-ip or --node", a)
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
