package flowtext

import (
	"fmt"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/nfqproxy/nfqproxy/control/view/visible"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Style configures how records are rendered as text. The zero value is valid.
type Style struct {
	Color     bool // use ANSI escape sequences
	NodeWidth int  // width of the column of node names, at least
	// Seal goes into the escape sequences: that of the writer, where it is a [visible.Writer].
	Seal visible.Seal
}

// StyleFor returns a style with colours if w is a terminal and colours are not disabled
// (no-color.org).
func StyleFor(w io.Writer) Style {
	f, ok := visible.File(w)
	return Style{
		Color: ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		Seal:  visible.SealOf(w),
	}
}

// Color is a colour of text: an SGR parameter (ECMA-48).
type Color string

// The colours. Details are dim.
const (
	Bold   Color = "1"
	Dim    Color = "2"
	Red    Color = "31"
	Green  Color = "32"
	Yellow Color = "33"
)

// Paint returns the text in a colour, if the style has colours.
func (s Style) Paint(c Color, text string) string {
	if !s.Color || text == "" {
		return text
	}
	return s.Seal.Paint(string(c), text)
}

// Line renders a record as one line, without a newline at its end:
//
//	12:04:05.123 worker1  TCP 10.244.1.9:41000 -> 10.96.118.136:80  default/my-nginx-service  => 10.244.2.2:80 (2 of 2, draw 0.71)  masq: -
//
// The time is in the local zone of the record's Time.
func (s Style) Line(r *flow.Record) string {
	var b strings.Builder
	if r.Time != nil {
		b.WriteString(r.Time.Format("15:04:05.000") + " ")
	}
	if r.Node != "" || s.NodeWidth > 0 {
		fmt.Fprintf(&b, "%-*s  ", s.NodeWidth, r.Node)
	}
	fmt.Fprintf(&b, "%s %s -> %s  ", r.Protocol, r.Source, r.Destination)
	b.WriteString(s.Outcome(r))
	if r.Service == "" {
		return s.Paint(Dim, b.String())
	}
	return b.String()
}

// Outcome renders the second half of Line: the service, and the endpoint or the verdict.
func (s Style) Outcome(r *flow.Record) string {
	if r.Service == "" && (r.Verdict == decision.Accept.String() || r.Verdict == "") {
		return "not for a service"
	}
	var b strings.Builder
	if r.Service != "" { // by a dump's rules, others than services are dropped, too
		b.WriteString(r.Service + "  ")
	}
	if r.Verdict != decision.DNAT.String() {
		b.WriteString("=> " + s.Paint(Red, r.Verdict) + ": " + strings.ReplaceAll(r.Reason, "-", " "))
		return b.String()
	}
	b.WriteString("=> " + s.Paint(Green, r.Endpoint) + choice(r) + "  masq: " + s.masquerade(r))
	switch r.Conntrack {
	case "kept", "replaced":
		b.WriteString("  " + s.Paint(Dim, r.Conntrack))
	case "failed":
		b.WriteString("  " + s.Paint(Red, "failed: "+r.Error))
	}
	return b.String()
}

// choice describes the selection of the endpoint: " (2 of 3, draw 0.71)".
func choice(r *flow.Record) string {
	position := 0
	for i, c := range r.Candidates {
		if c.Endpoint == r.Endpoint {
			position = i + 1
		}
	}
	switch {
	case position == 0: // an earlier decision, and the endpoint has been removed since
		return ""
	case r.Draw != nil:
		return fmt.Sprintf(" (%d of %d, draw %.2f)", position, len(r.Candidates), *r.Draw)
	case len(r.Candidates) == 1:
		return " (the only one)"
	}
	return fmt.Sprintf(" (%d of %d)", position, len(r.Candidates))
}

func (s Style) masquerade(r *flow.Record) string {
	if !r.Masquerade {
		return "-"
	}
	text := r.MasqueradeAddress
	if r.MasqueradeReason != "" {
		if text != "" {
			text += " "
		}
		text += "(" + r.MasqueradeReason + ")"
	}
	if text == "" {
		text = "yes"
	}
	return s.Paint(Yellow, text)
}

// Walk renders the steps of a record, one line each: the chain, the outcome of its rule
// and the reason. Each line starts with indent and ends with a newline; it is empty for a
// record without steps.
func (s Style) Walk(r *flow.Record, indent string) string { return s.walk(r, indent, false) }

func (s Style) walk(r *flow.Record, indent string, rules bool) string {
	width := 0
	for _, step := range r.Steps {
		width = max(width, len(step.Chain))
	}
	var b strings.Builder
	last := ""
	for _, step := range r.Steps {
		// Consecutive rules of a chain share one chain name.
		name := step.Chain
		if name == last {
			name = ""
		}
		last = step.Chain
		mark := s.Sign(step.Outcome)
		text := step.Text
		if p := probability(step.Rule); p != "" {
			text = p + ": " + text
		}
		if step.Outcome == flow.StepPassed {
			text = s.Paint(Dim, text)
		}
		fmt.Fprintf(&b, "%s%-*s %s %s\n", indent, width, name, mark, text)
		if rules && step.Rule != "" {
			fmt.Fprintf(&b, "%s%-*s    %s\n", indent, width, "", s.Paint(Dim, step.Rule))
		}
	}
	return b.String()
}

// Sign is the symbol of an outcome: two characters in front of its description.
func (s Style) Sign(o flow.StepOutcome) string {
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

// probability finds the argument of a statistic match: "p 0.50".
func probability(rule string) string {
	_, after, ok := strings.Cut(rule, "--probability ")
	if !ok {
		return ""
	}
	p, _, _ := strings.Cut(after, " ")
	if len(p) > 4 {
		p = p[:4]
	}
	return "p " + p
}
