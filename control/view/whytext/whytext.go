// Package whytext renders the answers of package diagnose as text.
package whytext

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
)

// Answer renders an answer: the cause in the first line, then what to do, and who and where. explain adds the
// decision, step by step. It ends with a newline.
func Answer(s flowtext.Style, a *diagnose.Answer, explain bool) string {
	var b strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", what, fmt.Sprintf(format, args...))
	}
	b.WriteString(headline(s, a))
	if a.Cause != nil {
		fmt.Fprintf(&b, ": %s (%s)", a.Cause.Text, a.Cause.Code)
	}
	b.WriteString("\n\n")
	if a.Cause != nil {
		line("do", "%s", a.Cause.Do)
		if at := place(a.Cause); at != "" {
			line("look at", "%s", at)
		}
	}
	for i := range a.Notes {
		n := &a.Notes[i]
		line("note", "%s (%s)", n.Text, n.Code)
		line("", "%s", n.Do)
	}
	line("source", "%s", end(&a.Source))
	line("destination", "%s", end(&a.Destination))
	switch {
	case a.NodeIs == "":
	case a.Node == "":
		line("node", "not known: %s; give --node-name", a.NodeIs)
	default:
		line("node", "%s: %s", a.Node, a.NodeIs)
	}
	for i := range a.Passed {
		line("before", "%s passes it on unchanged: %s", a.Passed[i].Node, a.Passed[i].Is)
	}
	if a.Record != nil {
		line("decision", "%s", decision(a))
	}
	for i := range a.Endpoints {
		what := ""
		if i == 0 {
			what = "endpoints"
		}
		if i == maxEndpoints {
			line("", "and %d more", len(a.Endpoints)-i)
			break
		}
		line(what, "%s", endpoint(s, &a.Endpoints[i]))
	}
	if explain && a.Record != nil {
		for _, r := range append(slices.Clone(a.Record.Others), a.Record) {
			b.WriteString("\n" + indent(s.Story(r, false)))
		}
	}
	return b.String()
}

// maxEndpoints is how many endpoints are shown: an answer fits on a screen.
const maxEndpoints = 8

// headline is that of the answer, with its first words in the color of the outcome.
func headline(s flowtext.Style, a *diagnose.Answer) string {
	color := map[diagnose.Outcome]flowtext.Color{diagnose.Works: flowtext.Green, diagnose.Partly: flowtext.Yellow, diagnose.Fails: flowtext.Red}[a.Outcome]
	for _, words := range []string{"works in part", "works", "does not work"} {
		if rest, ok := strings.CutPrefix(a.Headline, words); ok {
			return s.Paint(color, words) + rest
		}
	}
	return a.Headline
}

func end(e *diagnose.End) string {
	if e.Address == "" {
		return e.Name
	}
	return e.Name + ", " + e.Address
}

// Options are what is shown of findings besides.
type Options struct {
	// Explain adds what happens to the example of each, step by step.
	Explain bool
	// Ignored lists also those that are ignored, instead of their number.
	Ignored bool
}

// Findings renders findings, the worst first as they come, with their numbers in the first line.
func Findings(s flowtext.Style, findings []diagnose.Finding, o Options) string {
	counts := make(map[diagnose.Severity]int)
	left := 0
	for i := range findings {
		if findings[i].Ignored != "" {
			left++
			continue
		}
		counts[findings[i].Code.Severity()]++
	}
	var parts []string
	for _, severity := range []diagnose.Severity{diagnose.Error, diagnose.Warning, diagnose.Note} {
		if n := counts[severity]; n > 0 {
			parts = append(parts, count(n, severity.String()))
		}
	}
	if len(parts) == 0 {
		return nothingWrong(s, left > 0) + ignored(s, findings, o)
	}
	var b strings.Builder
	fmt.Fprintln(&b, strings.Join(parts, ", "))
	for i := range findings {
		if f := &findings[i]; f.Ignored == "" {
			color := map[diagnose.Severity]flowtext.Color{diagnose.Error: flowtext.Red, diagnose.Warning: flowtext.Yellow, diagnose.Note: flowtext.Dim}[f.Code.Severity()]
			b.WriteString(finding(s, f, s.Paint(color, f.Code.Severity().String()), o))
		}
	}
	return b.String() + ignored(s, findings, o)
}

// nothing is the beginning of a verdict without a finding. but: there are findings that are ignored.
func nothing(but bool) string {
	if but {
		return "nothing else is wrong"
	}
	return "nothing is wrong"
}

func nothingWrong(s flowtext.Style, but bool) string {
	return s.Paint(flowtext.Green, nothing(but)) + ", as far as nfqproxy can see\n"
}

// ignored is about the findings that are ignored.
func ignored(s flowtext.Style, findings []diagnose.Finding, o Options) string {
	var b strings.Builder
	var codes []string
	number := 0
	for i := range findings {
		f := &findings[i]
		if f.Ignored == "" {
			continue
		}
		number++
		if !slices.Contains(codes, string(f.Code)) {
			codes = append(codes, string(f.Code))
		}
		if o.Ignored {
			b.WriteString(finding(s, f, s.Paint(flowtext.Dim, "ignored "+f.Code.Severity().String()), o))
			fmt.Fprintf(&b, "  %-8s %s\n", "ignored", "by "+f.Ignored)
		}
	}
	if number == 0 || o.Ignored {
		return b.String()
	}
	if number == 1 {
		return fmt.Sprintf("\n1 finding is ignored (%s); --notes lists it\n", codes[0])
	}
	return fmt.Sprintf("\n%d findings are ignored (%s); --notes lists them\n", number, strings.Join(codes, ", "))
}

// finding renders one finding.
func finding(s flowtext.Style, f *diagnose.Finding, severity string, o Options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s %s: %s\n", severity, f.Code, f.Text)
	if at := place(f); at != "" {
		fmt.Fprintf(&b, "  %-8s %s\n", "look at", at)
	}
	if f.Example != nil {
		fmt.Fprintf(&b, "  %-8s %s\n", "example", f.Example.Text)
	}
	fmt.Fprintf(&b, "  %-8s %s\n", "do", f.Do)
	if o.Explain && f.Example != nil {
		b.WriteString("\n" + indent(s.Story(f.Example.Record, false)))
	}
	return b.String()
}

// indent indents all lines.
func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// place is the object and the field to look at.
func place(f *diagnose.Finding) string {
	if f.Object == "" || f.Field == "" {
		return f.Object
	}
	return f.Object + ", " + f.Field
}

func decision(a *diagnose.Answer) string {
	r := a.Record
	words := map[string]string{"accept": "not translated", "reject": "rejected", "drop": "dropped", "dnat": "translated"}[r.Verdict]
	if r.Service != "" {
		words += ", for " + r.Service
	}
	if r.Masquerade {
		node := "the node"
		if r.Node != "" {
			node = r.Node
		}
		words += "; the endpoint sees an address of " + node + " as the source"
	}
	return words
}

func endpoint(s flowtext.Style, e *diagnose.Endpoint) string {
	text := e.Address
	if e.Pod != "" {
		text += "  pod " + e.Pod
	}
	if e.Node != "" {
		text += " on " + e.Node
	}
	if e.Problem != nil {
		text += "  " + s.Paint(flowtext.Red, string(e.Problem.Code))
	}
	if e.Flows != nil {
		text += "  " + e.Flows.String()
	}
	return text
}
