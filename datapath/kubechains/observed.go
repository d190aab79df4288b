package kubechains

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// WalkOfProxy returns the rules that a flow must have met which kube-proxy decided, in the mode iptables or nftables (proxy:
// "kube-proxy (iptables)", see [flow.Record.Proxy]): those that lead to its endpoint, with their probabilities. The table is
// the one that the flow was decided by. Nobody has seen the packet in the rules. There are none where the table does not tell
// them: of other proxies, with session affinity, whose memory is the kernel's, and if they lead to another translation than
// that of the flow.
func WalkOfProxy(t *decision.Table, p *decision.Packet, d *decision.Decision, proxy string) []flow.Step {
	if d.Reason != decision.ByProxy || !d.HasEndpoint() || d.ServicePort.AffinitySeconds > 0 {
		return nil
	}
	switch proxy {
	case "kube-proxy (iptables)", "kube-proxy (iptables-legacy)":
		return walkOfIPTables(t, p, d)
	case "kube-proxy (nftables)":
		return walkOfNFTables(p, d)
	}
	return nil
}

func walkOfIPTables(t *decision.Table, p *decision.Packet, d *decision.Decision) []flow.Step {
	w := newWalker(t, p, d, nil)
	w.walk()
	if w.verdict != decision.DNAT || w.dst != d.Endpoint() || w.snat != d.Masquerade {
		return nil
	}
	// The draws are independent of each other: this rule's is made where those before it have failed.
	left := len(d.ServicePort.Usable[d.Policy])
	for i := range w.steps {
		s := &w.steps[i]
		if s.Chain != d.ServicePort.PolicyChain(d.Policy) || !strings.Contains(s.Rule, " --probability ") {
			continue
		}
		if s.Probability = 1 / float64(left); s.Outcome == flow.StepPassed {
			s.Probability = 1 - s.Probability
		}
		left--
	}
	return w.steps
}

// walkOfNFTables are the steps that all versions of kube-proxy's mode nftables have in common: the element of the service, and
// the draw.
func walkOfNFTables(p *decision.Packet, d *decision.Decision) []flow.Step {
	s := d.ServicePort
	usable := s.Usable[d.Policy]
	position := slices.Index(usable, d.Index)
	if position < 0 {
		return nil
	}
	step := func(chain, text string) flow.Step {
		return flow.Step{Table: decision.NFTablesTable, Chain: chain, Outcome: flow.StepJumped, Text: text}
	}
	balancing := s.NFTablesChain(d.Policy)
	first := balancing
	if d.Entry != decision.EntryClusterIP {
		first = s.NFTablesExternalChain()
	}
	element := fmt.Sprintf("%s . %s . %d of @service-ips", p.Destination.Addr(), p.Protocol.Lower(), p.Destination.Port())
	if d.Entry == decision.EntryNodePort {
		element = fmt.Sprintf("%s . %d of @service-nodeports", p.Protocol.Lower(), p.Destination.Port())
	}
	steps := []flow.Step{step("services", "the element "+element+" leads to "+first)}
	if first != balancing {
		steps = append(steps, step(first, "leads to "+balancing))
	}
	drawn := flow.Step{Table: decision.NFTablesTable, Chain: balancing, Outcome: flow.StepApplied,
		Text: fmt.Sprintf("numgen random mod %d has drawn %d, whose element is %s", len(usable), position, d.Endpoint())}
	if len(usable) > 1 {
		drawn.Probability = 1 / float64(len(usable))
	}
	return append(steps, drawn)
}
