package experiment

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// The directories of an experiment that is simulated and runs live, in that of both.
const (
	DirSimulated = "simulate"
	DirLive      = "live"
)

// Both are the results of a simulation and of live runs of the same file.
type Both struct{ Simulated, Live *Results }

// Table compares them: the error of the simulation is its difference from the live mean, with a confidence interval of the differences
// of runs with the same seed, which have the same flows.
func (b *Both) Table() *Table {
	each := max(len(b.Live.series), 1)
	t := &Table{
		Head: []string{"algorithm", "metric", "simulated", "live", "error of the simulation"},
		Note: fmt.Sprintf("means of %d simulated and %d live runs of each algorithm, ± 95%% confidence (Student's t)", len(b.Simulated.Cells)/each, len(b.Live.Cells)/each),
	}
	if len(b.Simulated.Cells) == each && len(b.Live.Cells) == each {
		t.Note = "one simulated and one live run of each algorithm, so without confidence intervals"
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
				text = errorOf(m, s.Mean, l.Mean, b.differences(b.Simulated.series[i], m.Name))
			}
			t.Rows = append(t.Rows, []string{label(simulated[i].Algorithm, simulated[i].Point), m.Title, m.text(s), m.text(l), text})
		}
	}
	return t
}

// differences are those of a metric between simulated and live runs of a series, one for each seed that both have.
func (b *Both) differences(of series, metric string) stats.Interval {
	simulated, live := b.Simulated.bySeed(of, metric), b.Live.bySeed(of, metric)
	var all []float64
	for _, seed := range slices.Sorted(maps.Keys(simulated)) {
		if len(live[seed]) > 0 {
			all = append(all, stats.Mean(simulated[seed])-stats.Mean(live[seed]))
		}
	}
	return stats.Confidence(all)
}

// bySeed are the values of a metric in the runs of a series, by their seeds.
func (r *Results) bySeed(of series, metric string) map[int][]float64 {
	all := make(map[int][]float64)
	for _, c := range r.Cells {
		if v, ok := c.Values[metric]; ok && c.series() == of {
			all[c.Seed] = append(all[c.Seed], v)
		}
	}
	return all
}

// errorOf is the error of a simulated value: in percent of the live one or, for shares, in percentage points.
func errorOf(m *Metric, simulated, live float64, differences stats.Interval) string {
	scale, unit := float64(percent), "points"
	switch {
	case m.Scale == percent:
	case live != 0:
		scale, unit = percent/math.Abs(live), "%"
	case simulated != 0:
		return "-"
	}
	v, half := (simulated-live)*scale, differences.Half*scale
	if differences.N < 2 || half == 0 {
		return fmt.Sprintf("%+.*f %s", decimalsOf(v, 2), v, unit)
	}
	d := decimalsOf(half, 2)
	return fmt.Sprintf("%+.*f ±%.*f %s", d, v, d, half, unit)
}

// Write writes the comparison, as text and as a page, into the directory with those of both.
func (b *Both) Write(dir string) error {
	p := newPage(b.Live.Name, b.Live.Title)
	for _, r := range []*Results{b.Simulated, b.Live} {
		if r.Missing > 0 {
			p.put("<p><strong>Incomplete: %s (%s).</strong></p>\n", r.Lacks(), r.Run.Backend)
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

// Report writes the page, the tables and the plots of a directory of results again, without a run, and returns the table as text. The
// directory may be that of a simulation with live runs.
func Report(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, FileRun)); err == nil || !hasBoth(dir) {
		r, err := again(dir)
		if err != nil {
			return "", err
		}
		return r.Text(), nil
	}
	simulated, err1 := again(filepath.Join(dir, DirSimulated))
	live, err2 := again(filepath.Join(dir, DirLive))
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	both := Both{simulated, live}
	return both.Table().Text(), both.Write(dir)
}

// hasBoth reports whether a directory has the results of a simulation and of live runs.
func hasBoth(dir string) bool {
	for _, one := range []string{DirSimulated, DirLive} {
		if _, err := os.Stat(filepath.Join(dir, one, FileRun)); err != nil {
			return false
		}
	}
	return true
}

// again writes what is made of the runs in a directory.
func again(dir string) (*Results, error) {
	r, err := Open(dir)
	if err != nil {
		return nil, err
	}
	if len(r.Cells) == 0 {
		return nil, fmt.Errorf("%s has no finished run", dir)
	}
	// If a file lacks, because it was too large to be kept, it is not known whether the others are those of the runs.
	x, err := loadSealed(dir, "")
	r.edited = err == nil && x.Digest != r.Run.Digest
	return r, r.Write(dir)
}
