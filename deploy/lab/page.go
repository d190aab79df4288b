package lab

import (
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"github.com/nfqproxy/nfqproxy/control/exitcode"
	"github.com/nfqproxy/nfqproxy/control/view/terminal"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

// page is the output of the demo.
type page struct {
	w      io.Writer
	style  text.Style
	scenes int
	checks int
	failed int
}

func newPage(w io.Writer, style text.Style) *page { return &page{w: w, style: style} }

const labelWidth = 10 // of the left column

// legend explains the symbols of decisions and walks.
const legend = `Each decision comes with its walk through kube-proxy's chains, rule by rule:
  ->  the rule matches: the walk continues in another chain, or ends
  .   the rule does not match
  *   the rule marks the packet for masquerading, and the walk continues
A decision ends with the source address: "masq: -" for an unchanged one, or "masq:
ADDRESS (reason)" for the new one.
`

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p.w, format, args...) }

// scene begins a scene.
func (p *page) scene(title string) {
	p.scenes++
	p.printf("\n%s\n\n", p.style.Paint(text.Bold, fmt.Sprintf("%d  %s", p.scenes, title)))
}

// row writes one line with a label.
func (p *page) row(label, format string, args ...any) {
	p.printf("  %s%s\n", p.style.Paint(text.Dim, fmt.Sprintf("%-*s", labelWidth, label)), fmt.Sprintf(format, args...))
}

// block writes lines that may be long.
func (p *page) block(text string) {
	for line := range strings.Lines(text) {
		p.printf("    %s", line)
	}
}

// check writes an expectation with its result.
func (p *page) check(ok bool, format string, args ...any) {
	p.checks++
	mark := p.style.Paint(text.Green, "✓")
	if !ok {
		p.failed++
		mark = p.style.Paint(text.Red, "✗")
	}
	p.printf("  %s %s\n", mark, fmt.Sprintf(format, args...))
}

// summary ends the page; it returns an error if a check failed.
func (p *page) summary() error {
	if p.failed > 0 {
		p.printf("\n%s\n", p.style.Paint(text.Red, fmt.Sprintf("%d of %d checks failed.", p.failed, p.checks)))
		return exitcode.Negative(fmt.Errorf("demo: %d of %d checks failed", p.failed, p.checks))
	}
	p.printf("\n%s\n", p.style.Paint(text.Green, fmt.Sprintf("All %d checks passed.", p.checks)))
	return nil
}

// folder writes lines to a terminal and wraps long ones at spaces: the rest is indented to the
// line's second column. For any other writer lines stay unchanged.
type folder struct {
	w       io.Writer
	width   func() int // columns; 0: any number
	pending string     // an incomplete line
}

// newFolder wraps lines if w is a terminal.
func newFolder(w io.Writer) *folder {
	f, ok := terminal.File(w)
	return &folder{w: w, width: func() int {
		if !ok {
			return 0
		}
		columns, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return columns
	}}
}

// Unwrap is the writer behind it.
func (f *folder) Unwrap() io.Writer { return f.w }

// Write writes complete lines and keeps the rest.
func (f *folder) Write(b []byte) (int, error) {
	text := f.pending + string(b)
	end := strings.LastIndexByte(text, '\n') + 1
	f.pending = text[end:]
	var folded strings.Builder
	width := f.width()
	for line := range strings.Lines(text[:end]) {
		folded.WriteString(fold(strings.TrimSuffix(line, "\n"), width) + "\n")
	}
	if folded.Len() == 0 {
		return len(b), nil
	}
	if _, err := io.WriteString(f.w, folded.String()); err != nil {
		return 0, err
	}
	return len(b), nil
}

// fold wraps one line. Words that are too long stay whole.
func fold(line string, width int) string {
	if width <= 0 || ansi.StringWidth(line) <= width {
		return line
	}
	indent := min(secondColumn(ansi.Strip(line)), width/2)
	var b strings.Builder
	column, spaces := 0, ""
	for word := range strings.SplitSeq(line, " ") {
		n := ansi.StringWidth(word)
		switch {
		case n > 0 && column > indent && column+len(spaces)+n > width:
			b.WriteString("\n" + strings.Repeat(" ", indent) + word)
			column, spaces = indent+n, " "
			continue
		case n == 0 && word == "":
			spaces += " "
			continue
		}
		b.WriteString(spaces + word)
		column, spaces = column+len(spaces)+n, " "
	}
	return b.String()
}

// marks are symbols before the text of a column.
var marks = []string{"✓", "✗", "->", ".", "*", "?"}

// secondColumn is the position of the text of a line's second column, after its mark. Columns
// are at least two spaces apart; for a line with one column it is that of its text.
func secondColumn(line string) int {
	column := len(line) - len(strings.TrimLeft(line, " "))
	text := line[column:]
	if before, rest, ok := strings.Cut(text, "  "); ok {
		text = strings.TrimLeft(rest, " ")
		column += ansi.StringWidth(before) + 2 + len(rest) - len(text)
	}
	for _, m := range marks {
		if strings.HasPrefix(text, m+" ") {
			return column + ansi.StringWidth(m) + 1
		}
	}
	return column
}
