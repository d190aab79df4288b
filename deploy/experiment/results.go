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
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// Results are those of a run.
type Results struct {
	Name, Title string
	Run         Run
	Columns     []string // of the file
	Algorithms  []string
	Parameters  []string // the names of swept parameters
	Cells       []*Cell  // those that are done, in order
	Costs       []*Cost  // of the same cells
	Missing     int      // cells that are not done, as far as it is known
	File        []byte
	Scripts     []Source

	missing []Key
	series  []series
	edited  bool // the file, or one that it names, is another than that of the runs
}

// Open reads the directory of a run.
func Open(dir string) (*Results, error) {
	run, err := readRun(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is not an experiment's directory: it has no %s", dir, FileRun)
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
	if g := run.Until; g != nil {
		spec.Until = &Until{g.Metric, Amount{g.Half, g.Relative}, g.Max}
	}
	r := &Results{
		Name: spec.Metadata.Name, Title: spec.Title, Run: run, Columns: spec.Columns, Algorithms: spec.Algorithms, Parameters: spec.parameters(), File: data,
		series: spec.all(),
	}
	if r.Scripts, err = readScripts(dir, run.Scripts); err != nil {
		return nil, err
	}
	seeds := make(map[series]int)
	for _, one := range r.series {
		seeds[one] = spec.Seeds
	}
	for {
		if err := r.read(dir, spec.cells(seeds)); err != nil {
			return nil, err
		}
		more := false
		for _, one := range r.series {
			if n := seeds[one]; r.complete(one, n*spec.Repeats) && spec.Until != nil {
				seeds[one] = spec.Until.next(n, r.interval(one, spec.Until.Metric))
				more = more || seeds[one] > n
			}
		}
		if !more {
			return r, nil
		}
	}
}

// Lacks says how many runs are missing.
func (r *Results) Lacks() string {
	if r.Missing == 1 {
		return "1 run is missing"
	}
	return fmt.Sprintf("%d runs are missing", r.Missing)
}

// read reads the cells that it does not have yet.
func (r *Results) read(dir string, cells []Key) error {
	known := make(map[Key]int)
	for i, c := range r.Cells {
		known[c.Key] = i
	}
	before, costs := r.Cells, r.Costs
	r.Cells, r.Costs, r.missing = nil, nil, nil
	paths := Runner{Dir: dir}
	for _, k := range cells {
		if i, ok := known[k]; ok {
			r.Cells, r.Costs = append(r.Cells, before[i]), append(r.Costs, costs[i])
			continue
		}
		cell, cost := new(Cell), new(Cost)
		if err := readJSON(paths.path(k, ""), cell); errors.Is(err, os.ErrNotExist) {
			r.missing = append(r.missing, k)
			continue
		} else if err != nil {
			return err
		}
		if err := readJSON(paths.path(k, "-cost"), cost); err != nil {
			return err
		}
		r.Cells, r.Costs = append(r.Cells, cell), append(r.Costs, cost)
	}
	r.Missing = len(r.missing)
	return nil
}

// complete reports whether it has that many cells of a series.
func (r *Results) complete(of series, cells int) bool {
	for _, c := range r.Cells {
		if c.series() == of {
			cells--
		}
	}
	return cells == 0
}

func (k Key) series() series { return series{k.Algorithm, k.Point} }

// Write writes the results into a directory.
func (r *Results) Write(dir string) error {
	rows := r.Summary()
	summary, err := json.MarshalIndent(rows, "", " ")
	if err != nil {
		return err
	}
	r.conclude(rows)
	r.Run.Schema = Schema
	if err := writeRun(dir, &r.Run); err != nil {
		return err
	}
	runs, windows := r.runs(), r.windows()
	metadata := map[string]string{"nfqproxy.schema": strconv.Itoa(Schema), "nfqproxy.experiment": r.Name, "nfqproxy.digest": r.Run.Digest}
	runsParquet, err1 := runs.parquet("runs", metadata)
	windowsParquet, err2 := windows.parquet("windows", metadata)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		FileRunsParquet: runsParquet, FileWindowsParquet: windowsParquet,
		FileRuns: runs.csv(), FileWindows: windows.csv(), FileChanges: r.ChangesCSV(), FileCosts: r.costsCSV(),
		FileExpected: r.ExpectedCSV(), FileDifference: r.DifferencesCSV(), FileMarkdown: r.Markdown(),
		FileSummary: append(summary, '\n'), FileTable: []byte(r.Text()), FileLaTeX: []byte(r.Table().LaTeX()), FileReport: r.Report(),
	} {
		if err := writeFile(filepath.Join(dir, name), data); err != nil {
			return err
		}
	}
	return r.writePlots(dir, rows)
}

// number writes a number so that it reads back as the same bits.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func (k Key) fields() []string {
	return append([]string{k.Algorithm, strconv.Itoa(k.Seed), strconv.Itoa(k.Repeat)}, valuesOf(k.Point)...)
}

// header are the columns of [Key.fields], and others.
func (r *Results) header(others ...string) []string {
	return slices.Concat(keyColumns, r.Parameters, others)
}

var keyColumns = []string{"algorithm", "seed", "repeat"}

func toCSV(header []string, rows [][]string) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(header) // a buffer takes everything
	_ = w.WriteAll(rows)
	return b.Bytes()
}

// metrics are the names of all metrics, without those that only other experiments have.
func (r *Results) metrics() []string {
	return slices.DeleteFunc(metricNames(), func(name string) bool {
		return lacks(name, false, false) != "" && !slices.ContainsFunc(r.Cells, func(c *Cell) bool { _, ok := c.Values[name]; return ok })
	})
}

// runs has a row for each cell: the values of all metrics, in seconds and shares.
func (r *Results) runs() *frame {
	names := r.metrics()
	f := &frame{columns: r.keys()}
	for _, name := range names {
		f.columns = append(f.columns, column{name, measuredColumn})
	}
	for _, c := range r.Cells {
		row := c.values()
		for _, name := range names {
			if v, ok := c.Values[name]; ok {
				row = append(row, v)
			} else {
				row = append(row, nil) // not measured
			}
		}
		f.rows = append(f.rows, row)
	}
	return f
}

// windows has a row for each window of each cell.
func (r *Results) windows() *frame {
	f := &frame{columns: append(r.keys(), windowColumns...)}
	scaled := slices.ContainsFunc(r.Cells, func(c *Cell) bool { return c.Values["endpoints"] > 0 })
	if scaled {
		f.columns = append(f.columns, column{"endpoints", countColumn})
	}
	for _, c := range r.Cells {
		for i := range c.Windows {
			w := &c.Windows[i]
			row := append(c.values(), w.End.Seconds(), w.Flows, w.Refused, w.Unanswered, w.Broken, w.Open,
				w.MaxOverMean, w.Jain, w.FlowsMaxOverMean, w.FlowsJain, connectTime(w.ConnectP50), connectTime(w.ConnectP99))
			if scaled {
				row = append(row, w.Endpoints)
			}
			f.rows = append(f.rows, row)
		}
	}
	return f
}

// connectTime is a window's percentile in seconds, or nil without a reply.
func connectTime(nanoseconds int64) any {
	if nanoseconds == traffic.NoReply {
		return nil
	}
	return seconds(nanoseconds)
}

var windowColumns = []column{
	{"end", numberColumn}, {"flows", countColumn}, {"refused", countColumn}, {"unanswered", countColumn}, {"broken", countColumn}, {"open", countColumn},
	{"max_mean", numberColumn}, {"jain", numberColumn}, {"flows_max_mean", numberColumn}, {"flows_jain", numberColumn}, {"connect_p50", measuredColumn}, {"connect_p99", measuredColumn},
}

// ChangesCSV has a row for each change of a set of endpoints in each cell.
func (r *Results) ChangesCSV() []byte {
	var rows [][]string
	for _, c := range r.Cells {
		for _, change := range c.Changes {
			rows = append(rows, append(c.fields(), number(change.At.Seconds()), strconv.Itoa(change.Service), strconv.Itoa(change.Kept), strconv.Itoa(change.Moved)))
		}
	}
	return toCSV(r.header("at", "service", "kept", "moved"), rows)
}

func (r *Results) costsCSV() []byte {
	var rows [][]string
	for _, c := range r.Costs {
		rows = append(rows, append(c.fields(), number(c.P50.Seconds()), number(c.P99.Seconds()), strconv.Itoa(c.N)))
	}
	return toCSV(r.header("p50", "p99", "n"), rows)
}

// Row is the summary of an algorithm at a point.
type Row struct {
	Algorithm string `json:"algorithm"`
	Point     string `json:"point,omitempty"`
	// Metrics are the means over the cells, with confidence intervals, by the metrics' names.
	Metrics map[string]stats.Interval `json:"metrics"`
}

// Summary has a row for each algorithm at each point.
func (r *Results) Summary() (rows []Row) {
	for _, one := range r.series {
		row := Row{one.algorithm, one.point, make(map[string]stats.Interval)}
		for _, name := range metricNames() {
			if i := r.interval(one, name); i.N > 0 {
				row.Metrics[name] = i
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// values are those of a metric in the cells of an algorithm at a point.
func (r *Results) values(of series, metric string) (values []float64) {
	for _, c := range r.Cells {
		if c.series() == of {
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
	t := &Table{Head: slices.Concat(r.Parameters, []string{"algorithm"})}
	for _, m := range columns {
		t.Head = append(t.Head, m.Title)
	}
	for _, row := range rows {
		cells := append(valuesOf(row.Point), row.Algorithm)
		for _, m := range columns {
			cells = append(cells, m.text(row.Metrics[m.Name]))
		}
		t.Rows = append(t.Rows, cells)
	}
	t.Note = r.means()
	t.warn(r.Run.Warnings...)
	return t
}

// means says how many runs the means are of.
func (r *Results) means() string {
	least, most := len(r.Cells), 0
	for i := range r.Run.Series {
		n := r.Run.Series[i].Runs
		least, most = min(least, n), max(most, n)
	}
	runs := fmt.Sprintf("%d runs of each algorithm", most)
	switch done := len(r.Cells); {
	case most == 1 && r.Missing == 0:
		runs = "one run of each algorithm"
	case r.Missing > 0:
		runs = fmt.Sprintf("%d of %d runs", done, done+r.Missing)
	case least != most:
		runs = fmt.Sprintf("%d to %d runs of each algorithm", least, most)
	}
	of := ""
	for i := range r.Run.Series {
		if b := r.batches(series{r.Run.Series[i].Algorithm, r.Run.Series[i].Point}, "response_mean"); of == "" && b != nil {
			of = fmt.Sprintf("; of times of responses and open connections by %d batches of each run", len(b[0]))
		}
	}
	if most == 1 && r.Missing == 0 && of == "" {
		return runs + ", so without confidence intervals"
	}
	return fmt.Sprintf("means of %s, ± 95%% confidence (Student's t)%s", runs, of)
}
