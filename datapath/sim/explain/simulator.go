// Package explain decides given packets as a node would, without a kernel.
package explain

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control"
	"github.com/nfqproxy/nfqproxy/datapath/affinity"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/sim/hostnat"
	"github.com/nfqproxy/nfqproxy/datapath/sim/kubechains"
)

// Simulator decides packets one after the other, as a node would: clients stay bound by affinity
// from packet to packet, and for balancing algorithms all their connections stay open. It is not safe for concurrent use.
type Simulator struct {
	// FollowReply adds the path of the reply to the records.
	FollowReply bool
	// HostRules are the host's own nat rules; nil: they are ignored.
	HostRules *hostnat.Rules

	table     *decision.Table
	rand      decision.Rand
	affinity  *affinity.Table
	balancer  decision.Balancer
	evaluator hostnat.Evaluator

	// The data for hints.
	nodes    []*corev1.Node
	podCIDRs []podCIDR
	slices   map[string][]*discoveryv1.EndpointSlice // by the service's namespace/name
}

// podCIDR is a prefix of a node's pods.
type podCIDR struct {
	prefix netip.Prefix
	node   string
}

// Cluster is the part of a cluster that is not in its table. It is for hints, not for decisions;
// the zero value is valid.
type Cluster struct {
	Nodes          []*corev1.Node
	EndpointSlices []*discoveryv1.EndpointSlice
	// Algorithms are those that Services may name; nil: the built-in ones.
	Algorithms *balance.Registry
}

// New makes a simulator of the node that the table was made for.
func New(table *decision.Table, r decision.Rand, c Cluster) *Simulator {
	if c.Algorithms == nil {
		c.Algorithms = balance.NewRegistry()
	}
	s := &Simulator{
		table: table, rand: r, affinity: affinity.New(),
		balancer: balance.New(c.Algorithms, func() int64 { return 0 }),
		nodes:    c.Nodes, slices: make(map[string][]*discoveryv1.EndpointSlice),
	}
	for _, n := range c.Nodes {
		for _, p := range control.PodCIDRs(n) {
			s.podCIDRs = append(s.podCIDRs, podCIDR{p, n.Name})
		}
	}
	for _, slice := range c.EndpointSlices {
		name := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
		s.slices[name] = append(s.slices[name], slice)
	}
	return s
}

// Decide returns the record of the flow that the packet would start, with its steps and, if the
// result may be surprising, a hint.
func (s *Simulator) Decide(p *decision.Packet) *flow.Record {
	d := decision.Decide(s.table, p, s.rand, s.affinity, s.balancer)
	r := flow.New(s.table, p, &d)
	r.Steps = kubechains.Walk(s.table, p, &d)
	r.Hint = s.hint(p, &d)
	s.applyHostRules(p, &d, r)
	if s.FollowReply {
		r.Reply = s.reply(p, &d, r.Masquerade)
	}
	if d.Verdict == decision.DNAT && d.ServicePort.AffinitySeconds > 0 {
		s.affinity.Bind(d.ServicePort, d.Endpoint(), p.Source.Addr())
	}
	return r
}

// applyHostRules applies the host's own rules to the source of a flow that passes POSTROUTING and
// that no rule of kube-proxy masquerades.
func (s *Simulator) applyHostRules(p *decision.Packet, d *decision.Decision, r *flow.Record) {
	if d.Verdict != decision.DNAT || d.Masquerade || !p.Local && s.table.IsLocal(d.Endpoint().Addr()) {
		return
	}
	endpoint := d.Endpoint()
	if !s.HostRules.Any(decision.FamilyOf(endpoint.Addr())) {
		return
	}
	a := s.evaluator.Evaluate(s.HostRules, p, endpoint, s.HostRules.Out(endpoint.Addr()), 0)
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
	step.Chain, step.Line, step.Rule = a.Rule.Chain, a.Rule.Line, strings.TrimPrefix(a.Rule.String(), "-A "+a.Rule.Chain+" ")
	r.Steps = append(r.Steps, step)
	if a.Unknown == "" {
		r.SetHostMasquerade(a.Rule.String())
	}
}
