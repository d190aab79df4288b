package whytext

import (
	"fmt"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
	"github.com/nfqproxy/nfqproxy/datapath/sim/diagnose"
)

// RuleFindings renders findings about rules, and what was examined; without the latter it is Findings. Rules that do not
// show services are said to be so in the first line.
func RuleFindings(s flowtext.Style, findings []diagnose.Finding, examined []*diagnose.Examined, explain bool) string {
	var b strings.Builder
	followed, judged := 0, 0
	for _, e := range examined {
		followed, judged = followed+e.Connections, judged+e.Judged
		if e.OtherMode != "" {
			fmt.Fprintln(&b, e.OtherMode)
		}
	}
	switch {
	case len(findings) > 0 || len(examined) == 0 || judged > 0 && judged == followed:
		b.WriteString(Findings(s, findings, explain))
	case judged > 0:
		fmt.Fprintf(&b, "no verdict about %s of %d: their ends are not known; with the others %s", count(followed-judged, "connection"), followed, Findings(s, nil, explain))
	default:
		fmt.Fprintln(&b, "no connection to a service could be followed to its end: no verdict")
	}
	for _, e := range examined {
		b.WriteString("\n" + scope(e, len(examined) > 1))
	}
	return b.String()
}

// scope is what was examined, what was not, and what was assumed.
func scope(e *diagnose.Examined, several bool) string {
	var b strings.Builder
	lines := func(what string, texts ...string) {
		for _, text := range texts {
			fmt.Fprintf(&b, "  %-12s %s\n", what, text)
			what = ""
		}
	}
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
	text := fmt.Sprintf("%s with %s: %s followed", count(e.Ports, "service port"), count(e.Destinations, "destination"), count(e.Connections, "connection"))
	if e.Judged < e.Connections {
		text += fmt.Sprintf(", %d to a known end", e.Judged)
	}
	return text
}

// count is "1 connection", "2 connections".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
