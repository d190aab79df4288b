// Package explain decides given packets as a node would, without a kernel. Package crossnode follows them to other nodes.
//
// It is a ground package.
package explain

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
)

// Simulator decides packets one after the other, as a node would: clients stay bound by affinity
// from packet to packet, and for balancing algorithms all their connections stay open. It is not safe for concurrent use.
type Simulator struct {
	// FollowReply adds the path of the reply to the records.
	FollowReply bool
	// HostRules are the host's own nat rules; nil: they are ignored.
	HostRules HostRules
	// NodeOf names the node with an address, for hints; nil: it is not known.
	NodeOf func(netip.Addr) string

	table    *decision.Table
	rand     decision.Rand
	affinity *affinity.Table
	balancer decision.Balancer
}

// HostRules are a host's own rules of nat POSTROUTING.
type HostRules interface {
	// Translate returns their effect on the source of a flow from p that is sent to the endpoint.
	Translate(p *decision.Packet, endpoint netip.AddrPort) hostnat.Result
}

// New makes a simulator of the node that the table was made for. The algorithms are the ones that Services may name; nil: the
// built-in ones.
func New(table *decision.Table, r decision.Rand, algorithms *balance.Registry) *Simulator {
	if algorithms == nil {
		algorithms = balance.NewRegistry()
	}
	return &Simulator{
		table: table, rand: r, affinity: affinity.New(), balancer: balance.New(algorithms, func() int64 { return 0 }),
	}
}

// Decide returns the record of the flow that the packet would start, with its steps and, if the
// result may be surprising, a hint.
func (s *Simulator) Decide(p *decision.Packet) *flow.Record {
	r, d := s.Flow(p)
	r.Hint = s.Hints(p, d).String()
	if s.FollowReply {
		r.Reply = s.Reply(p, d, r.Masquerade)
	}
	return r
}

// Flow is Decide without the hint and the reply, for callers who know more about the cluster. It returns the decision too.
func (s *Simulator) Flow(p *decision.Packet) (*flow.Record, *decision.Decision) {
	d := decision.Decide(s.table, p, s.rand, s.affinity, s.balancer)
	r := flow.New(s.table, p, &d)
	r.Steps = kubechains.Walk(s.table, p, &d)
	if d.Verdict == decision.DNAT {
		s.ApplyHostRules(p, &d, d.Endpoint(), r)
		if d.ServicePort.AffinitySeconds > 0 {
			s.affinity.Bind(d.ServicePort, d.Endpoint(), p.Source.Addr())
		}
	}
	return r, &d
}

// ApplyHostRules applies the host's own rules to the source of a flow to a destination that passes POSTROUTING and
// that no rule of kube-proxy masquerades.
func (s *Simulator) ApplyHostRules(p *decision.Packet, d *decision.Decision, to netip.AddrPort, r *flow.Record) {
	if s.HostRules == nil || r.Masquerade || d.Masquerade || !p.Local && s.table.IsLocal(to.Addr()) {
		return
	}
	a := s.HostRules.Translate(p, to)
	step := flow.Step{Table: "nat"}
	switch {
	case a.Rule == nil:
		return
	case a.Unknown != "":
		step.Outcome, step.Text = flow.StepUnknown, "a rule of the host's own, with an unknown effect: "+a.Unknown
	case a.Masquerade:
		step.Outcome, step.Text = flow.StepApplied, "a rule of the host's own: the source becomes an address of this node"
	default:
		step.Outcome, step.Text = flow.StepApplied, "a rule of the host's own: the source becomes "+a.Source.String()
	}
	step.Chain, step.Line, step.Rule = a.Rule.Chain, a.Rule.Line, a.Rule.Body()
	r.Steps = append(r.Steps, step)
	if a.Unknown == "" {
		r.SetHostMasquerade(a.Rule.String())
	}
}

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

// BridgeSysctl has packets between the ports of a bridge pass the rules of the address's family.
func BridgeSysctl(a netip.Addr) string {
	if a.Is6() {
		return "net.bridge.bridge-nf-call-ip6tables"
	}
	return "net.bridge.bridge-nf-call-iptables"
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
	case s.table.IsLocal(d.Endpoint().Addr()) || d.ServicePort.Endpoints[d.Index].Local && !pod:
		return "the endpoint is on this node, so its reply starts here"
	case d.ServicePort.Endpoints[d.Index].Local:
		return fmt.Sprintf("the endpoint is on this node, so its reply starts here; if both pods are behind one Linux bridge, the reply stays on it, and the next steps need the sysctl %s=1", BridgeSysctl(src))
	case pod:
		return "that is the pod itself, which is on this node (another node would have translated its own pod's packet), so the reply returns here"
	}
	return "that is the client itself: unless the reply is routed through this node, it is not translated back, and the client gets it from an address that it never sent to"
}
