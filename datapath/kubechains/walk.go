package kubechains

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Walk follows the packet through kube-proxy's rules and returns a step for each rule that it
// meets. It leaves out rules in the fixed chains that did not match, mostly those of other
// services. t and p must be those of the decision. Of the decision it uses only the random number
// and the binding by affinity.
func Walk(t *decision.Table, p *decision.Packet, d *decision.Decision) []flow.Step {
	w := newWalker(t, p, d, remembered{d})
	w.walk()
	return w.steps
}

// remembered is the affinity as it was when the decision was made: of the endpoints
// in order, the first that the client was bound to is the one chosen.
type remembered struct{ d *decision.Decision }

func (r remembered) Bound(_ *decision.ServicePort, endpoint netip.AddrPort, _ netip.Addr) bool {
	return r.d.Reason == decision.Bound && endpoint == r.d.Endpoint()
}

// state is a packet on its walk.
type state struct {
	*decision.Packet
	table *decision.Table
	dst   netip.AddrPort // changed by DNAT
	d     *decision.Decision

	dnat, marked bool
	draw         float64
	affinity     decision.Affinity // nil: no client is bound
}

// walker follows one packet.
type walker struct {
	state
	rules   map[Table]map[string][]Rule
	steps   []flow.Step
	verdict decision.Verdict
	snat    bool
}

func newWalker(t *decision.Table, p *decision.Packet, d *decision.Decision, a decision.Affinity) *walker {
	w := &walker{
		state: state{Packet: p, table: t, dst: p.Destination, d: d, draw: drawOf(d), affinity: a},
		rules: map[Table]map[string][]Rule{Filter: {}, NAT: {}},
	}
	f := decision.FamilyOf(p.Destination.Addr())
	rules := newWriter(t, f, Kernel{})
	rules.rules = jumps(f)
	rules.services(t.Candidates(p))
	for _, r := range append(rules.rules, common(t, f, Kernel{})...) {
		w.rules[r.Table][r.Chain] = append(w.rules[r.Table][r.Chain], r)
	}
	return w
}

// drawOf is the number that leads kube-proxy's rules to the decision's endpoint: the draw or, if another
// algorithm or program selected it, the middle of the endpoint's share.
func drawOf(d *decision.Decision) float64 {
	if d.ServicePort == nil {
		return d.Draw
	}
	usable, position := d.ServicePort.Usable[d.Policy], int(d.Pick.Position)
	switch {
	case d.Reason == decision.ByProxy:
		position = slices.Index(usable, d.Index)
	case !picked(d):
		return d.Draw
	}
	return (float64(position) + 0.5) / float64(len(usable))
}

// picked: an algorithm selected the endpoint, not kube-proxy's draw.
func picked(d *decision.Decision) bool { return d.Pick.Evidence.Kind > decision.Only }

// walk follows the packet; if no rule concerns it, the only step reports that.
func (w *walker) walk() {
	w.hooks()
	if len(w.steps) == 0 {
		w.steps = append(w.steps, flow.Step{
			Table: string(NAT), Chain: Services, Outcome: flow.StepPassed,
			Text: fmt.Sprintf("no service has %s/%s", w.Destination, w.Protocol),
		})
	}
}

// hooks goes through the hooks in the kernel's order. A packet from the node to itself arrives
// again on lo, but nat is evaluated only once for a flow.
func (w *walker) hooks() {
	if w.Local {
		w.run(NAT, "OUTPUT")
	} else {
		w.run(NAT, "PREROUTING")
	}
	if w.dnat {
		w.verdict = decision.DNAT
		w.postrouting()
		return
	}
	switch local := w.table.IsLocal(w.dst.Addr()); {
	case w.Local:
		if !w.run(Filter, "OUTPUT") && local {
			w.run(Filter, "INPUT")
		}
	case local:
		w.run(Filter, "INPUT")
	default:
		w.run(Filter, "FORWARD")
	}
}

// postrouting is for packets that leave the node, or originate on it.
func (w *walker) postrouting() {
	if w.Local || !w.table.IsLocal(w.dst.Addr()) {
		w.run(NAT, "POSTROUTING")
		return
	}
	if w.marked {
		w.steps = append(w.steps, flow.Step{
			Table: string(NAT), Chain: Postrouting, Outcome: flow.StepPassed,
			Text: fmt.Sprintf("%s is this node: the packet is delivered here and does not pass POSTROUTING, so its source is unchanged", w.dst.Addr()),
		})
	}
}

// run goes through a chain. It reports whether the walk through the table has ended.
func (w *walker) run(table Table, chain string) (ended bool) {
	rules := w.rules[table][chain]
	for i := range rules {
		r := &rules[i]
		matched := !slices.ContainsFunc(r.matches, func(m match) bool { return m.test != nil && !m.test(&w.state) })
		w.addStep(r, matched)
		if !matched {
			continue
		}
		switch t := r.target; t.kind {
		case toJump:
			if t.chain == MarkMasq {
				w.marked = true
			} else if w.run(table, t.chain) {
				return true
			}
		case toMark:
			w.marked = !t.clear
		case toDNAT:
			w.dst, w.dnat = t.to, true
			return true
		case toMasquerade:
			w.snat = true
			return true
		case toReject:
			w.verdict = decision.Reject
			return true
		case toReturn:
			return false
		case toDrop:
			w.verdict = decision.Drop
			return true
		case toAccept:
			return true
		}
	}
	return false
}

// addStep adds the step, if the rule has a sentence and is relevant.
func (w *walker) addStep(r *Rule, matched bool) {
	if r.sentence == nil || !matched && slices.Contains(FixedChains[r.Table], r.Chain) {
		return
	}
	o := flow.StepPassed
	if matched {
		o = flow.StepApplied
		if r.target.kind == toJump {
			o = flow.StepJumped
			if r.target.chain == MarkMasq {
				o = flow.StepMarked
			}
		}
	}
	w.steps = append(w.steps, flow.Step{
		Table: string(r.Table), Chain: r.Chain, Rule: r.String(), Outcome: o, Text: r.sentence(&w.state, matched),
	})
}

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
