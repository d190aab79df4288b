package experiment

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/theory"
)

// Series are the runs of an algorithm at a point, with what shows whether they are long enough. Times are in seconds.
type Series struct {
	Algorithm string  `json:"algorithm"`
	Point     string  `json:"point,omitempty"`
	Duration  float64 `json:"duration"`
	// Warmup is the part of Duration that is in no result; of MSER-5 the mean of its cuts. Short is in how many runs MSER-5 found no end
	// of the warm-up.
	Warmup float64 `json:"warmup"`
	MSER   bool    `json:"mser,omitempty"`
	Short  int     `json:"short,omitempty"`
	// Load is that of the busiest service, and Relaxation the time in which its queues forget how they began; 0: not known.
	Load       float64 `json:"load,omitempty"`
	Relaxation float64 `json:"relaxation,omitempty"`
	Runs       int     `json:"runs"`
}

// Difference is the mean difference of a metric between two algorithms at a point, over the runs with the same flows: less noise
// than the difference of two means, because both meet the same bursts and the same long connections.
type Difference struct {
	Metric    string `json:"metric"`
	Algorithm string `json:"algorithm"`
	From      string `json:"from"` // the first algorithm
	Point     string `json:"point,omitempty"`
	stats.Interval
}

// series are all series before the runs.
func (x *Experiment) series() (all []Series) {
	for _, one := range x.all() {
		point := x.At(one.point)
		c := point.Config
		s := Series{Algorithm: one.algorithm, Point: one.point, Duration: c.Duration.Seconds(), Warmup: c.Warmup.Seconds(), MSER: point.MSER}
		if len(c.Events) == 0 { // with events there is no stationary state to wait for
			s.Load, s.Relaxation = relaxation(c, one.algorithm)
		}
		if q := c.Workload.Requests; q != nil {
			s.Relaxation = 0 // connections with several requests are no customers of a queue
			if q.Attempts > 1 || q.Cancel {
				s.Load = 0 // further attempts are more load, and work that ends early is less
			}
		}
		all = append(all, s)
	}
	return all
}

// blind are algorithms that do not know the load: each endpoint is a queue of its own. The queues of others relax together.
var blind = []string{"random", "rr", "wrr", "sh", "dh", "maglev", "ring", "ring-table", "hrw", "jump", "multiprobe", "rr-random"}

// relaxation returns the load of the busiest service, and the relaxation time of its queues in seconds: that of M/M/1 with the rate of
// all workers of an endpoint or, with algorithms that know the load, of all endpoints, which is the shortest possible. It is 0 if the
// load is not known or there is no stationary state.
func relaxation(c *traffic.Config, algorithm string) (load, seconds float64) {
	busiest, all := -1, c.Steady()
	for i := range all {
		if all[i].Load > load {
			busiest, load = i, all[i].Load
		}
	}
	if busiest < 0 || load >= 1 {
		return load, 0
	}
	s := &c.Cluster.Services[busiest]
	if s.Algorithm != "" {
		algorithm = s.Algorithm
	}
	name, _ := strings.CutSuffix(algorithm, traffic.SecondChance)
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "eject("), "(")
	capacity := all[busiest].Rate / load
	if slices.Contains(blind, strings.TrimSuffix(name, ")")) {
		capacity /= float64(len(s.Endpoints))
	}
	return load, theory.Relaxation(load) / capacity
}

// conclude sets what is said about all runs.
func (r *Results) conclude(rows []Row) {
	r.Run.Warnings, r.Run.Differences = nil, nil
	if r.edited {
		r.Run.Warnings = append(r.Run.Warnings, fmt.Sprintf("%s, or a file that it names, was changed after these runs: the results are those of the file as it was before", FileExperiment))
	}
	for i := range r.Run.Series {
		s := &r.Run.Series[i]
		var cuts []float64
		s.Runs, s.Short = 0, 0
		for _, c := range r.Cells {
			if c.series() == (series{s.Algorithm, s.Point}) {
				s.Runs++
				cuts = append(cuts, c.Warmup)
				if c.Short {
					s.Short++
				}
			}
		}
		if s.MSER {
			s.Warmup = stats.Mean(cuts)
		}
		r.warn(s)
	}
	columns := r.columns(rows)
	r.warnEmpty(columns)
	r.warnTails(columns)
	r.warnBatches(columns)
	if note := r.scriptNote(); note != "" {
		r.Run.Warnings = append(r.Run.Warnings, note)
	}
	r.compare(columns)
	r.judge(rows)
}

// bias is the estimated share of a mean above which there is a warning that the empty start biases it.
const bias = 0.01

// warn warns if the runs of a series are too short.
func (r *Results) warn(s *Series) {
	add := func(format string, args ...any) {
		r.Run.Warnings = append(r.Run.Warnings, label(s.Algorithm, s.Point)+": "+fmt.Sprintf(format, args...))
	}
	if s.Short > 0 {
		add("in %d of %d runs, MSER-5 finds no end of the warm-up in the first half: use a longer duration", s.Short, s.Runs)
	}
	// A busy machine begins flows of live runs late. Later than they take, the load is another one than that of the file.
	of := series{s.Algorithm, s.Point}
	if late, takes := r.interval(of, "late_p99"), r.interval(of, "response_mean"); late.N > 0 && takes.N > 0 && late.Mean > takes.Mean {
		add("flows began late, one in a hundred by %s or more, and took %s: the machine is too slow for this load, and these are not results of it; want less load, or a machine without other work",
			secondsText(late.Mean), secondsText(takes.Mean))
	}
	measured := s.Duration - s.Warmup
	switch {
	case s.Load >= 1:
		add("load %.3g: the queues grow until the end; there is no steady state", s.Load)
	case s.Relaxation > 0 && measured > 0:
		// The mean number of customers of M/M/1 approaches the stationary one such that the integral of what lacks is about a
		// quarter of the relaxation time (Abate and Whitt, Transient Behavior of the M/M/1 Queue: Starting at the Origin, 1987).
		if lacks := s.Relaxation / 4 / measured * math.Exp(-s.Warmup/s.Relaxation); lacks > bias {
			add("the relaxation time of the queues is about %s, the warm-up %s and the rest %s: the empty start lowers means by about %.2g %%; want a longer warm-up and duration",
				secondsText(s.Relaxation), secondsText(s.Warmup), secondsText(measured), lacks*percent)
		}
	}
	if u := r.Run.Until; u != nil {
		m, i := metric(u.Metric), r.interval(series{s.Algorithm, s.Point}, u.Metric)
		half := Amount{u.Half, u.Relative}
		switch {
		case i.N == 0:
			add("%s (until.metric) was not measured in any run, so no seeds were added", m.Title)
		case s.Runs >= u.Max*r.Run.Repeats && i.Half > half.of(i.Mean):
			add("after %d seeds (until.max) the interval of %s is %s: wanted ± %s", u.Max, m.Title, m.text(i), half)
		}
	}
}

// warnEmpty warns of times that some runs do not have, because nothing of the kind happened.
func (r *Results) warnEmpty(columns []*Metric) {
	for _, one := range []struct{ prefix, text string }{
		{"connect_", "no flow after the warm-up gets a reply: there are no times to the first reply"},
		{"response_", "no work on a flow after the warm-up ends: there are no response times"},
	} {
		i := slices.IndexFunc(columns, func(m *Metric) bool { return strings.HasPrefix(m.Name, one.prefix) })
		for _, s := range r.Run.Series {
			if i < 0 {
				break
			}
			if n := s.Runs - len(r.values(series{s.Algorithm, s.Point}, columns[i].Name)); n > 0 {
				r.Run.Warnings = append(r.Run.Warnings, fmt.Sprintf("%s: in %d of %d runs %s", label(s.Algorithm, s.Point), n, s.Runs, one.text))
			}
		}
	}
}

func secondsText(v float64) string { return digits(v, decimalsOf(v, 2)) + " s" }

// tails are the shares of flows or requests above percentiles.
var tails = map[string]float64{"connect_p99": 0.01, "connect_p999": 0.001, "response_p99": 0.01, "response_p999": 0.001}

// warnTails warns of percentiles of few flows or requests.
func (r *Results) warnTails(columns []*Metric) {
	const few = 10
	for _, m := range columns {
		share, ok := tails[m.Name]
		least, what := math.Inf(1), "flows"
		for _, c := range r.Cells {
			n := c.Values["flows"]
			if requests, has := c.Values["requests"]; has && strings.HasPrefix(m.Name, "response") {
				n, what = requests, "requests"
			}
			least = min(least, n)
		}
		if ok && least*share < few {
			r.Run.Warnings = append(r.Run.Warnings, fmt.Sprintf("%s: of %.0f %s in a run fewer than %d are above it", m.Title, least, what, few))
		}
	}
}

// compare computes the differences from the first algorithm.
func (r *Results) compare(columns []*Metric) {
	first := r.Algorithms[0]
	for _, one := range r.series {
		for _, m := range columns {
			if d := r.difference(one, first, m.Name); d.N > 0 && one.algorithm != first {
				r.Run.Differences = append(r.Run.Differences, Difference{m.Name, one.algorithm, first, one.point, d})
			}
		}
	}
}

// difference is that of a metric from another algorithm, in the runs of a series with the same flows and, if there are batches of the same
// times, in these.
func (r *Results) difference(of series, from, metric string) stats.Interval {
	others := make(map[Key]*Cell)
	for _, c := range r.Cells {
		if _, ok := c.Values[metric]; ok && c.series() == (series{from, of.point}) {
			others[c.Key] = c
		}
	}
	var runs, batches []float64
	inBatches := true
	for _, c := range r.Cells {
		k := c.Key
		k.Algorithm = from
		v, ok := c.Values[metric]
		other := others[k]
		if c.series() != of || !ok || other == nil {
			continue
		}
		runs = append(runs, v-other.Values[metric])
		a, b := c.Batches[metric], other.Batches[metric]
		if inBatches = inBatches && len(a) > 0 && len(a) == len(b) && c.Warmup == other.Warmup; inBatches {
			for i := range a {
				batches = append(batches, a[i]-b[i])
			}
		}
	}
	i := stats.Confidence(runs)
	if inBatches && len(batches) > 0 {
		all := stats.Confidence(batches)
		i.Half, i.N = all.Half, all.N
	}
	return i
}

// differences is the table of differences; nil: there is one algorithm, or one run of each.
func (r *Results) differences(columns []*Metric) *Table {
	t := &Table{Head: slices.Concat(r.Parameters, []string{"algorithm"}), Note: fmt.Sprintf("means of the differences from %s of runs with the same flows, ± 95%% confidence (Student's t)", r.Algorithms[0])}
	for _, m := range columns {
		t.Head = append(t.Head, m.Title)
	}
	for _, one := range r.series {
		cells := append(valuesOf(one.point), one.algorithm)
		some := false
		for _, m := range columns {
			text := "-"
			for i := range r.Run.Differences {
				if d := &r.Run.Differences[i]; d.Algorithm == one.algorithm && d.Point == one.point && d.Metric == m.Name && d.N > 1 {
					text, some = m.text(d.Interval), true
					if d.Mean > 0 {
						text = "+" + text
					}
				}
			}
			cells = append(cells, text)
		}
		if some {
			t.Rows = append(t.Rows, cells)
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return t
}

// DifferencesCSV has a row for each difference, in seconds, shares and counts.
func (r *Results) DifferencesCSV() []byte {
	var rows [][]string
	for i := range r.Run.Differences {
		d := &r.Run.Differences[i]
		rows = append(rows, slices.Concat([]string{d.Algorithm, d.From}, valuesOf(d.Point), []string{d.Metric, number(d.Mean), number(d.Half), number(float64(d.N))}))
	}
	return toCSV(slices.Concat([]string{"algorithm", "from"}, r.Parameters, []string{"metric", "mean", "half", "n"}), rows)
}

// warmups is the table of what MSER-5 has cut; nil: it was not used.
func (r *Results) warmups() *Table {
	t := &Table{Head: slices.Concat(r.Parameters, []string{"algorithm", "cut s", "of s"}), Note: "what MSER-5 (White 1997) has cut, mean of all runs"}
	for i := range r.Run.Series {
		if s := &r.Run.Series[i]; s.MSER {
			t.Rows = append(t.Rows, slices.Concat(valuesOf(s.Point), []string{s.Algorithm, digits(s.Warmup, decimalsOf(s.Warmup, 3)), digits(s.Duration, decimalsOf(s.Duration, 3))}))
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return t
}

// section is a table of the report with its heading.
type section struct {
	heading string
	table   *Table
}

// sections are the tables beside the main one.
func (r *Results) sections() (all []section) {
	rows := r.Summary()
	for _, s := range []section{
		{"Expected values", r.expected()},
		{"Differences", r.differences(r.columns(rows))},
		{"Warm-up", r.warmups()},
	} {
		if s.table != nil {
			all = append(all, s)
		}
	}
	return all
}

// Text is the main table, and that of expected values if there are any.
func (r *Results) Text() string {
	text := r.Table().Text()
	if t := r.expected(); t != nil {
		text += "\n" + t.Text()
	}
	return text
}

// Markdown has all tables.
func (r *Results) Markdown() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s\n\n%s", r.Name, r.Title, r.Table().Markdown())
	for _, s := range r.sections() {
		fmt.Fprintf(&b, "\n## %s\n\n%s", s.heading, s.table.Markdown())
	}
	return []byte(b.String())
}
