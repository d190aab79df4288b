package text

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
)

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
