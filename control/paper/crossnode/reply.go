package crossnode

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// reply is [explain.Simulator.Reply] with what other nodes do. next is the decision of the next node, nil if it has none to make.
func (s *Simulator) reply(p *decision.Packet, d *decision.Decision, masqueraded bool, next *flow.Record) *flow.Reply {
	if d.Verdict == decision.Accept && next != nil {
		return s.passed(p, masqueraded, next)
	}
	var reply *flow.Reply
	if d.Verdict == decision.DNAT && !masqueraded && s.bypassed(p, d) {
		reply = s.astray(p, d.Endpoint())
	} else {
		reply = s.Reply(p, d, masqueraded)
	}
	switch {
	case next != nil:
		reply.Steps = slices.Insert(reply.Steps, 0, fmt.Sprintf("node %s decides about the packet once more, and the reply has to return by it", next.Node))
	case d.Verdict == decision.Accept && s.places.Pod(p.Destination.Addr()) != "":
		reply.Steps = []string{explain.Untranslated}
	}
	return reply
}

// passed is the path of the reply to a packet that this node lets pass, and the next one decides.
func (s *Simulator) passed(p *decision.Packet, masqueraded bool, next *flow.Record) *flow.Reply {
	reply := &flow.Reply{}
	if next.Reply != nil {
		*reply = *next.Reply
		reply.Steps = nil
	}
	step := func(format string, args ...any) { reply.Steps = append(reply.Steps, fmt.Sprintf(format, args...)) }
	switch next.Verdict {
	case decision.DNAT.String():
		step("node %s translates the packet, to %s: the reply is to return by it, and is translated back there (see its reply path)", next.Node, next.Endpoint)
	case decision.Reject.String():
		step("node %s rejects the packet with ICMP port unreachable: the client sees \"connection refused\" at once", next.Node)
	case decision.Drop.String():
		step("no reply: node %s drops the packet, and the client waits until its timeout", next.Node)
		return reply
	default:
		step("node %s does not translate the packet either: the reply is that of a program of the node", next.Node)
	}
	if masqueraded {
		step("un-SNAT on this node: the destination becomes %s again", p.Source)
		if reply.SeenDestination != "" {
			reply.SeenDestination = p.Source.String()
		}
		return reply
	}
	step("it passes this node as it is, for the packet did")
	return reply
}

// bypassed reports whether the reply takes another way than by this node: both ends are known to be elsewhere, and are not
// the same pod.
func (s *Simulator) bypassed(p *decision.Packet, d *decision.Decision) bool {
	if p.Source.Addr() == d.Endpoint().Addr() && !p.Local {
		return false
	}
	own, client := s.table.Node().Name, s.places.Origin(p.Source.Addr(), netip.Addr{})
	e := &d.ServicePort.Endpoints[d.Index]
	return own != "" && client != "" && client != own && !s.table.IsLocal(p.Source.Addr()) &&
		!e.Local && cmp.Or(e.NodeName, s.places.Pod(e.AddrPort.Addr()), own) != own
}

// astray is the reply that does not return by the node that translated the packet.
func (s *Simulator) astray(p *decision.Packet, endpoint netip.AddrPort) *flow.Reply {
	return &flow.Reply{
		Source: endpoint.String(), Destination: p.Source.String(), SeenSource: endpoint.String(), SeenDestination: p.Source.String(),
		Steps: []string{
			fmt.Sprintf("the endpoint replies to the source that it saw: %s -> %s", endpoint, p.Source),
			fmt.Sprintf("that is on node %s, and the endpoint is not on this node: the reply does not return here, and is not translated back", s.places.Origin(p.Source.Addr(), netip.Addr{})),
			fmt.Sprintf("the client gets it from %s and not from %s, to which it sent: it does not take it for the reply", endpoint, p.Destination),
		},
	}
}
