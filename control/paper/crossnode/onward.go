package crossnode

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// The node that has the destination's address decides a packet that this node lets pass: its node ports are open there.
// The same is true of a packet that is translated to a node port of another node.

// onward follows a decided packet to the next node, if that decides about it too; nil: it does not. passed are the nodes
// before this one.
func (s *Simulator) onward(p *decision.Packet, d *decision.Decision, r *flow.Record, passed []string) *flow.Record {
	to := p.Destination
	switch {
	case s.cluster.Table == nil, d.Verdict == decision.Accept && d.ServicePort != nil:
		return nil
	case d.Verdict == decision.DNAT:
		to = d.Endpoint()
	case d.Verdict != decision.Accept:
		return nil
	}
	own, node := s.table.Node().Name, s.places.Node(to.Addr())
	if node == "" || node == own || slices.Contains(passed, node) {
		return nil
	}
	s.ApplyHostRules(p, d, to, r)
	q := &decision.Packet{Protocol: p.Protocol, Source: s.leaves(p, r), Destination: to}
	peer := s.peer(node)
	next := peer.decide(q, append(slices.Clone(passed), own))
	if d.Verdict == decision.DNAT && next.Service == "" {
		return nil // it is delivered there
	}
	if !r.Masquerade && !p.Local && d.Verdict == decision.Accept {
		next.Hint = explain.Sentences(next.Hint, s.ifMasqueraded(q, peer))
	}
	return next
}

// peer is the simulator of another node.
func (s *Simulator) peer(node string) *Simulator {
	if s.peers[node] == nil {
		peer := New(s.cluster.Table(node), s.rand, s.cluster)
		peer.peers = s.peers
		s.peers[node] = peer
	}
	s.peers[node].FollowReply = s.FollowReply
	return s.peers[node]
}

// leaves is the source of the packet behind this node.
func (s *Simulator) leaves(p *decision.Packet, r *flow.Record) netip.AddrPort {
	if !r.Masquerade {
		return p.Source
	}
	if a, err := netip.ParseAddr(r.MasqueradeAddress); err == nil {
		return netip.AddrPortFrom(a, p.Source.Port())
	}
	if a := s.table.Node().IP(decision.FamilyOf(p.Source.Addr())); a.IsValid() {
		return netip.AddrPortFrom(a, p.Source.Port())
	}
	return p.Source
}

// ifMasqueraded tells what the next node decides if this one masquerades the packet that it lets pass, as many network
// plugins do; "" if it is the same.
func (s *Simulator) ifMasqueraded(q *decision.Packet, peer *Simulator) string {
	own := s.table.Node().Name
	masquerade := s.table.Node().IP(decision.FamilyOf(q.Source.Addr()))
	if own == "" || !masquerade.IsValid() || s.places.Pod(q.Source.Addr()) != own {
		return ""
	}
	other := *q
	other.Source = netip.AddrPortFrom(masquerade, q.Source.Port())
	decide := func(p *decision.Packet) decision.Decision {
		return decision.Decide(peer.table, p, rand.New(rand.NewPCG(1, 0)), nil, nil)
	}
	a, b := decide(q), decide(&other)
	if a.Verdict == b.Verdict && (a.ServicePort == nil || slices.Equal(a.ServicePort.Usable[a.Policy], b.ServicePort.Usable[b.Policy])) {
		return ""
	}
	what := "policy " + b.Policy.String() + " applies"
	switch b.Verdict {
	case decision.Drop:
		what = "the packet is dropped: " + vocabulary.ReasonText(b.Reason)
	case decision.Reject:
		what = "the packet is rejected: " + vocabulary.ReasonText(b.Reason)
	}
	return fmt.Sprintf("If node %s masquerades what its pods send to other nodes, the source is %s here, and %s.", own, masquerade, what)
}
