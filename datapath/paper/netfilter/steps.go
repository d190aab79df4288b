package netfilter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// passed is a rule that did not match: its position, and the match that failed.
type passed struct {
	index  int
	failed iptables.Match
}

// few is how many rules in a row that did not match get steps of their own.
const few = 3

// pass records a rule that did not match.
func (w *walk) pass(index int, failed iptables.Match) {
	if !w.quiet {
		w.passed = append(w.passed, passed{index, failed})
	}
}

// addPassed adds the rules since the last that matched.
func (w *walk) addPassed(c *chain) {
	if w.quiet {
		return
	}
	defer func() { w.passed = w.passed[:0] }()
	if len(w.passed) > few && !w.machine.options.AllRules {
		first := &c.rules[w.passed[0].index]
		w.add(flow.Step{
			Table: c.table, Chain: c.name, File: c.file, Line: first.Line, Outcome: flow.StepPassed, Count: len(w.passed),
			Text: fmt.Sprintf("%d rules do not match", len(w.passed)),
		})
		return
	}
	for i, p := range w.passed {
		r := &c.rules[p.index]
		if w.work.Steps <= 0 {
			w.add(flow.Step{
				Table: c.table, Chain: c.name, File: c.file, Line: r.Line, Outcome: flow.StepPassed, Count: len(w.passed) - i,
				Text: fmt.Sprintf("%d rules do not match", len(w.passed)-i),
			})
			return
		}
		w.add(flow.Step{
			Table: c.table, Chain: c.name, File: c.file, Line: r.Line, Handle: handleOf(r), Rule: ruleText(r.Rule), Outcome: flow.StepPassed, Text: w.WhyNot(p.failed),
		})
	}
}

func (w *walk) add(s flow.Step) {
	s.Hook = w.hook.String()
	w.work.Steps--
	w.result.Steps = append(w.result.Steps, s)
}

// fork records that the next step is one of several possible ones.
func (w *walk) fork() {
	if !w.quiet {
		w.result.Forks = append(w.result.Forks, len(w.result.Steps))
	}
}

// addRule adds a step for one rule.
func (w *walk) addRule(c *chain, r *rule, o flow.StepOutcome) {
	if !w.sourceOnly && o != flow.StepPassed && o != flow.StepUnknown {
		w.result.Path = append(w.result.Path, r.Rule)
	}
	if w.quiet {
		return
	}
	s := flow.Step{
		Table: c.table, Chain: c.name, File: c.file, Line: r.Line, Handle: handleOf(r), Rule: ruleText(r.Rule), Outcome: o, Probability: w.probability,
	}
	switch o {
	case flow.StepPassed:
		s.Text = "the random draw does not select it"
	case flow.StepUnknown:
		s.Text = "the effect of this rule is unknown"
	case flow.StepMarked:
		s.Mark = iptables.HexMark(w.Packet.Mark)
		s.Text = w.does(r)
	default:
		s.Text = w.does(r)
		if w.Packet.Mark != w.mark {
			s.Mark = iptables.HexMark(w.Packet.Mark)
		}
	}
	w.add(s)
}

// addNotFound adds a step for a rule whose target has nothing for the packet.
func (w *walk) addNotFound(c *chain, r *rule, t iptables.NativeTarget) {
	if w.quiet {
		return
	}
	w.addRule(c, r, flow.StepPassed)
	w.result.Steps[len(w.result.Steps)-1].Text = t.WhyNot(&w.Context)
}

// addUnknown adds a step for a rule that may match or not.
func (w *walk) addUnknown(c *chain, r *rule, text string) {
	if w.quiet {
		return
	}
	w.addRule(c, r, flow.StepUnknown)
	w.result.Steps[len(w.result.Steps)-1].Text = "unknown whether this rule matches" + text
}

// addNAT adds a step for a rule that has set the connection's translation.
func (w *walk) addNAT(c *chain, r *rule, s side) {
	if w.addRule(c, r, flow.StepApplied); w.quiet {
		return
	}
	step := &w.result.Steps[len(w.result.Steps)-1]
	t := inverse(w.entry.Reply)
	p := iptables.Packet{Protocol: t.Protocol, Source: t.Source, Destination: t.Destination}
	if s == sourceSide {
		if !w.entry.SNAT {
			step.Text = "the source is unchanged"
			return
		}
		step.Text = "the source becomes " + natText(t.Protocol, t.Source.Addr().String(), p.SourceText(), w.entry.SourcePorts)
		return
	}
	if !w.entry.DNAT {
		step.Text = "the destination is unchanged"
		return
	}
	step.Text = "the destination becomes " + natText(t.Protocol, t.Destination.Addr().String(), p.DestinationText(), w.entry.DestinationPorts)
}

// natText is the translated address, with the port if that is known.
func natText(protocol uint8, addr, full string, ports *iptables.PortRange) string {
	if ports == nil || !iptables.HasPorts(protocol) {
		return full
	}
	return fmt.Sprintf("%s, with a port from %d to %d that the kernel selects", addr, ports.First, ports.Last)
}

// addPolicy adds a step for the end of a built-in chain.
func (w *walk) addPolicy(c *chain) {
	if w.quiet {
		return
	}
	text := "the policy accepts it"
	if c.policy == iptables.PolicyDrop {
		text = "the policy drops it"
	}
	w.add(flow.Step{Table: c.table, Chain: c.name, File: c.file, Line: c.line, Outcome: flow.StepPolicy, Text: text})
}

func (w *walk) addRoute() {
	if w.quiet {
		return
	}
	to, r := w.Packet.Destination.Addr(), w.route
	text := ""
	switch r.Type {
	case Local:
		text = fmt.Sprintf("%s is an address of this host", to)
		if !w.machine.network.isLocal(to) {
			text = fmt.Sprintf("%s is routed to this host", to)
			if w.Packet.Mark != 0 {
				text += " by the mark " + iptables.HexMark(w.Packet.Mark)
			}
		}
	case Broadcast:
		text = fmt.Sprintf("%s is a broadcast address", to)
	case Unicast:
		text = fmt.Sprintf("%s is reached by %s", to, r.Interface)
		if r.Via.IsValid() {
			text += " via " + r.Via.String()
		}
		if hops := len(r.Others) + 1; hops > 1 {
			text += fmt.Sprintf(", one of %d next hops", hops)
			if slices.ContainsFunc(r.Others, func(device string) bool { return device != r.Interface }) {
				w.grant("that the kernel selects the next hop on %s for %s (others are on %s)", r.Interface, to, strings.Join(r.Others, ", "))
			}
		}
	case NoRoute:
		text = fmt.Sprintf("there is no route to %s", to)
	default:
		text = fmt.Sprintf("the route to %s is of type %s", r.Destination, r.Type)
	}
	if r.Table != "" {
		text += fmt.Sprintf(" (routing table %s)", r.Table)
	}
	w.add(flow.Step{Outcome: flow.StepRouted, Text: text})
}

func (w *walk) addTracked() {
	if w.quiet {
		return
	}
	text := ""
	switch {
	case w.tracking == TrackingInvalid:
		text = "connection tracking cannot assign it to a connection: its state is INVALID; the nat table is skipped"
	case w.tracking == TrackingUntracked:
		text = "connection tracking ignores it: its state is UNTRACKED; the nat table is skipped"
	case !w.entry.Confirmed:
		text = "the first packet of a connection: its state is NEW"
	case w.reply:
		text = "a reply of a known connection: its state is ESTABLISHED"
	default:
		text = fmt.Sprintf("another packet of a known connection: its state is %s", w.tracking)
	}
	w.add(flow.Step{Outcome: flow.StepTracked, Text: text})
}

// addTranslated adds a step for a packet that is translated by its connection's entry.
func (w *walk) addTranslated(s side) {
	if w.quiet {
		return
	}
	what, a := "source", w.Packet.SourceText()
	if s == destinationSide {
		what, a = "destination", w.Packet.DestinationText()
	}
	again := ""
	if w.reply {
		again = " again"
	}
	w.add(flow.Step{Outcome: flow.StepTracked, Text: fmt.Sprintf("the %s becomes %s%s, from its connection's entry; no rule is evaluated", what, a, again)})
}

// handleOf is the handle of a rule without a line; 0: it has a line.
func handleOf(r *rule) uint64 {
	if r.Line > 0 {
		return 0
	}
	return r.Handle
}

// ruleText is a rule without "-A chain".
func ruleText(r *iptables.Rule) string {
	return strings.TrimPrefix(strings.TrimPrefix(r.String(), "-A "+r.Chain), " ")
}

// because returns the matches that explain the rule's verdict, as the end of a sentence: source,
// destination and devices explain more than protocol and port.
func (w *walk) because(r *rule) string {
	for _, m := range r.matches() {
		if text := w.Why(m); text != "" {
			return ": " + text
		}
	}
	return ""
}

// does describes the effect of a rule that matched.
func (w *walk) does(r *rule) string {
	text := w.Effect(w.target)
	switch w.target.(type) {
	case nil:
		text = "is counted"
		if r.Native && r.Counters == nil {
			text = "matches"
		}
		for _, m := range r.matches() {
			switch m := m.(type) {
			case iptables.Recent:
				if m.Mode != iptables.RecentCheck {
					text = m.Changes(&w.Context)
				}
			case iptables.NativeMatch:
				if does := m.Does(&w.Context); does != "" {
					text = does
				}
			}
		}
	case iptables.Verdict, iptables.Reject, iptables.Tarpit:
		text += w.because(r)
	}
	if w.by != nil {
		text += ", by " + w.by.String()
	}
	if c := r.Comment(); c != "" {
		text += " (" + c + ")"
	}
	return text
}
