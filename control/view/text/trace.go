package text

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/trace"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
)

// tracing renders one trace.
type tracing struct {
	Style
	walk Walk
}

// Trace renders a trace. It ends with a newline.
func (s Style) Trace(t *trace.Trace, walk Walk) string {
	x := tracing{s, walk}
	var b strings.Builder
	b.WriteString(asked(t) + "\n\n")
	if t.Proxy != "" {
		b.WriteString("  " + t.Proxy + "\n\n")
	}
	headed(&b, "not in the listing (iptables-save has it):", t.Incomplete)
	headed(&b, "assumed, as the rules do not contain it (set it with --host, --address and --route):", t.Notes)
	headed(&b, "depends on:", t.Conditions)
	headed(&b, "left out, because it exceeds a limit:", t.Cut)
	assuming := ""
	if len(t.Assuming) > 0 {
		last := len(t.Assuming) - 1
		assuming = " (assuming that " + strings.Join(t.Assuming[:last], ", that ")
		if last > 0 {
			assuming += ", and that "
		}
		assuming += t.Assuming[last] + ")"
	}
	if len(t.Ways) == 1 {
		b.WriteString("  " + x.outcome(&t.Ways[0]) + assuming + "\n")
		x.details(&b, &t.Ways[0])
		b.WriteString(x.Steps(t.Ways[0].Steps, "  ", x.walk))
		x.answers(&b, &t.Ways[0], nil)
		return b.String()
	}
	fmt.Fprintf(&b, "  %d paths, by probability%s:\n", len(t.Ways), assuming)
	for i := range t.Ways {
		fmt.Fprintf(&b, "  %-6s %s\n", unit.Probability(t.Ways[i].Probability), x.outcome(&t.Ways[i]))
	}
	if t.LeftOut > 0 {
		fmt.Fprintf(&b, "  %-6s other paths, not shown\n", unit.Probability(t.LeftOut))
	}
	shared := slices.MinFunc(t.Ways, func(a, b trace.Way) int { return a.Fork - b.Fork }).Fork
	b.WriteString("\n")
	b.WriteString(x.Steps(t.Ways[0].Steps[:shared], "  ", x.walk))
	for i := range t.Ways {
		w := &t.Ways[i]
		fmt.Fprintf(&b, "\n  %s %s\n", x.Paint(Green, fmt.Sprintf("path %d of %d, %s:", i+1, len(t.Ways), unit.Probability(w.Probability))), x.outcome(w))
		x.details(&b, w)
		var first *trace.Way
		if i > 0 {
			first = &t.Ways[0]
			x.walkBeside(&b, w.Steps[shared:], first.Steps[shared:])
		} else {
			b.WriteString(x.Steps(w.Steps[shared:], "  ", x.walk))
		}
		x.answers(&b, w, first)
	}
	return b.String()
}

// headed writes lines below a heading; nothing if there are none.
func headed(b *strings.Builder, heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	b.WriteString("  " + heading + "\n")
	for _, l := range lines {
		b.WriteString("  - " + l + "\n")
	}
	b.WriteString("\n")
}

// asked is the packet and its input interface.
func asked(t *trace.Trace) string {
	how := "sent by the host itself"
	if !t.Local {
		how = "received on " + t.InInterface
	}
	if t.Start != "" {
		how += ", from chain " + t.Start + " on"
	}
	return fmt.Sprintf("%s %s -> %s, %s", t.Protocol, cmp.Or(t.Source, "from the host"), t.Destination, how)
}

// outcome is the outcome for the packet, in one line.
func (x tracing) outcome(w *trace.Way) string {
	by := ""
	if w.Line > 0 {
		by = fmt.Sprintf(" by line %d", w.Line)
	} else if w.Handle > 0 {
		by = fmt.Sprintf(" by the rule with handle %d", w.Handle)
		if w.File != "" {
			by += " of " + w.File
		}
	}
	because := ""
	if w.Why != "" {
		because = ": " + w.Why
	}
	switch w.Verdict {
	case "sent":
		return x.Paint(Green, "sent") + fmt.Sprintf(" by %s: %s -> %s", w.Out, sourceOf(w), destinationOf(w))
	case "delivered":
		return x.Paint(Green, "delivered") + fmt.Sprintf(" on the host itself: %s -> %s", sourceOf(w), destinationOf(w)) + strings.Replace(because, ": ", "; ", 1)
	case "rejected":
		return x.Paint(Red, "refused") + fmt.Sprintf(" with %s", w.With) + by + because
	case "dropped":
		return x.Paint(Red, "dropped") + by + because
	case "queued":
		return x.Paint(Yellow, "queued") + by + ": a userspace program decides"
	case "answered":
		return w.Why
	case "returned":
		return fmt.Sprintf("%s -> %s, mark %s", sourceOf(w), destinationOf(w), w.Mark) + because
	}
	if w.Cut != "" {
		return x.Paint(Yellow, "not known") + because
	}
	next := "--assume continues"
	switch {
	case w.Answer || w.Flag == "":
	case w.Flag == "--start":
		next = "--start begins in a chain that is, --assume continues without"
	default:
		next = w.Flag + " sets it, --assume continues without"
	}
	return x.Paint(Yellow, "not known") + because + "; " + next
}

// sourceOf is the final source.
func sourceOf(w *trace.Way) string {
	if w.Answer || w.Conntrack == nil || w.Conntrack.SourcePorts == nil {
		return w.Source
	}
	return withPorts(w.Source, w.Conntrack.SourcePorts)
}

func destinationOf(w *trace.Way) string {
	if w.Answer || w.Conntrack == nil || w.Conntrack.DestinationPorts == nil {
		return w.Destination
	}
	return withPorts(w.Destination, w.Conntrack.DestinationPorts)
}

// withPorts is an address whose port the kernel chooses; for ICMP it is the id, which is not
// shown.
func withPorts(a string, ports *[2]uint16) string {
	colon := strings.LastIndexByte(a, ':')
	if _, err := strconv.Atoi(a[colon+1:]); err != nil || colon < 0 || strings.Count(a, ":") > 1 && a[0] != '[' {
		return a
	}
	return fmt.Sprintf("%s (port %d-%d)", a[:colon], ports[0], ports[1])
}

// details are the connection's entry and the assumptions.
func (x tracing) details(b *strings.Builder, w *trace.Way) {
	if c := w.Conntrack; c != nil && (w.Verdict == "sent" || w.Verdict == "delivered" || w.Verdict == "returned") {
		fmt.Fprintf(b, "  entry  %s -> %s, reply %s -> %s", c.Original.Source, c.Original.Destination, c.Reply.Source, c.Reply.Destination)
		if c.Mark != "0x0" {
			fmt.Fprintf(b, ", mark %s", c.Mark)
		}
		b.WriteString("\n")
	}
	assumptions(b, w)
}

func assumptions(b *strings.Builder, w *trace.Way) {
	for _, a := range w.Assumptions {
		fmt.Fprintf(b, "  assumed: %s\n", a)
	}
}

// walkBeside is walk for a path whose last steps may be those of the first path, except for
// addresses.
func (x tracing) walkBeside(b *strings.Builder, walk, first []flow.Step) {
	tail := commonTail(walk, first)
	if tail < 2 {
		tail = 0
	}
	b.WriteString(x.Steps(walk[:len(walk)-tail], "  ", x.walk))
	switch {
	case tail == len(walk) && tail > 0:
		fmt.Fprintf(b, "    %s\n", x.Paint(Dim, "the same steps as in path 1"))
	case tail > 0:
		fmt.Fprintf(b, "    %s\n", x.Paint(Dim, fmt.Sprintf("then the same %d steps as in path 1", tail)))
	}
}

// answers renders the path of the reply and of the next packet; first is the path rendered before,
// if any.
func (x tracing) answers(b *strings.Builder, w, first *trace.Way) {
	if first == nil {
		first = &trace.Way{}
	}
	x.answer(b, "the reply", w.Reply, first.Reply)
	x.answer(b, "the next packet", w.Later, first.Later)
}

// answer renders a packet that follows the first one.
func (x tracing) answer(b *strings.Builder, what string, w, first *trace.Way) {
	if w == nil {
		return
	}
	fmt.Fprintf(b, "\n  %s: %s\n", what, x.outcome(w))
	assumptions(b, w)
	if first == nil {
		b.WriteString(x.Steps(w.Steps, "  ", x.walk))
		return
	}
	x.walkBeside(b, w.Steps, first.Steps)
}

// commonTail returns how many last steps two paths have in common, except for addresses.
func commonTail(a, b []flow.Step) int {
	n := 0
	for n < len(a) && n < len(b) {
		s, o := a[len(a)-1-n], b[len(b)-1-n]
		random := s.Table == "" && s.Probability > 0 // a choice without a rule, which shows in the text only
		if s.Line != o.Line || s.Handle != o.Handle || s.Chain != o.Chain || s.Hook != o.Hook || s.Outcome != o.Outcome || random {
			break
		}
		n++
	}
	return n
}

// Walk is how a packet's way through the chains is rendered.
type Walk string

// The ways to render a walk; an empty one is none.
const (
	WalkNone  Walk = "none"
	WalkWords Walk = "words"
	WalkRules Walk = "rules" // in words, and each rule as iptables-save prints it
	WalkAll   Walk = "all"   // the same, and the steps have the rules that do not match
)

// Shown reports whether anything of the walk is rendered.
func (w Walk) Shown() bool { return w != "" && w != WalkNone }

// lineText is the number of a step's line, or "#12" for a rule that has only a handle; empty: neither is known.
func lineText(step *flow.Step) string {
	switch {
	case step.Line > 0:
		return strconv.Itoa(step.Line)
	case step.Handle > 0:
		return "#" + strconv.FormatUint(step.Handle, 10)
	}
	return ""
}

// Steps renders a walk, one line for each step: the chain, the outcome of its rule and the reason.
// Consecutive rules of a chain share one chain name. Steps through a dump have the line of the
// rule, below a heading for each hook and table. Each line starts with indent and ends with a newline.
func (s Style) Steps(steps []flow.Step, indent string, walk Walk) string {
	if !walk.Shown() {
		return ""
	}
	chains, lines := 0, 1
	for _, step := range steps {
		chains, lines = max(chains, len(step.Chain)), max(lines, len(lineText(&step)))
	}
	var b strings.Builder
	place, chain := "", ""
	for _, step := range steps {
		margin, blank := indent, indent
		if step.Hook != "" { // of a dump
			if p := step.Hook + " " + step.Table + " " + step.File; p != place {
				place, chain = p, ""
				heading := step.Hook
				if step.Table != "" {
					heading += ", table " + step.Table
				}
				if step.File != "" {
					heading += ", " + step.File
				}
				b.WriteString(indent + s.Paint(Dim, heading) + "\n")
			}
			if step.Table == "" {
				fmt.Fprintf(&b, "%s  %s\n", indent, s.reason(&step))
				continue
			}
			margin = fmt.Sprintf("%s  %s  ", indent, s.Paint(Dim, fmt.Sprintf("%*s", lines, lineText(&step))))
			blank = fmt.Sprintf("%s  %*s  ", indent, lines, "")
		}
		name := step.Chain
		if name == chain {
			name = ""
		}
		chain = step.Chain
		fmt.Fprintf(&b, "%s%-*s %s %s\n", margin, chains, name, s.outcomeSign(step.Outcome), s.reason(&step))
		if walk != WalkWords && step.Rule != "" {
			fmt.Fprintf(&b, "%s%-*s    %s\n", blank, chains, "", s.Paint(Dim, step.Rule))
		}
	}
	return b.String()
}

// reason is the text of a step, after the probability of its outcome.
func (s Style) reason(step *flow.Step) string {
	text := step.Text
	if step.Probability > 0 {
		text = "p " + unit.Probability(step.Probability) + ": " + text
	} else if _, after, ok := strings.Cut(step.Rule, "--probability "); ok && step.Hook == "" {
		p, _, _ := strings.Cut(after, " ")
		text = "p " + p[:min(len(p), 4)] + ": " + text
	}
	if step.Outcome == flow.StepPassed || step.Outcome == flow.StepPolicy {
		text = s.Paint(Dim, text)
	}
	return text
}

// outcomeSign is the symbol of an outcome: two characters in front of its description.
func (s Style) outcomeSign(o flow.StepOutcome) string {
	switch o {
	case flow.StepPassed:
		return s.Paint(Dim, " .")
	case flow.StepMarked:
		return s.Paint(Yellow, " *")
	case flow.StepUnknown:
		return s.Paint(Yellow, " ?")
	case flow.StepPolicy:
		return s.Paint(Dim, " =")
	}
	return s.Paint(Green, "->")
}
