package text

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/paper/diagnose"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

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
	verdict := s.nothingFound(ignored, followed, judged, partly, unclear)
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
