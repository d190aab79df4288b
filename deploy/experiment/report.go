package experiment

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/chart"
)

// timeline is a chart over time.
type timeline struct {
	title, y string
	of       func(w *traffic.Window) float64
	// always: it is drawn even if all is 0.
	always bool
}

var timelines = []timeline{
	{"Open connections: the fullest endpoint in comparison with the mean", "max/mean", func(w *traffic.Window) float64 { return w.MaxOverMean }, true},
	{"Open connections: Jain's index", "Jain's index", func(w *traffic.Window) float64 { return w.Jain }, true},
	{"Time to the first reply, 99th percentile", "ms", func(w *traffic.Window) float64 { return seconds(w.ConnectP99) * milliseconds }, true},
	{"Open connections in all", "connections", func(w *traffic.Window) float64 { return float64(w.Open) }, true},
	{"Refused flows", "% of flows", share(func(w *traffic.Window) int { return w.Refused }), false},
	{"Unanswered flows", "% of flows", share(func(w *traffic.Window) int { return w.Unanswered }), false},
	{"Connections that ended before their time", "connections", func(w *traffic.Window) float64 { return float64(w.Broken) }, false},
	{"Endpoints of all services", "endpoints", func(w *traffic.Window) float64 { return float64(w.Endpoints) }, false},
}

func share(count func(*traffic.Window) int) func(*traffic.Window) float64 {
	return func(w *traffic.Window) float64 { return percent * float64(count(w)) / float64(max(w.Flows, 1)) }
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
		p.put("<p><strong>Incomplete: %d runs are missing.</strong></p>\n", r.Missing)
	}
	p.table(r.Table())
	for _, s := range r.sections() {
		p.heading(s.heading)
		p.table(s.table)
	}
	if curves := r.curves(rows); len(r.Parameters) == 0 {
		p.heading("Over time")
		p.dim("Lines are means of all runs, bands are 95% confidence intervals.")
		p.charts(append(r.timelines(""), r.bars(rows)...))
	} else if len(curves) > 0 {
		p.heading("By " + r.Parameters[0])
		p.dim("Lines are means of all runs, bands are 95% confidence intervals.")
		p.charts(curves)
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

// timelines are the charts over time; suffix is appended to their titles.
func (r *Results) timelines(suffix string) (svgs []string) {
	for _, t := range timelines {
		if lines, zero := r.lines(t.of); t.always || !zero {
			svgs = append(svgs, chart.Lines(t.title+suffix, "seconds", t.y, lines))
		}
	}
	return svgs
}

// curves are the charts of metrics over the swept parameter, if it is one and its values are numbers.
func (r *Results) curves(rows []Row) (svgs []string) {
	if len(r.Parameters) != 1 {
		return nil
	}
	for _, m := range r.columns(rows) {
		lines := make([]chart.Series, len(r.Algorithms))
		for i, row := range rows { // by point, then algorithm
			x, err := strconv.ParseFloat(valuesOf(row.Point)[0], 64)
			if err != nil {
				return nil
			}
			number := i % len(lines)
			v := row.Metrics[m.Name]
			lines[number].Name, lines[number].Number = row.Algorithm, number
			lines[number].Points = append(lines[number].Points, chart.Point{X: x, Y: v.Mean * m.Scale, Low: max(v.Mean-v.Half, 0) * m.Scale, High: (v.Mean + v.Half) * m.Scale})
		}
		svgs = append(svgs, chart.Lines(m.Meaning, r.Parameters[0], m.Title, lines))
	}
	return svgs
}

// bars are the charts of metrics.
func (r *Results) bars(rows []Row) (svgs []string) {
	for _, name := range bars {
		m := metric(name)
		var list []chart.Bar
		for i, row := range rows {
			v := row.Metrics[name]
			list = append(list, chart.Bar{Name: row.Algorithm, Number: i, Y: v.Mean * m.Scale, Low: max(v.Mean-v.Half, 0) * m.Scale, High: (v.Mean + v.Half) * m.Scale})
		}
		if slices.ContainsFunc(list, func(b chart.Bar) bool { return b.Y != 0 }) {
			svgs = append(svgs, chart.Bars(m.Meaning, m.Title, list))
		}
	}
	return svgs
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
				if c.Algorithm == a && i < len(c.Windows) {
					values, end = append(values, of(&c.Windows[i])), c.Windows[i].End
				}
			}
			if len(values) == 0 {
				break
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
