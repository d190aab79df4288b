package experiment

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// Results are those of a run.
type Results struct {
	Name, Title string
	Run         Run
	Columns     []string // of the file
	Algorithms  []string
	Cells       []*Cell // in the order of [Spec.Cells]: those that are done
	Costs       []*Cost // of the same cells
	Missing     int     // cells that are not done
	File        []byte
	Scripts     []Source
}

// Open reads the directory of a run.
func Open(dir string) (*Results, error) {
	run, err := readRun(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is not the directory of an experiment: it has no %s", dir, FileRun)
	} else if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(dir, FileExperiment))
	if err != nil {
		return nil, err
	}
	spec, err := parseSpec(filepath.Join(dir, FileExperiment), data)
	if err != nil {
		return nil, err
	}
	spec.Seeds, spec.Repeats = run.Seeds, run.Repeats
	r := &Results{Name: spec.Metadata.Name, Title: spec.Title, Run: run, Columns: spec.Columns, Algorithms: spec.Algorithms, File: data}
	if r.Scripts, err = readScripts(dir, run.Scripts); err != nil {
		return nil, err
	}
	paths := Runner{Dir: dir}
	for _, k := range spec.Cells() {
		cell, cost := new(Cell), new(Cost)
		if err := readJSON(paths.path(k, ""), cell); errors.Is(err, os.ErrNotExist) {
			r.Missing++
			continue
		} else if err != nil {
			return nil, err
		}
		if err := readJSON(paths.path(k, "-cost"), cost); err != nil {
			return nil, err
		}
		r.Cells, r.Costs = append(r.Cells, cell), append(r.Costs, cost)
	}
	return r, nil
}

// Write writes the results into a directory.
func (r *Results) Write(dir string) error {
	summary, err := json.MarshalIndent(r.Summary(), "", " ")
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		FileRuns: r.RunsCSV(), FileWindows: r.WindowsCSV(), FileChanges: r.ChangesCSV(), FileCosts: r.costsCSV(),
		FileSummary: append(summary, '\n'), FileTable: []byte(r.Table().Text()), FileLaTeX: []byte(r.Table().LaTeX()), FileReport: r.Report(),
	} {
		if err := writeFile(filepath.Join(dir, name), data); err != nil {
			return err
		}
	}
	return nil
}

// number writes a number so that it reads back as the same bits.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func (k Key) fields() []string {
	return []string{k.Algorithm, strconv.Itoa(k.Seed), strconv.Itoa(k.Repeat)}
}

var keyColumns = []string{"algorithm", "seed", "repeat"}

func toCSV(header []string, rows [][]string) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(header) // a buffer takes everything
	_ = w.WriteAll(rows)
	return b.Bytes()
}

// RunsCSV has a row for each cell: the values of all metrics, in seconds and shares.
func (r *Results) RunsCSV() []byte {
	var rows [][]string
	for _, c := range r.Cells {
		row := c.fields()
		for i := range Metrics {
			text := "" // not measured
			if v, ok := c.Values[Metrics[i].Name]; ok {
				text = number(v)
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	return toCSV(slices.Concat(keyColumns, metricNames()), rows)
}

// WindowsCSV has a row for each window of each cell.
func (r *Results) WindowsCSV() []byte {
	var rows [][]string
	for _, c := range r.Cells {
		for i := range c.Windows {
			w := &c.Windows[i]
			rows = append(rows, append(c.fields(), number(w.End.Seconds()), strconv.Itoa(w.Flows), strconv.Itoa(w.Refused), strconv.Itoa(w.Unanswered), strconv.Itoa(w.Broken),
				strconv.Itoa(w.Open), number(w.MaxOverMean), number(w.Jain), number(w.FlowsMaxOverMean), number(w.FlowsJain), number(seconds(w.ConnectP50)), number(seconds(w.ConnectP99))))
		}
	}
	return toCSV(slices.Concat(keyColumns, []string{"end", "flows", "refused", "unanswered", "broken", "open", "max_mean", "jain", "flows_max_mean", "flows_jain", "connect_p50", "connect_p99"}), rows)
}

// ChangesCSV has a row for each change of a set of endpoints in each cell.
func (r *Results) ChangesCSV() []byte {
	var rows [][]string
	for _, c := range r.Cells {
		for _, change := range c.Changes {
			rows = append(rows, append(c.fields(), number(change.At.Seconds()), strconv.Itoa(change.Service), strconv.Itoa(change.Kept), strconv.Itoa(change.Moved)))
		}
	}
	return toCSV(slices.Concat(keyColumns, []string{"at", "service", "kept", "moved"}), rows)
}

func (r *Results) costsCSV() []byte {
	var rows [][]string
	for _, c := range r.Costs {
		rows = append(rows, append(c.fields(), number(c.P50.Seconds()), number(c.P99.Seconds()), strconv.Itoa(c.N)))
	}
	return toCSV(slices.Concat(keyColumns, []string{"p50", "p99", "n"}), rows)
}

// Row is the summary of an algorithm.
type Row struct {
	Algorithm string `json:"algorithm"`
	// Metrics are the means over the cells, with confidence intervals, by the metrics' names.
	Metrics map[string]stats.Interval `json:"metrics"`
}

// Summary has a row for each algorithm.
func (r *Results) Summary() (rows []Row) {
	for _, a := range r.Algorithms {
		row := Row{a, make(map[string]stats.Interval)}
		for _, name := range metricNames() {
			if values := r.values(a, name); len(values) > 0 {
				row.Metrics[name] = stats.Confidence(values)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// values are those of a metric in the cells of an algorithm.
func (r *Results) values(algorithm, metric string) (values []float64) {
	for _, c := range r.Cells {
		if c.Algorithm == algorithm {
			if v, ok := c.Values[metric]; ok {
				values = append(values, v)
			}
		}
	}
	return values
}

// columns are the metrics of the table.
func (r *Results) columns(rows []Row) (all []*Metric) {
	if len(r.Columns) > 0 {
		for _, name := range r.Columns {
			all = append(all, metric(name))
		}
		return all
	}
	for i := range Metrics {
		m := &Metrics[i]
		other := slices.ContainsFunc(rows, func(row Row) bool { return row.Metrics[m.Name].Mean != 0 })
		if m.ByDefault && (m.Always || other) {
			all = append(all, m)
		}
	}
	return all
}

// Table is the table of the summary.
func (r *Results) Table() *Table {
	rows := r.Summary()
	columns := r.columns(rows)
	t := &Table{Head: []string{"algorithm"}}
	for _, m := range columns {
		t.Head = append(t.Head, m.Title)
	}
	for _, row := range rows {
		cells := []string{row.Algorithm}
		for _, m := range columns {
			cells = append(cells, m.text(row.Metrics[m.Name]))
		}
		t.Rows = append(t.Rows, cells)
	}
	done := len(r.Cells)
	if n := len(r.Algorithms); n > 0 && r.Missing == 0 {
		t.Note = fmt.Sprintf("means of %d runs of each algorithm, ± 95%% confidence (Student's t)", done/n)
	} else {
		t.Note = fmt.Sprintf("means of %d of %d runs, ± 95%% confidence (Student's t)", done, done+r.Missing)
	}
	t.warn(r)
	return t
}
