package text

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Answer renders an answer: the cause in the first line, then what to do, and who and where. With a walk it has
// the decision, step by step. It ends with a newline.
func (s Style) Answer(a *diagnose.Answer, walk Walk) string {
	var b strings.Builder
	line := func(label string, lines ...string) { labeled(&b, answerLabel, label, lines...) }
	b.WriteString(s.headline(a))
	if a.Cause != nil {
		fmt.Fprintf(&b, ": %s (%s)", a.Cause.Text, a.Cause.Code)
	}
	b.WriteString("\n\n")
	if a.Cause != nil {
		line("do", a.Cause.Do)
		if at := place(a.Cause); at != "" {
			line("look at", at)
		}
	}
	notes := a.Notes
	for _, p := range problems(a) {
		do := p.Do
		// A note that counts the endpoints with this problem repeats it; the headline has the number.
		if i := slices.IndexFunc(notes, func(n diagnose.Finding) bool { return n.Code == p.Code && strings.HasSuffix(n.Text, ": "+p.Text) }); i >= 0 {
			do, notes = notes[i].Do, slices.Concat(notes[:i], notes[i+1:])
		}
		line("problem", fmt.Sprintf("%s (%s)", p.Text, p.Code), do)
	}
	for i := range notes {
		n := &notes[i]
		line("note", fmt.Sprintf("%s (%s)", n.Text, n.Code), n.Do)
	}
	line("source", end(&a.Source))
	line("destination", end(&a.Destination))
	switch {
	case a.NodeIs == "":
	case a.Node == "":
		line("node", "not known: "+a.NodeIs+"; give --node")
	default:
		line("node", a.Node+": "+a.NodeIs)
	}
	for i := range a.Passed {
		line("before", a.Passed[i].Node+" passes it on unchanged: "+a.Passed[i].Is)
	}
	if a.Record != nil {
		line("decision", decisionInWords(a.Record))
	}
	var endpoints []string
	for i := range a.Endpoints {
		endpoints = append(endpoints, s.tried(&a.Endpoints[i]))
	}
	line("endpoints", first(mostEndpoints, endpoints)...)
	if walk.Shown() && a.Record != nil {
		for _, r := range append(slices.Clone(a.Record.Others), a.Record) {
			b.WriteString("\n" + indented(s.Explain(r, walk)))
		}
	}
	return b.String()
}

const (
	// answerLabel and findingLabel are the widths of the labels of an answer, and of a finding.
	answerLabel  = 12
	findingLabel = 8
	// mostEndpoints is how many endpoints are shown: an answer fits on a screen.
	mostEndpoints = 8
)

// headline is the answer's first line, with its first words in the color of the outcome.
func (s Style) headline(a *diagnose.Answer) string {
	color := map[diagnose.Outcome]Color{diagnose.Works: Green, diagnose.Partly: Yellow, diagnose.Fails: Red}[a.Outcome]
	for _, words := range []string{"works in part", "works", "does not work", "probably does not work"} {
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

// FindingOptions select further output about findings.
type FindingOptions struct {
	// Walk adds what happens to the example of each, step by step.
	Walk Walk
	// Ignored lists also those that are ignored, instead of their number.
	Ignored bool
	// Hidden are notes that are not listed. Where nothing is found they are said in short.
	Hidden []diagnose.Finding
}

// found renders findings, the worst first as they come, with their numbers in the first line.
func (s Style) found(findings []diagnose.Finding, o FindingOptions) string {
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
			parts = append(parts, quantity.Count(n, severity.String()))
		}
	}
	if len(parts) == 0 {
		return s.nothingWrong(left > 0) + hidden(o.Hidden) + s.ignored(findings, o)
	}
	var b strings.Builder
	fmt.Fprintln(&b, strings.Join(parts, ", "))
	for i := range findings {
		if f := &findings[i]; f.Ignored == "" {
			color := map[diagnose.Severity]Color{diagnose.Error: Red, diagnose.Warning: Yellow, diagnose.Note: Dim}[f.Code.Severity()]
			b.WriteString(s.finding(f, s.Paint(color, f.Code.Severity().String()), o))
		}
	}
	return b.String() + s.ignored(findings, o)
}

// noFindingText is the beginning of a verdict without a finding. but: there are findings that are ignored.
func noFindingText(but bool) string {
	if but {
		return "nothing else is wrong"
	}
	return "nothing is wrong"
}

func (s Style) nothingWrong(but bool) string {
	return s.Paint(Green, noFindingText(but)) + ", as far as nfqproxy can see\n"
}

// maxHidden is how many notes are said in short.
const maxHidden = 3

// hidden says notes in short.
func hidden(notes []diagnose.Finding) string {
	if len(notes) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, in full with --notes:\n", quantity.Count(len(notes), "note"))
	for _, f := range notes[:min(len(notes), maxHidden)] {
		fmt.Fprintf(&b, "  %s: %s\n", f.Code, f.Text)
	}
	if more := len(notes) - maxHidden; more > 0 {
		fmt.Fprintf(&b, "  and %d more\n", more)
	}
	return b.String()
}

// ignored is about the findings that are ignored.
func (s Style) ignored(findings []diagnose.Finding, o FindingOptions) string {
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
			b.WriteString(s.finding(f, s.Paint(Dim, "ignored "+f.Code.Severity().String()), o))
			labeled(&b, findingLabel, "ignored", "by "+f.Ignored)
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
func (s Style) finding(f *diagnose.Finding, severity string, o FindingOptions) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s %s: %s\n", severity, f.Code, f.Text)
	if at := place(f); at != "" {
		labeled(&b, findingLabel, "look at", at)
	}
	if f.Nodes != "" {
		labeled(&b, findingLabel, "nodes", nearest.Few(f.Nodes.List()))
	}
	if f.Example != nil {
		labeled(&b, findingLabel, "example", f.Example.Text)
	}
	labeled(&b, findingLabel, "do", f.Do)
	if o.Walk.Shown() && f.Example != nil {
		b.WriteString("\n" + indented(s.Explain(f.Example.Record, o.Walk)))
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

func decisionInWords(r *flow.Record) string {
	words := map[string]string{"accept": "not translated", "reject": "rejected", "drop": "dropped", "dnat": "translated"}[r.Verdict]
	if r.Service != "" {
		words += ", for " + r.Service
	}
	switch {
	case r.Masquerade && r.MasqueradeReason == decision.MarkHairpin.String():
		words += "; where the endpoint is the source itself, it sees an address of " + cmp.Or(r.Node, "the node") + " as the source"
	case r.Masquerade:
		words += "; the endpoint sees an address of " + cmp.Or(r.Node, "the node") + " as the source"
	}
	return words
}

// problems are those of endpoints besides the cause, each once; of several with one code, the first.
func problems(a *diagnose.Answer) (list []*diagnose.Finding) {
	for i := range a.Endpoints {
		p := a.Endpoints[i].Problem
		if p == nil || a.Cause != nil && a.Cause.Code == p.Code || slices.ContainsFunc(list, func(other *diagnose.Finding) bool { return other.Code == p.Code }) {
			continue
		}
		list = append(list, p)
	}
	return list
}

// tried is an endpoint with what is known of it.
func (s Style) tried(e *diagnose.Endpoint) string {
	text := endpointName(e.Address, e.Pod, e.Node)
	if e.Problem != nil {
		text += "  " + s.Paint(Red, string(e.Problem.Code))
	}
	if e.Flows != nil {
		text += "  " + e.Flows.String()
	}
	return text
}

// Findings renders findings, the worst first as they come, with their numbers in the first line. After findings about
// rules it says what was examined. Rules that do not show services are said to be so in the first line.
func (s Style) Findings(findings []diagnose.Finding, examined []*diagnose.Examined, o FindingOptions) string {
	var b strings.Builder
	followed, judged, partly, unclear := 0, 0, 0, 0
	for _, e := range examined {
		followed, judged, partly, unclear = followed+e.Connections, judged+e.Judged, partly+e.Partly, unclear+e.Unclear
		if e.OtherMode != "" {
			fmt.Fprintln(&b, e.OtherMode)
		}
	}
	ignored := slices.ContainsFunc(findings, func(f diagnose.Finding) bool { return f.Ignored != "" })
	drops := slices.ContainsFunc(slices.Concat(findings, o.Hidden), func(f diagnose.Finding) bool { return f.Code == diagnose.NodesWithout })
	verdict := s.nothingFound(ignored || drops, followed, judged, partly, unclear)
	if drops {
		verdict = "some connections are dropped on this node, as a traffic policy is Local (NFQ032); " + verdict
	}
	switch {
	case len(examined) == 0 || slices.ContainsFunc(findings, func(f diagnose.Finding) bool { return f.Wrong() }):
		b.WriteString(s.found(findings, o))
	case slices.ContainsFunc(findings, func(f diagnose.Finding) bool { return f.Ignored == "" }): // notes
		b.WriteString(verdict + "\n" + s.found(findings, o))
	default:
		b.WriteString(verdict + hidden(o.Hidden) + s.ignored(findings, o))
	}
	for _, e := range examined {
		b.WriteString("\n" + scope(e, len(examined) > 1))
	}
	return b.String()
}

// nothingFound is the verdict without a finding: it says no more than is known. but: there are findings that are ignored.
func (s Style) nothingFound(but bool, followed, judged, partly, unclear int) string {
	if judged == 0 {
		return "no connection to a service could be followed to its end: no verdict\n"
	}
	text := s.nothingWrong(but)
	switch {
	case unclear == 1:
		text = noFindingText(but) + " with what was examined; of 1 rule or policy it is not known whether it is in the way of connections: see below\n"
	case unclear > 1:
		text = fmt.Sprintf("%s with what was examined; of %d rules or policies it is not known whether they are in the way of connections: see below\n", noFindingText(but), unclear)
	}
	rest := "otherwise "
	if partly > 0 {
		text = fmt.Sprintf("no full verdict about %s of %d: some of their ends are not known; %s", quantity.Count(partly, "connection"), followed, rest+text)
		rest = ""
	}
	if judged < followed {
		if rest != "" {
			rest = "with the others "
		}
		text = fmt.Sprintf("no verdict about %s of %d: their ends are not known; %s", quantity.Count(followed-judged, "connection"), followed, rest+text)
	}
	return text
}

// scope is what was examined, what was not, and what was assumed.
func scope(e *diagnose.Examined, several bool) string {
	var b strings.Builder
	lines := func(label string, lines ...string) { labeled(&b, answerLabel, label, lines...) }
	if several {
		lines("rules", fmt.Sprintf("%s (%s)", strings.Join(e.Files, " and "), e.Family))
	}
	lines("proxy", e.Proxy)
	lines("examined", covered(e))
	lines("from", e.Sources...)
	lines("not examined", e.Not...)
	lines("assumed", e.Guesses...)
	return b.String()
}

func covered(e *diagnose.Examined) string {
	if e.Ports == 0 {
		return "no service: the rules show none"
	}
	text := fmt.Sprintf("%s with %s: %s followed", quantity.Count(e.Ports, "service port"), quantity.Count(e.Destinations, "destination"), quantity.Count(e.Connections, "connection"))
	if e.Judged < e.Connections {
		text += fmt.Sprintf(", %d to a known end", e.Judged)
	}
	return text
}
