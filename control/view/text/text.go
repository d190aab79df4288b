// Package text shows values to people at a terminal: a record of a flow, lists of them, and the answers about nodes,
// rules and bundles.
package text

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"github.com/nfqproxy/nfqproxy/control/view/terminal"
)

// Style configures how values are rendered as text. The zero value is valid.
type Style struct {
	Color     bool // use ANSI escape sequences
	NodeWidth int  // width of the column of node names, at least
	// Seal goes into the escape sequences: the writer's, if it is a [terminal.Writer].
	Seal terminal.Seal
}

// StyleFor returns a style with colours if w is a terminal and colours are not disabled
// (no-color.org).
func StyleFor(w io.Writer) Style {
	f, ok := terminal.File(w)
	return Style{
		Color: ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		Seal:  terminal.SealOf(w),
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

// The formats of times.
const (
	clock   = "15:04:05.000"
	dayTime = "2006-01-02 " + clock
)

// Clock formats the time of day in the zone of the time.
func Clock(t time.Time) string { return t.Format(clock) }

// labeled writes lines with a label in front of the first one, in a column of that width.
func labeled(b *strings.Builder, width int, label string, lines ...string) {
	for _, line := range lines {
		fmt.Fprintf(b, "  %-*s %s\n", width, label, line)
		label = ""
	}
}

// Columns aligns the cells of rows: each column is as wide as its widest cell, with a gap behind it. Each line starts
// with indent and ends with a newline, without spaces before it.
func Columns(indent string, gap int, rows [][]string) string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := indent
		for i, cell := range row {
			line += cell
			if i < len(row)-1 {
				line += strings.Repeat(" ", widths[i]-ansi.StringWidth(cell)+gap)
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// first returns the first lines of a list; the last line is the number of the others.
func first(most int, lines []string) []string {
	if len(lines) <= most {
		return lines
	}
	return append(lines[:most:most], fmt.Sprintf("and %d more", len(lines)-most))
}

// endpointName is an endpoint with its pod and its node, where they are known.
func endpointName(address, pod, node string) string {
	if pod != "" {
		address += "  pod " + pod
	}
	if node != "" {
		address += " on " + node
	}
	return address
}

// indented indents all lines that are not empty.
func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString("    ")
		}
		b.WriteString(line)
	}
	return b.String()
}
