package crossnode

import (
	"cmp"
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// hint returns advice: sentences, or nothing. next is the decision of the next node, if there is one; first: no node
// decided before this one.
func (s *Simulator) hint(p *decision.Packet, d *decision.Decision, next *flow.Record, first bool) string {
	h := s.Hints(p, d)
	switch {
	case next != nil && d.Verdict == decision.DNAT:
		h.Near = fmt.Sprintf("%s is an address of node %s, which gets the packet and translates it once more.", d.Endpoint().Addr(), next.Node)
	case next != nil:
		h.Near = fmt.Sprintf("%s is an address of node %s, which gets the packet and decides.", p.Destination.Addr(), next.Node)
	}
	h.Endpoints = cmp.Or(s.otherPorts(d), h.Endpoints)
	if !first { // what follows is about the sources that a user gives
		return explain.Sentences(h.Near, s.nodeHint(d), h.Endpoints, s.terminating(d))
	}
	return explain.Sentences(h.Near, h.Source, s.nodeHint(d), h.Interface, s.otherNodesPod(p, d), h.Endpoints, s.terminating(d))
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
			names = append(names, e.NodeName)
		}
	}
	for _, n := range s.cluster.Nodes {
		names = append(names, n.Name)
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("The traffic policy is Local and no node is given, so no endpoint counts as local: set --node to one of %s.", nearest.Few(names))
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

// otherPorts is about services whose EndpointSlices have endpoints, but none with the port.
func (s *Simulator) otherPorts(d *decision.Decision) string {
	sp := d.ServicePort
	if d.Reason != decision.NoEndpoints || len(sp.Endpoints) > 0 {
		return ""
	}
	name := sp.Name.Namespace + "/" + sp.Name.Name
	if !slices.ContainsFunc(s.slices[name], func(slice *discoveryv1.EndpointSlice) bool { return len(slice.Endpoints) > 0 }) {
		return ""
	}
	return fmt.Sprintf("There are endpoints of %s, but none with the %s port %q: ports of a Service and of its EndpointSlices are matched by name and protocol.", name, sp.Protocol, sp.Name.Port)
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
