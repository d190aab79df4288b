// Package crossnode decides given packets as the nodes of a cluster would, one after the other: what package explain does for
// one node by its service table, with what Nodes, Pods and EndpointSlices tell about the others.
package crossnode

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Simulator is an [explain.Simulator] of one node that knows the cluster around it.
type Simulator struct {
	*explain.Simulator

	cluster Cluster
	table   *decision.Table
	rand    decision.Rand
	peers   map[string]*Simulator // those of other nodes, by name; all have the same map
	places  *Places
	slices  map[string][]*discoveryv1.EndpointSlice // by the service's namespace/name
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
	s := &Simulator{
		Simulator: explain.New(table, r, c.Algorithms),
		cluster:   c, table: table, rand: r, peers: make(map[string]*Simulator),
		places: PlacesOf(c.Nodes, c.Pods), slices: make(map[string][]*discoveryv1.EndpointSlice),
	}
	s.NodeOf = s.places.Node
	for _, slice := range c.EndpointSlices {
		name := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
		s.slices[name] = append(s.slices[name], slice)
	}
	return s
}

// Decide is [explain.Simulator.Decide], with hints about the cluster. If the packet goes on to another node that decides about
// it, the record of that is one of the record's Others.
func (s *Simulator) Decide(p *decision.Packet) *flow.Record { return s.decide(p, nil) }

// decide is Decide for a packet that has passed nodes before.
func (s *Simulator) decide(p *decision.Packet, passed []string) *flow.Record {
	r, d := s.Flow(p)
	next := s.onward(p, d, r, passed)
	if next != nil {
		r.Others = append([]*flow.Record{next}, next.Others...)
		next.Others = nil
	}
	r.Hint = s.hint(p, d, next, len(passed) == 0)
	if s.FollowReply {
		r.Reply = s.reply(p, d, r.Masquerade, next)
	}
	return r
}
