// Package explain decides given packets as a node would, without a kernel.
//
// It is a ground package.
package explain

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

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

	cluster  Cluster
	table    *decision.Table
	rand     decision.Rand
	affinity *affinity.Table
	balancer decision.Balancer

	peers  map[string]*Simulator // those of other nodes, by name; all have the same map
	places *Places
	// slices are for hints.
	slices map[string][]*discoveryv1.EndpointSlice // by the service's namespace/name
}

// HostRules are a host's own rules of nat POSTROUTING.
type HostRules interface {
	// Translate returns their effect on the source of a flow from p that is sent to the endpoint.
	Translate(p *decision.Packet, endpoint netip.AddrPort) hostnat.Result
}

// Cluster is the part of a cluster that is not in the table of one node. The zero value is valid.
type Cluster struct {
	Nodes          []*corev1.Node
	Pods           []*corev1.Pod
	EndpointSlices []*discoveryv1.EndpointSlice
	// Table returns the table of a node; nil: packets are not followed to other nodes.
	Table func(node string) *decision.Table
	// Algorithms are the ones that Services may name; nil: the built-in ones.
	Algorithms *balance.Registry
}

// New makes a simulator of the node that the table was made for.
func New(table *decision.Table, r decision.Rand, c Cluster) *Simulator {
	if c.Algorithms == nil {
		c.Algorithms = balance.NewRegistry()
	}
	s := &Simulator{
		cluster: c, table: table, rand: r, affinity: affinity.New(), peers: make(map[string]*Simulator),
		balancer: balance.New(c.Algorithms, func() int64 { return 0 }),
		places:   PlacesOf(c.Nodes, c.Pods), slices: make(map[string][]*discoveryv1.EndpointSlice),
	}
	for _, slice := range c.EndpointSlices {
		name := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
		s.slices[name] = append(s.slices[name], slice)
	}
	return s
}

// Decide returns the record of the flow that the packet would start, with its steps and, if the
// result may be surprising, a hint. If the packet goes on to another node that decides about it, the
// record of that is one of its Others.
func (s *Simulator) Decide(p *decision.Packet) *flow.Record { return s.decide(p, nil) }

// decide is Decide for a packet that has passed nodes before.
func (s *Simulator) decide(p *decision.Packet, passed []string) *flow.Record {
	d := decision.Decide(s.table, p, s.rand, s.affinity, s.balancer)
	r := flow.New(s.table, p, &d)
	r.Steps = kubechains.Walk(s.table, p, &d)
	if d.Verdict == decision.DNAT {
		s.applyHostRules(p, &d, d.Endpoint(), r)
	}
	next := s.onward(p, &d, r, passed)
	if next != nil {
		r.Others = append([]*flow.Record{next}, next.Others...)
		next.Others = nil
	}
	r.Hint = s.hint(p, &d, next, len(passed) == 0)
	if s.FollowReply {
		r.Reply = s.reply(p, &d, r.Masquerade, next)
	}
	if d.Verdict == decision.DNAT && d.ServicePort.AffinitySeconds > 0 {
		s.affinity.Bind(d.ServicePort, d.Endpoint(), p.Source.Addr())
	}
	return r
}

// applyHostRules applies the host's own rules to the source of a flow to a destination that passes POSTROUTING and
// that no rule of kube-proxy masquerades.
func (s *Simulator) applyHostRules(p *decision.Packet, d *decision.Decision, to netip.AddrPort, r *flow.Record) {
	if r.Masquerade || d.Masquerade || !p.Local && s.table.IsLocal(to.Addr()) {
		return
	}
	if s.HostRules == nil {
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
