// Package explain decides given packets as a node would, without a kernel. Package crossnode follows them to other nodes.
//
// It is a ground package.
package explain

import (
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
