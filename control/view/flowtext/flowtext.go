package flowtext

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/nfqproxy/nfqproxy/control/visible"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
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

// Paint returns the text in a colour, if the style has colours; an empty colour is none.
func (s Style) Paint(c Color, text string) string {
	if !s.Color || c == "" || text == "" {
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

// choice describes the selection of the endpoint: " (2 of 3, draw 0.71)", " (2 of 3, p2c: 2 open against 5)".
func choice(r *flow.Record) string {
	position := 0
	for i, c := range r.Candidates {
		if c.Endpoint == r.Endpoint {
			position = i + 1
		}
	}
	if position == 0 { // an earlier decision, and the endpoint has been removed since
		return ""
	}
	text := fmt.Sprintf("%d of %d", position, len(r.Candidates))
	switch {
	case r.Balance != nil && r.Balance.Evidence != "":
		text += fmt.Sprintf(", %s: %s", r.Balance.Algorithm, r.Balance.Evidence)
	case r.Draw != nil:
		text += fmt.Sprintf(", draw %.2f", *r.Draw)
	case len(r.Candidates) == 1:
		text = "the only one"
	}
	for _, a := range r.Earlier {
		text += fmt.Sprintf(", after %s: %s", a.Endpoint, a.Outcome)
	}
	return " (" + text + ")"
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
