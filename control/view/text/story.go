package text

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
)

var words = vocabulary.Words()

// storyLabel is the width of the labels of a story.
const storyLabel = 9

// Explain renders a record in detail: the verdict with its reason, the walk through the
// chains, and the endpoints. It ends with a newline.
func (s Style) Explain(r *flow.Record, walk Walk) string {
	var b strings.Builder
	from := ""
	if r.Local {
		from = ", sent by the node itself"
	}
	if r.Node != "" {
		from += ", on node " + r.Node
	}
	fmt.Fprintf(&b, "%s %s -> %s%s\n\n", r.Protocol, r.Source, r.Destination, from)
	for _, l := range s.decision(r) {
		labeled(&b, storyLabel, l.name, l.text)
	}
	if r.Hint != "" {
		labeled(&b, storyLabel, "hint", r.Hint)
	}
	s.detail(&b, r, walk)
	if r.Reply != nil {
		b.WriteString("\n  reply path\n")
		for i, step := range r.Reply.Steps {
			fmt.Fprintf(&b, "  %d. %s\n", i+1, step)
		}
	}
	return b.String()
}

// decisionLine is a line about a decision.
type decisionLine struct{ name, text string }

// decision describes the verdict of a record, and what is translated.
func (s Style) decision(r *flow.Record) []decisionLine {
	var lines []decisionLine
	if r.Service != "" {
		name := r.Service
		if r.Entry != "" {
			name += ", by its " + words.Entries.Of(r.Entry)
		}
		lines = append(lines, decisionLine{"service", name})
	}
	lines = append(lines, decisionLine{"verdict", s.verdict(r)})
	if r.Proxy != "" {
		lines = append(lines, decisionLine{"decided by", r.Proxy + "; nfqproxy only observed the flow"})
	}
	if r.Outdated > 0 {
		lines = append(lines, decisionLine{"outdated", s.Paint(Red, "for "+unit.Seconds(r.Outdated)) + ": according to the node's objects, the endpoint had been removed or should get no new flows"})
	}
	if r.Verdict == decision.DNAT.String() {
		lines = append(lines, decisionLine{"source", s.source(r)})
	}
	if candidatesUnknown(r) {
		lines = append(lines, decisionLine{"choice", "unknown: the endpoints are not recorded"})
	}
	if r.Error != "" && r.Verdict == decision.Drop.String() {
		lines = append(lines, decisionLine{"error", r.Error})
	}
	return lines
}

// detail writes the walk through the chains and the endpoints.
func (s Style) detail(b *strings.Builder, r *flow.Record, walk Walk) {
	if steps := s.Steps(r.Steps, "  ", walk); steps != "" {
		b.WriteString("\n")
		if r.Proxy != "" {
			b.WriteString("  rules that the flow must have met, by the service table at that time (not observed)\n")
		}
		b.WriteString(steps)
	}
	if len(r.Candidates)+len(r.Excluded) > 0 {
		b.WriteString("\n" + endpoints(r))
	}
	if len(r.Shadows) > 0 {
		b.WriteString("\n" + shadows(r))
	}
}

func (s Style) verdict(r *flow.Record) string {
	switch r.Verdict {
	case decision.DNAT.String():
		text := s.Paint(Green, r.Endpoint)
		if r.Pod != "" {
			text += ", pod " + r.Pod
		}
		return text + selectionReason(r)
	case decision.Accept.String():
		if r.Reason == decision.TranslationUnknown.String() {
			return s.Paint(Dim, "not known") + ": " + words.Reasons.Of(r.Reason)
		}
		return s.Paint(Dim, "passes unchanged") + ": " + words.Reasons.Of(r.Reason)
	case decision.Reject.String():
		return s.Paint(Red, "rejected") + ": " + words.Reasons.Of(r.Reason)
	}
	return s.Paint(Red, "dropped") + ": " + words.Reasons.Of(r.Reason)
}

// selectionReason describes, after the endpoint, its selection.
func selectionReason(r *flow.Record) string {
	text := choice(r)
	if r.Reason == decision.Bound.String() || r.Reason == decision.UnknownEndpoint.String() {
		text = " (" + words.Reasons.Of(r.Reason) + ")"
	}
	switch r.Branch {
	case decision.BranchPodShortcut.String(), decision.BranchNodeShortcut.String():
		text += "; " + words.Branches.Of(r.Branch)
	}
	return text
}

func (s Style) source(r *flow.Record) string {
	switch {
	case sourceUnknown(r):
		return "not known"
	case r.Masquerade && r.MasqueradeReason == "":
		return s.Paint(Yellow, "masqueraded") + " as " + cmp.Or(r.MasqueradeAddress, "an address of this node")
	case r.Masquerade:
		text := s.Paint(Yellow, "masqueraded") + " as an address of this node: " + words.Masquerades.Of(r.MasqueradeReason)
		if r.MasqueradeRule != "" {
			text += "\n            " + s.Paint(Dim, r.MasqueradeRule)
		}
		return text
	case r.MasqueradeReason != "":
		return "unchanged: marked for masquerade, but delivered on this node before POSTROUTING"
	}
	return "unchanged"
}

// shadows renders what other algorithms would have selected.
func shadows(r *flow.Record) string {
	rows := [][]string{{"SHADOW", "WOULD SELECT", "BECAUSE"}}
	for _, o := range r.Shadows {
		endpoint := o.Endpoint
		if endpoint == r.Endpoint {
			endpoint = "the same"
		}
		rows = append(rows, []string{o.Algorithm, endpoint, cmp.Or(o.Evidence, "no choice")})
	}
	return Columns("  ", 2, rows)
}

// endpoints renders the table of endpoints.
func endpoints(r *flow.Record) string {
	rows := [][]string{{"ENDPOINT", "PROBABILITY"}}
	for _, c := range r.Candidates {
		chance := unit.Probability(c.Probability)
		if r.Balance != nil && r.Balance.Probability == 0 {
			chance = "?"
		}
		row := []string{c.Endpoint, chance}
		if c.Endpoint == r.Endpoint {
			row = append(row, "<- chosen")
		}
		rows = append(rows, row)
	}
	for _, e := range r.Excluded {
		rows = append(rows, []string{e.Endpoint, "-", words.Exclusions.Of(e.Reason)})
	}
	return Columns("  ", 2, rows)
}
