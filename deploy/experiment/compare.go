package experiment

import (
	"fmt"
	"slices"
	"strings"
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
