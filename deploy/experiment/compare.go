package experiment

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// Compare is a text that compares the runs of directories: how the runs themselves differ, and for each metric of
// their tables one with the algorithms of all.
func Compare(dirs []string) (string, error) {
	var all []*Results
	for _, dir := range dirs {
		r, err := Open(dir)
		if err != nil {
			return "", err
		}
		all = append(all, r)
	}
	var b strings.Builder
	b.WriteString(comparedRuns(dirs, all).Text())
	var columns []*Metric
	var algorithms []string
	summaries := make([]map[string]Row, len(all))
	for i, r := range all {
		rows := r.Summary()
		summaries[i] = make(map[string]Row)
		for _, row := range rows {
			name := label(row.Algorithm, row.Point)
			summaries[i][name] = row
			if !slices.Contains(algorithms, name) {
				algorithms = append(algorithms, name)
			}
		}
		for _, m := range r.columns(rows) {
			if !slices.Contains(columns, m) {
				columns = append(columns, m)
			}
		}
	}
	for _, m := range columns {
		t := &Table{Head: append([]string{m.Title}, dirs...)}
		for _, a := range algorithms {
			cells := []string{a}
			for _, rows := range summaries {
				cells = append(cells, m.text(rows[a].Metrics[m.Name]))
			}
			t.Rows = append(t.Rows, cells)
		}
		b.WriteString("\n" + t.Text())
	}
	b.WriteString("\nmeans, ± 95% confidence (Student's t)\n")
	return b.String(), nil
}

// comparedRuns is a table of the runs.
func comparedRuns(dirs []string, all []*Results) *Table {
	t := &Table{Head: append([]string{"run"}, dirs...)}
	for _, row := range []struct {
		name string
		of   func(r *Results) string
	}{
		{"experiment", func(r *Results) string { return r.Name }},
		{"digest", func(r *Results) string { return r.Run.Digest[:min(len(r.Run.Digest), 12)] }},
		{"by", func(r *Results) string { return r.Run.Backend }},
		{"version", func(r *Results) string { return r.Run.Version }},
		{"platform", func(r *Results) string { return r.Run.Machine.Platform }},
		{"CPUs", func(r *Results) string { return fmt.Sprintf("%d, %s", r.Run.Machine.CPUs, r.Run.Machine.Model) }},
		{"kernel", func(r *Results) string { return r.Run.Machine.Kernel }},
		{"runs", func(r *Results) string {
			if r.Missing > 0 {
				return fmt.Sprintf("%d of %d", len(r.Cells), len(r.Cells)+r.Missing)
			}
			return fmt.Sprint(len(r.Cells))
		}},
	} {
		cells := []string{row.name}
		for _, r := range all {
			cells = append(cells, row.of(r))
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

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
