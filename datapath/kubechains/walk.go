package kubechains

import (
	"fmt"
	"net/netip"
	"slices"

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
	// bound has the lists of endpoints that the client is bound to, by their chains.
	bound map[string]bool
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
		state: state{Packet: p, table: t, dst: p.Destination, d: d, draw: drawOf(d), bound: make(map[string]bool)},
		rules: map[Table]map[string][]Rule{Filter: {}, NAT: {}},
	}
	f := decision.FamilyOf(p.Destination.Addr())
	rules := newWriter(t, f, Kernel{})
	rules.rules = jumps(f)
	services := t.Candidates(p)
	rules.services(services)
	for _, r := range append(rules.rules, common(t, f, Kernel{})...) {
		w.rules[r.Table][r.Chain] = append(w.rules[r.Table][r.Chain], r)
	}
	for _, s := range services {
		for i := range s.Endpoints {
			if ep := s.Endpoints[i].AddrPort; s.AffinitySeconds > 0 && a != nil && a.Bound(s, ep, p.Source.Addr()) {
				w.bound[s.EndpointChain(ep)] = true
			}
		}
	}
	return w
}

// drawOf is the number that leads kube-proxy's rules to the decision's endpoint: the draw or, if another
// algorithm or program selected it, the middle of the endpoint's share.
func drawOf(d *decision.Decision) float64 {
	if d.ServicePort == nil {
		return d.Draw
	}
	usable := d.ServicePort.Usable[d.Policy]
	position := int(d.Pick.Position)
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

func (r *Rule) matchesAll(s *state) bool {
	return !slices.ContainsFunc(r.matches, func(m match) bool { return m.test != nil && !m.test(s) })
}

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
	local := w.table.IsLocal(w.dst.Addr())
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
	switch {
	case w.Local:
		if w.run(Filter, "OUTPUT") || !local {
			return
		}
		w.run(Filter, "INPUT")
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
		matched := r.matchesAll(&w.state)
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
	crowded := slices.Contains(fixedChains[r.Table], r.Chain)
	if r.sentence == nil || !matched && crowded {
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
