package experiment

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// Table is a table of text.
type Table struct {
	Head []string
	Rows [][]string
	Note string
}

// warn adds to the note what is wrong with runs.
func (t *Table) warn(warnings ...string) {
	for _, warning := range warnings {
		t.Note += "\n" + warning
	}
}

// text writes a mean and half of its confidence interval in the metric's unit, with as many digits as the
// interval justifies.
func (m *Metric) text(i stats.Interval) string {
	if i.N == 0 {
		return "-"
	}
	mean, half := i.Mean*m.Scale, i.Half*m.Scale
	const rounding = 1e-9 // of sums of the same numbers
	if half <= rounding*math.Abs(mean) {
		return digits(mean, decimalsOf(mean, 3))
	}
	d := decimalsOf(half, 2)
	return digits(mean, d) + " ±" + digits(half, d)
}

// decimalsOf is how many decimals show a number with n significant digits.
func decimalsOf(v float64, n int) int {
	if v == 0 {
		return 0
	}
	const most = 6
	magnitude := 0
	for v = math.Abs(v); v >= 10; v /= 10 {
		magnitude++
	}
	for ; v < 1 && magnitude > -most; v *= 10 {
		magnitude--
	}
	return min(max(n-1-magnitude, 0), most)
}

func digits(v float64, decimals int) string { return fmt.Sprintf("%.*f", decimals, v) }

// Text is the table in columns.
func (t *Table) Text() string {
	widths := make([]int, len(t.Head))
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line.WriteString(cell + pad)
			} else {
				line.WriteString("  " + pad + cell)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	if t.Note != "" {
		b.WriteString(t.Note + "\n")
	}
	return b.String()
}

var inMarkdown = strings.NewReplacer("|", `\|`, "*", `\*`, "_", `\_`, "<", "&lt;")

// Markdown is the table for a README.
func (t *Table) Markdown() string {
	var b strings.Builder
	row := func(cells []string) {
		for _, c := range cells {
			b.WriteString("| " + inMarkdown.Replace(c) + " ")
		}
		b.WriteString("|\n")
	}
	row(t.Head)
	b.WriteString(strings.Repeat("|---", len(t.Head)) + "|\n")
	for _, r := range t.Rows {
		row(r)
	}
	if t.Note != "" {
		b.WriteString("\n" + inMarkdown.Replace(strings.ReplaceAll(t.Note, "\n", "\n\n")) + "\n")
	}
	return b.String()
}

var inLaTeX = strings.NewReplacer("%", `\%`, "_", `\_`, "&", `\&`, "#", `\#`, "±", `$\pm$`)

// LaTeX is the table for a paper, with package booktabs.
func (t *Table) LaTeX() string {
	var b strings.Builder
	row := func(cells []string) {
		for i, c := range cells {
			if i > 0 {
				b.WriteString(" & ")
			}
			b.WriteString(inLaTeX.Replace(c))
		}
		b.WriteString(" \\\\\n")
	}
	fmt.Fprintf(&b, "%% %s\n\\begin{tabular}{l%s}\n\\toprule\n", strings.ReplaceAll(t.Note, "\n", "\n% "), strings.Repeat("r", len(t.Head)-1))
	row(t.Head)
	b.WriteString("\\midrule\n")
	for _, r := range t.Rows {
		row(r)
	}
	b.WriteString("\\bottomrule\n\\end{tabular}\n")
	return b.String()
}
