package stepper

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
	"github.com/nfqproxy/nfqproxy/datapath/paper/unit"
)

// Screen shows a held flow on a writer.
type Screen struct {
	W     io.Writer
	Style text.Style
	// Messages is where errors in commands are printed.
	Messages io.Writer
	// Prompt: W is a terminal with a user, who gets a prompt and help.
	Prompt bool
	// Width returns that terminal's width, in columns; nil, or 0 or less: not known.
	// If it is known, a step replaces the previous one on the screen.
	Width func() int

	// below is the number of lines from the start of the last output to the cursor; 0: do not
	// replace it.
	below int
}

// typed notes that the user typed a line, which the terminal echoes.
func (s *Screen) typed() {
	if s.below > 0 {
		s.below++
	}
}

// Fault prints the error in a command.
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

// Waiting prints that the hold is armed.
func (s *Screen) Waiting(h *observe.Hold) error {
	return s.print(fmt.Sprintf("Waiting for a flow %s, up to %s.\n", filterInWords(h.Query.Flow), seconds(h.Query)))
}

// seconds is how long a hold waits.
func seconds(q observe.HoldQuery) string {
	if q.Seconds == 1 {
		return "1 second"
	}
	return fmt.Sprintf("%d seconds", cmp.Or(q.Seconds, observe.DefaultHoldSeconds))
}

// filterInWords describes the filter.
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
	lines := strings.SplitAfter(strings.TrimSuffix(s.Style.Steps(r.Steps, "", text.WalkWords), "\n"), "\n")
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case len(r.Steps) == 0:
			line = "   (no steps)"
		case i < h.Step:
			line = "   " + line
		case i == h.Step:
			line = s.Style.Paint(text.Yellow, "=>") + " " + line
		default: // has not happened
			line = s.Style.Paint(text.Dim, "   "+ansi.Strip(line))
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
		b.WriteString(s.Style.Paint(text.Dim, Help) + "\n> ")
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

// instead prints a text in place of the last output, if the terminal allows it.
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

// Done prints how the hold ended.
func (s *Screen) Done(h *observe.Hold) error {
	return s.print(fmt.Sprintf("\nThe flow was %s.\n%s\n", vocabulary.Words().Holds.Of(h.Outcome), s.line(h.Record)))
}

// Interrupted prints that stepping ended early.
func (s *Screen) Interrupted(h *observe.Hold) error {
	if h.Record == nil {
		return s.print("\nInterrupted: no flow matched, the hold is cancelled.\n")
	}
	return s.print("\nInterrupted: the flow is released as decided.\n")
}

// Outcome prints the state of the released flow.
func (s *Screen) Outcome(r *flow.Record) error {
	text := s.Style.Paint(text.StateColor(r.Life.State), r.Life.State.String())
	if r.Time != nil {
		text += fmt.Sprintf(" %s after the decision", unit.Duration(r.Life.Since.Sub(*r.Time)))
	}
	if words := vocabulary.StateOf(r.Life.State).Text; words != "" {
		text += ": " + words
	}
	return s.print(fmt.Sprintf("State: %s.\nDetails: nfqproxy flows %s\n", text, r.ID))
}
