package lab

import (
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"github.com/nfqproxy/nfqproxy/control/view/terminal"
)

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
