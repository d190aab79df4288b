package stepper

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Screen shows a held flow on a writer.
type Screen struct {
	W     io.Writer
	Style flowtext.Style
	// Messages is where what was said wrong is told.
	Messages io.Writer
	// Prompt: somebody types at the terminal that W is, and what to type is told.
	Prompt bool
	// Width gives that terminal's width, in columns; nil, or no more than 0: not known.
	// Where it is known a step is shown in the place of the one before.
	Width func() int

	// below is how many lines the cursor is below the start of what was shown last; 0:
	// leave that where it is.
	below int
}

// typed notes that somebody typed a line, which the terminal shows.
func (s *Screen) typed() {
	if s.below > 0 {
		s.below++
	}
}

// Fault tells what was said wrong.
func (s *Screen) Fault(err error) error {
	s.below = 0
	if _, err := fmt.Fprintln(s.Messages, err); err != nil {
		return err
	}
	if s.Prompt {
		return s.print("> ")
	}
	return nil
}

func (s *Screen) print(text string) error {
	_, err := io.WriteString(s.W, text)
	return err
}

// Waiting tells that the hold is armed.
func (s *Screen) Waiting(h *observe.Hold) error {
	return s.print(fmt.Sprintf("Waiting for a flow %s, up to %d seconds.\n", filterInWords(h.Query.Flow), seconds(h.Query)))
}

// seconds is how long a hold waits.
func seconds(q observe.HoldQuery) int {
	if q.Seconds == 0 {
		return 60
	}
	return q.Seconds
}

// filterInWords tells which flows are meant.
func filterInWords(f observe.HoldFilter) string {
	var words []string
	for _, w := range []struct{ what, value string }{
		{"to service", f.Service}, {"in namespace", f.Namespace}, {"of pod", f.Pod}, {"on node", f.Node},
		{"from", f.Source}, {"to", f.Destination}, {"to port", f.Port}, {"by", f.Protocol},
	} {
		if w.value != "" {
			words = append(words, w.what+" "+w.value)
		}
	}
	return strings.Join(words, ", ")
}

// Holding shows the flow, its walk with the next step marked, and the candidates.
func (s *Screen) Holding(h *observe.Hold) error {
	r := h.Record
	var b strings.Builder
	b.WriteString("\n" + s.line(r) + "\n\n")
	lines := strings.SplitAfter(strings.TrimSuffix(s.Style.Walk(r, ""), "\n"), "\n")
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case len(r.Steps) == 0:
			line = "   (no steps are known)"
		case i < h.Step:
			line = "   " + line
		case i == h.Step:
			line = s.Style.Paint(flowtext.Yellow, "=>") + " " + line
		default: // has not happened
			line = s.Style.Paint(flowtext.Dim, "   "+ansi.Strip(line))
		}
		b.WriteString(line + "\n")
	}
	if len(r.Candidates) > 1 {
		b.WriteString("\n")
		for i, c := range r.Candidates {
			fmt.Fprintf(&b, "   c %d  %s%s\n", i+1, c.Endpoint, mark(c.Endpoint == r.Endpoint))
		}
	}
	fmt.Fprintf(&b, "\n%d of %d steps taken\n", h.Step, len(r.Steps))
	if s.Prompt {
		b.WriteString(s.Style.Paint(flowtext.Dim, Help) + "\n> ")
	}
	return s.print(s.instead(b.String()))
}

// line is the record's line, with the time in the local zone.
func (s *Screen) line(r *flow.Record) string {
	if r.Time == nil {
		return s.Style.Line(r)
	}
	local, at := *r, r.Time.Local()
	local.Time = &at
	return s.Style.Line(&local)
}

// instead puts a text in the place of what was shown last, where that can be done.
func (s *Screen) instead(text string) string {
	width := 0
	if s.Prompt && s.Width != nil {
		width = s.Width()
	}
	if width <= 0 {
		return text
	}
	lines := strings.Split(text, "\n")
	for i := range lines { // a line that wraps would be two
		lines[i] = ansi.Truncate(s.Style.Seal.Clean(lines[i]), width-1, "…")
	}
	text = strings.Join(lines, "\n")
	if s.below > 0 {
		// Up, and clear to the end (ECMA-48 CPL, ED).
		text = s.Style.Seal.Sequence(strconv.Itoa(s.below), 'F') + s.Style.Seal.Sequence("", 'J') + text
	}
	s.below = len(lines) - 1
	return text
}

func mark(chosen bool) string {
	if chosen {
		return "  <- chosen"
	}
	return ""
}

// outcomes tells how holds end.
var outcomes = map[string]string{
	"released":  "let go, as it was decided",
	"chosen":    "let go, to the endpoint that was chosen",
	"dropped":   "dropped",
	"expired":   "let go, as it was decided: the time was over",
	"cancelled": "let go, as it was decided: the hold was cancelled",
}

// Done tells how the hold ended.
func (s *Screen) Done(h *observe.Hold) error {
	outcome := outcomes[h.Outcome]
	if outcome == "" {
		outcome = h.Outcome // of a later version
	}
	return s.print(fmt.Sprintf("\nThe flow was %s.\n%s\n", outcome, s.line(h.Record)))
}

// Interrupted tells that nobody leads the flow any more.
func (s *Screen) Interrupted(h *observe.Hold) error {
	if h.Record == nil {
		return s.print("\nNo flow came; none is waited for any more.\n")
	}
	return s.print("\nInterrupted: the flow goes on as it was decided.\n")
}

// Fate tells what became of the flow.
func (s *Screen) Fate(r *flow.Record) error {
	text := string(r.Life.State)
	if c := flowtext.StateColor(r.Life.State); c != "" {
		text = s.Style.Paint(c, text)
	}
	if r.Time != nil {
		text += fmt.Sprintf(" %s after the decision", flowtext.Duration(r.Life.Since.Sub(*r.Time)))
	}
	if words := r.Life.State.Words(); words != "" {
		text += ": " + words
	}
	return s.print(fmt.Sprintf("It is %s.\nAll of it: nfqproxy flows %s\n", text, r.ID))
}
