package experiment

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/chart"
)

// timeline is a chart over time.
type timeline struct {
	name, title, y string                          // the name is of its files
	of             func(w *traffic.Window) float64 // NaN: not measured
	// always: it is drawn even if all is 0.
	always bool
}

var timelines = []timeline{
	{"max_mean", "Open connections: the fullest endpoint in comparison with the mean", "max/mean", maxOverMean, true},
	{"jain", "Open connections: Jain's index", "Jain's index", jain, true},
	{"connect_p99", "Time to the first reply, 99th percentile", "ms", connectP99, true},
	{"open", "Open connections in all", "connections", func(w *traffic.Window) float64 { return float64(w.Open) }, true},
	{"refused", "Refused flows", "% of flows", share(func(w *traffic.Window) int { return w.Refused }), false},
	{"unanswered", "Unanswered flows", "% of flows", share(func(w *traffic.Window) int { return w.Unanswered }), false},
	{"broken", "Connections that ended before their time", "connections", func(w *traffic.Window) float64 { return float64(w.Broken) }, false},
	{"endpoints", "Endpoints of all services", "endpoints", func(w *traffic.Window) float64 { return float64(w.Endpoints) }, false},
}

func share(count func(*traffic.Window) int) func(*traffic.Window) float64 {
	return func(w *traffic.Window) float64 { return percent * float64(count(w)) / float64(max(w.Flows, 1)) }
}

// maxOverMean and jain are NaN without open connections.
func maxOverMean(w *traffic.Window) float64 { return ifOpen(w, w.MaxOverMean) }
func jain(w *traffic.Window) float64        { return ifOpen(w, w.Jain) }

func ifOpen(w *traffic.Window, v float64) float64 {
	if w.Open == 0 {
		return math.NaN()
	}
	return v
}

// connectP99 is in milliseconds; NaN without a reply in the window.
func connectP99(w *traffic.Window) float64 {
	if w.ConnectP99 == traffic.NoReply {
		return math.NaN()
	}
	return seconds(w.ConnectP99) * milliseconds
}

// bars are the metrics that are drawn as bars, if they differ from 0.
var bars = []string{"connect_p99", "connect_p999", "response_mean", "response_p999", "errors", "wasted", "refused", "broken", "remapped"}

// Report is the page with all results. It loads nothing.
func (r *Results) Report() []byte {
	rows := r.Summary()
	all := &Table{Head: []string{"metric"}}
	for _, one := range r.series {
		all.Head = append(all.Head, label(one.algorithm, one.point))
	}
	for _, name := range r.metrics() {
		m := metric(name)
		cells := []string{m.Title}
		for _, row := range rows {
			cells = append(cells, m.text(row.Metrics[m.Name]))
		}
		all.Rows = append(all.Rows, cells)
	}
	p := newPage(r.Name, r.Title)
	if r.Missing > 0 {
		p.put("<p><strong>Incomplete: %s.</strong></p>\n", r.Lacks())
	}
	p.table(r.Table())
	for _, s := range r.sections() {
		p.heading(s.heading)
		p.table(s.table)
	}
	if plots := r.plots(rows); len(plots) > 0 {
		heading := "Over time"
		if axis := r.axis(); axis >= 0 {
			heading = "By " + r.Parameters[axis]
		} else if len(r.Parameters) > 0 {
			heading = "By " + strings.Join(r.Parameters, ", ")
		}
		p.heading(heading)
		p.dim("Lines are means of all runs, bands are 95% confidence intervals.")
		if len(plots) == maxPlots {
			p.dim(fmt.Sprintf("At most %d plots are drawn.", maxPlots))
		}
		p.charts(plots)
	}
	p.heading("All metrics")
	p.table(all)
	p.put("<dl>")
	for _, name := range r.metrics() {
		m := metric(name)
		p.put("<dt><strong>%s</strong></dt><dd>%s</dd>", m.Title, m.Meaning)
	}
	p.put("</dl>\n")
	p.heading("Time of a decision on this machine")
	p.table(r.costTable())
	p.dim("The only results that depend on the machine.")
	return p.end(r.File, r.Scripts, &r.Run)
}

// plot is a chart with the name of its files.
type plot struct {
	name string
	*chart.Chart
}

// plots are the charts of the report.
func (r *Results) plots(rows []Row) []plot {
	if len(r.Parameters) > 0 {
		all := r.curves(rows)
		return all[:min(len(all), maxPlots)]
	}
	return append(r.timelines(""), r.bars(rows, "", "")...)
}

// maxPlots bounds the charts of parameters with many values.
const maxPlots = 200

// timelines are the charts over time; suffix is appended to their titles.
func (r *Results) timelines(suffix string) (all []plot) {
	for _, t := range timelines {
		if lines, zero := r.lines(t.of); t.always || !zero {
			all = append(all, plot{t.name + "-over-time", &chart.Chart{Title: t.title + suffix, X: "seconds", Y: t.y, Lines: lines}})
		}
	}
	return all
}

// axis is the swept parameter of the horizontal axis: the first whose values are all numbers; below 0: there is none.
func (r *Results) axis() int {
	return slices.IndexFunc(r.keys()[len(keyColumns):], func(c column) bool { return c.kind == numberColumn })
}

// farApart reports whether points are so far apart that most of them would be at one end of a linear axis.
func farApart(lines []chart.Series) bool {
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range lines {
		for _, p := range s.Points {
			low, high = min(low, p.X), max(high, p.X)
		}
	}
	return low > 0 && high >= 50*low
}

// curves are the charts of metrics over a swept parameter. Of several, there is a chart for each combination of the others' values.
// Without a parameter whose values are numbers, they are charts of bars for each combination.
func (r *Results) curves(rows []Row) (all []plot) {
	axis := r.axis()
	var others []string // the combinations
	rowsOf := make(map[string][]Row)
	for _, row := range rows {
		var other []string
		for i, v := range valuesOf(row.Point) {
			if i != axis {
				other = append(other, r.Parameters[i]+"="+v)
			}
		}
		name := strings.Join(other, ",")
		if rowsOf[name] == nil {
			others = append(others, name)
		}
		rowsOf[name] = append(rowsOf[name], row)
	}
	if axis < 0 {
		for _, other := range others {
			all = append(all, r.bars(rowsOf[other], "-"+other, " ("+other+")")...)
		}
		return all
	}
	for _, m := range r.columns(rows) {
		for _, other := range others {
			lines := make([]chart.Series, len(r.Algorithms))
			for i, row := range rowsOf[other] { // by point, then algorithm
				x, err := strconv.ParseFloat(valuesOf(row.Point)[axis], 64)
				if err != nil {
					return nil // the axis has numbers
				}
				number := i % len(lines)
				v := row.Metrics[m.Name]
				lines[number].Name, lines[number].Number = row.Algorithm, number
				if v.N == 0 {
					continue
				}
				lines[number].Points = append(lines[number].Points, chart.Point{X: x, Y: v.Mean * m.Scale, Low: max(v.Mean-v.Half, 0) * m.Scale, High: (v.Mean + v.Half) * m.Scale})
			}
			p := plot{m.Name + "-by-" + r.Parameters[axis], &chart.Chart{Title: m.Meaning, X: r.Parameters[axis], Y: m.Title, LogX: farApart(lines), Lines: lines}}
			if other != "" {
				p.name += "-" + other
				p.Title += " (" + other + ")"
			}
			all = append(all, p)
		}
	}
	return all
}

// bars are the charts of metrics; the suffixes are appended to their names and titles.
func (r *Results) bars(rows []Row, nameSuffix, titleSuffix string) (all []plot) {
	for _, name := range bars {
		m := metric(name)
		var list []chart.Bar
		for i, row := range rows {
			v := row.Metrics[name]
			if v.N == 0 {
				continue
			}
			list = append(list, chart.Bar{Name: row.Algorithm, Number: i, Y: v.Mean * m.Scale, Low: max(v.Mean-v.Half, 0) * m.Scale, High: (v.Mean + v.Half) * m.Scale})
		}
		if slices.ContainsFunc(list, func(b chart.Bar) bool { return b.Y != 0 }) {
			all = append(all, plot{name + nameSuffix, &chart.Chart{Title: m.Meaning + titleSuffix, Y: m.Title, Bars: list}})
		}
	}
	return all
}

// writePlots writes the charts of the report into the directory of results: as SVG and PDF, and for Vega-Lite with their values.
func (r *Results) writePlots(dir string, rows []Row) error {
	dir = filepath.Join(dir, dirPlots)
	for _, p := range r.plots(rows) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		spec, err := p.VegaLite()
		if err != nil {
			return fmt.Errorf("plot %s: %w", p.name, err)
		}
		path := filepath.Join(dir, p.name)
		if err := errors.Join(writeFile(path+extensionSVG, p.SVG()), writeFile(path+extensionPDF, p.PDF()), writeFile(path+extensionVegaLite, spec)); err != nil {
			return err
		}
	}
	return nil
}

// lines are the means of a quantity over the cells of each algorithm, with confidence intervals. zero: all
// are 0.
func (r *Results) lines(of func(*traffic.Window) float64) (all []chart.Series, zero bool) {
	zero = true
	for number, a := range r.Algorithms {
		s := chart.Series{Name: a, Number: number}
		for i := 0; ; i++ {
			var values []float64
			end := time.Duration(0)
			for _, c := range r.Cells {
				if c.Algorithm != a || i >= len(c.Windows) {
					continue
				}
				end = c.Windows[i].End
				if v := of(&c.Windows[i]); !math.IsNaN(v) {
					values = append(values, v)
				}
			}
			if end == 0 {
				break
			}
			if len(values) == 0 {
				continue
			}
			v := stats.Confidence(values)
			zero = zero && v.Mean == 0
			s.Points = append(s.Points, chart.Point{X: end.Seconds(), Y: v.Mean, Low: max(v.Mean-v.Half, 0), High: v.Mean + v.Half})
		}
		all = append(all, s)
	}
	return all, zero
}

// costTable is about the time of decisions on the machine.
func (r *Results) costTable() *Table {
	t := &Table{Head: []string{"algorithm", "p50 ns", "p99 ns", "decisions measured"}}
	for _, a := range r.Algorithms {
		var p50, p99 []float64
		n := 0
		for _, c := range r.Costs {
			if c.Algorithm == a && c.N > 0 {
				p50, p99, n = append(p50, float64(c.P50)), append(p99, float64(c.P99)), n+c.N
			}
		}
		if n > 0 {
			one := Metric{Scale: 1}
			t.Rows = append(t.Rows, []string{a, one.text(stats.Confidence(p50)), one.text(stats.Confidence(p99)), fmt.Sprint(n)})
		}
	}
	return t
}
