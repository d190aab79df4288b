package explain

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Untranslated is the step of a reply to a packet that no node translates.
const Untranslated = "nothing was translated: the reply needs no translation"

// Reply returns the path of the reply to a decided flow, back through the node's connection
// tracking. masqueraded: a rule rewrites the flow's source.
func (s *Simulator) Reply(p *decision.Packet, d *decision.Decision, masqueraded bool) *flow.Reply {
	switch d.Verdict {
	case decision.DNAT:
		return s.translated(p, d, masqueraded)
	case decision.Reject:
		return &flow.Reply{Steps: []string{
			fmt.Sprintf("the node replies to %s with ICMP port unreachable: the client sees \"connection refused\" at once", p.Source),
		}}
	case decision.Drop:
		return &flow.Reply{Steps: []string{"no reply: the client waits until its timeout"}}
	}
	src, dst := p.Source.String(), p.Destination.String()
	step := Untranslated
	if to := p.Destination.Addr(); !s.table.IsLocal(to) && s.endpointOf(to) == "" {
		step = "nothing was translated on this node: if another one translates the packet, the reply has to return by that"
	}
	return &flow.Reply{
		Source: dst, Destination: src, SeenSource: dst, SeenDestination: src,
		Steps: []string{step},
	}
}

// translated returns the reply's path of a flow with an entry in connection tracking.
func (s *Simulator) translated(p *decision.Packet, d *decision.Decision, masqueraded bool) *flow.Reply {
	endpoint := d.Endpoint()
	if endpoint.Addr() == p.Source.Addr() && !d.Masquerade && !p.Local {
		return unanswered(p, endpoint)
	}
	reply := &flow.Reply{Source: endpoint.String(), Destination: p.Source.String(), SeenSource: p.Destination.String(), SeenDestination: p.Source.String()}
	whom := reply.Destination
	if masqueraded {
		reply.Destination, whom = "", "an address of this node"
		if node := s.table.Node().IP(decision.FamilyOf(p.Source.Addr())); node.IsValid() {
			// The address depends on the node's routes, and the port on the free ones
			// (--random-fully selects one at random); these are the usual ones.
			reply.Destination = netip.AddrPortFrom(node, p.Source.Port()).String()
			whom = fmt.Sprintf("this node, for example %s (the kernel selects the address by the route, and a free port)", reply.Destination)
		}
	}
	step := func(format string, args ...any) { reply.Steps = append(reply.Steps, fmt.Sprintf(format, args...)) }
	step("the endpoint replies to the source that it saw: %s -> %s", endpoint, whom)
	step("%s", s.backHere(p, d, masqueraded))
	step("connection tracking finds the flow's entry; no nat rule is evaluated")
	if masqueraded {
		step("un-SNAT: the destination becomes %s again", p.Source)
	}
	step("un-DNAT: the source becomes %s again", p.Destination)
	step("the client gets the reply from the address that it sent to; it never sees %s", endpoint)
	return reply
}

// unanswered is the reply of a pod's packet to itself without masquerading.
func unanswered(p *decision.Packet, endpoint netip.AddrPort) *flow.Reply {
	arrival := fmt.Sprintf("the pod gets its own packet back from the network, with its own address as the source: %s -> %s", p.Source, endpoint)
	if p.Source.Addr().Is4() {
		arrival += "; Linux drops it as spoofed, unless the sysctl accept_local is set"
	}
	return &flow.Reply{Steps: []string{
		arrival,
		fmt.Sprintf("if accepted, the reply would stay within the pod, from %s, without this node's connection tracking and its translation", endpoint),
		fmt.Sprintf("the client waits for a reply from %s, which never comes", p.Destination),
	}}
}

// backHere returns the reason why the reply passes this node, the only place where it can be
// translated back.
func (s *Simulator) backHere(p *decision.Packet, d *decision.Decision, masqueraded bool) string {
	src, node := p.Source.Addr(), s.table.Node()
	pod := node.Detector.Implemented(decision.FamilyOf(src)) && node.Detector.IsLocal(p)
	switch {
	case masqueraded:
		return "so the reply returns to this node, wherever the endpoint is"
	case p.Local || s.table.IsLocal(src):
		return "that is this node itself, so the reply returns here"
	case d.ServicePort.Endpoints[d.Index].Local || s.table.IsLocal(d.Endpoint().Addr()):
		return "the endpoint is on this node, so its reply starts here"
	case pod:
		return "that is the pod itself, which is on this node (another node would have translated its own pod's packet), so the reply returns here"
	}
	return "that is the client itself: unless the reply is routed through this node, it is not translated back, and the client gets it from an address that it never sent to"
}
