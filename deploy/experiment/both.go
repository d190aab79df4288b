package experiment

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
)

// The directories of an experiment that is simulated and runs live, in that of both.
const (
	DirSimulated = "simulate"
	DirLive      = "live"
)

// Both are the results of a simulation and of live runs of the same file.
type Both struct{ Simulated, Live *Results }

// Table compares them: the error of the simulation is its difference from the live mean.
func (b *Both) Table() *Table {
	each := max(len(b.Live.series), 1)
	t := &Table{
		Head: []string{"algorithm", "metric", "simulated", "live", "error of the simulation"},
		Note: fmt.Sprintf("means of %d simulated and %d live runs of each algorithm, ± 95%% confidence (Student's t)", len(b.Simulated.Cells)/each, len(b.Live.Cells)/each),
	}
	for _, w := range b.Simulated.Run.Warnings {
		if !slices.Contains(b.Live.Run.Warnings, w) {
			w = "simulated: " + w
		}
		t.warn(w)
	}
	for _, w := range b.Live.Run.Warnings {
		if !slices.Contains(b.Simulated.Run.Warnings, w) {
			t.warn("live: " + w)
		}
	}
	simulated, live := b.Simulated.Summary(), b.Live.Summary()
	columns := b.Simulated.columns(simulated)
	for _, m := range b.Live.columns(live) {
		if !slices.Contains(columns, m) {
			columns = append(columns, m)
		}
	}
	for i := range simulated {
		for _, m := range columns {
			s, l := simulated[i].Metrics[m.Name], live[i].Metrics[m.Name]
			text := "-"
			if s.N > 0 && l.N > 0 {
				text = errorOf(m, s.Mean, l.Mean)
			}
			t.Rows = append(t.Rows, []string{label(simulated[i].Algorithm, simulated[i].Point), m.Title, m.text(s), m.text(l), text})
		}
	}
	return t
}

// errorOf is the error of a simulated value: in percent of the live one or, for shares, in percentage points.
func errorOf(m *Metric, simulated, live float64) string {
	difference, unit := simulated-live, "points"
	switch {
	case m.Scale == percent:
	case live != 0:
		difference, unit = difference/math.Abs(live), "%"
	case difference != 0:
		return "-"
	}
	v := difference * percent
	return fmt.Sprintf("%+.*f %s", max(decimalsOf(v, 2), 0), v, unit)
}

// Write writes the comparison, as text and as a page, into the directory with those of both.
func (b *Both) Write(dir string) error {
	p := newPage(b.Live.Name, b.Live.Title)
	for _, r := range []*Results{b.Simulated, b.Live} {
		if r.Missing > 0 {
			p.put("<p><strong>Incomplete: %d runs are missing (%s).</strong></p>\n", r.Missing, r.Run.Backend)
		}
	}
	p.put("<p>The same file, simulated and live: in a lab on one machine, with a real kernel and real connections.</p>\n")
	p.table(b.Table())
	p.put("<p><a href=\"%s/%s\">All results of the simulation</a>, <a href=\"%s/%[2]s\">of the live runs</a></p>\n", DirSimulated, FileReport, DirLive)
	p.heading("Over time")
	p.charts(interleave(b.Simulated.timelines(", simulated"), b.Live.timelines(", live")))
	page := p.end(b.Live.File, b.Live.Scripts, &b.Simulated.Run, &b.Live.Run)
	if err := writeFile(filepath.Join(dir, FileReport), page); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, FileTable), []byte(b.Table().Text()))
}

// interleave takes from two lists in turn.
func interleave[T any](a, b []T) (all []T) {
	for i := range max(len(a), len(b)) {
		all = append(append(all, a[min(i, len(a)):min(i+1, len(a))]...), b[min(i, len(b)):min(i+1, len(b))]...)
	}
	return all
}
