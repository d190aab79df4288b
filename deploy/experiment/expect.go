package experiment

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// Expect is a value that a metric should have, of a publication or by a formula, or an order of two algorithms.
type Expect struct {
	Metric string `json:"metric"`
	// Algorithm is one of the experiment; empty: all.
	Algorithm string `json:"algorithm"`
	// At are values of swept parameters; empty: all points.
	At map[string]string `json:"at"`
	// Value is in the metric's unit: seconds, shares or counts. A formula, by its name, takes its parameters from the simulation.
	Value   *Amount `json:"value"`
	Formula string  `json:"formula"`
	// Below is an algorithm of the experiment instead, whose value should be larger, at the same point.
	Below string `json:"below"`
	// Source is where the value is published, with its figure or table; of a formula it may be empty.
	Source string `json:"source"`
	// Tolerance is that of the value: in percent of it, or in the metric's unit. An order has none.
	Tolerance *Amount `json:"tolerance"`
}

// Expectation is an expected value of an algorithm at a point, and what came of it.
type Expectation struct {
	Metric    string  `json:"metric"`
	Algorithm string  `json:"algorithm"`
	Point     string  `json:"point,omitempty"`
	Value     float64 `json:"value"`
	Tolerance float64 `json:"tolerance"` // absolute
	Formula   string  `json:"formula,omitempty"`
	Below     string  `json:"below,omitempty"` // instead of Value and Tolerance, which are 0
	Source    string  `json:"source"`
	// Ours is the mean over the runs with its confidence interval, with Below that of the differences from its runs with the same flows.
	// Verdict is what it says. Both are set at the end.
	Ours    stats.Interval `json:"ours"`
	Verdict string         `json:"verdict"`
}

// The verdicts.
const (
	Reproduced = "reproduced"
	Differs    = "differs"
	NotDecided = "not decided: too few runs"
)

// judge compares an interval with a value. They agree if the interval overlaps value ± tolerance and is no wider than that. A wider
// one that overlaps says nothing yet, nor does a single run, which has no interval.
func judge(ours stats.Interval, value, tolerance float64) string {
	low, high := ours.Mean-ours.Half, ours.Mean+ours.Half
	switch {
	case ours.N < 2:
		return NotDecided
	case high < value-tolerance || low > value+tolerance:
		return Differs
	case ours.Half <= tolerance:
		return Reproduced
	}
	return NotDecided
}

// judgeOrder compares an interval of differences with 0: the order holds if the interval is below 0.
func judgeOrder(difference stats.Interval) string {
	switch {
	case difference.N < 2:
		return NotDecided
	case difference.Mean+difference.Half < 0:
		return Reproduced
	case difference.Mean-difference.Half >= 0:
		return Differs
	}
	return NotDecided
}

// judge sets the verdicts of all expectations.
func (r *Results) judge(rows []Row) {
	for i := range r.Run.Expected {
		e := &r.Run.Expected[i]
		if e.Below != "" {
			e.Ours = r.difference(series{e.Algorithm, e.Point}, e.Below, e.Metric)
			e.Verdict = judgeOrder(e.Ours)
			continue
		}
		for _, row := range rows {
			if row.Algorithm == e.Algorithm && row.Point == e.Point {
				e.Ours = row.Metrics[e.Metric]
			}
		}
		e.Verdict = judge(e.Ours, e.Value, e.Tolerance)
	}
}

// Verdict is an error if an expected value differs, or if there are too few runs to tell.
func (r *Results) Verdict() error {
	differ, open := 0, 0
	for i := range r.Run.Expected {
		switch r.Run.Expected[i].Verdict {
		case Differs:
			differ++
		case NotDecided:
			open++
		}
	}
	var parts []string
	if differ > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d expected values differ", differ, len(r.Run.Expected)))
	}
	if open > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d expected values are not decided: run more --seeds", open, len(r.Run.Expected)))
	}
	if len(parts) == 0 {
		return nil
	}
	return fmt.Errorf("%s (%s): %s", r.Name, r.Run.Backend, strings.Join(parts, "; "))
}

// expected is the table of expected values; nil: there are none.
func (r *Results) expected() *Table {
	if len(r.Run.Expected) == 0 {
		return nil
	}
	t := &Table{Head: slices.Concat(r.Parameters, []string{"algorithm", "metric", "paper", "ours", "interval", "verdict", "source"})}
	for i := range r.Run.Expected {
		e := &r.Run.Expected[i]
		m := metric(e.Metric)
		d := min(decimalsOf(orElse(orElse(e.Tolerance, e.Ours.Half), e.Ours.Mean)*m.Scale, 2)+1, 6)
		at := func(v float64) string { return digits(v*m.Scale, d) }
		ours, interval := "-", "-"
		if e.Ours.N > 0 {
			ours = at(e.Ours.Mean)
		}
		if e.Ours.N > 1 {
			interval = at(e.Ours.Mean-e.Ours.Half) + " to " + at(e.Ours.Mean+e.Ours.Half)
		}
		paper, source := at(e.Value)+" ±"+at(e.Tolerance), e.Source
		if e.Below != "" {
			paper = "below " + e.Below
		}
		if e.Formula != "" {
			source = e.Formula + ", " + source
		}
		t.Rows = append(t.Rows, slices.Concat(valuesOf(e.Point), []string{e.Algorithm, m.Title, paper, ours, interval, e.Verdict, source}))
	}
	return t
}

// ExpectedCSV has a row for each expected value, in seconds, shares and counts.
func (r *Results) ExpectedCSV() []byte {
	var rows [][]string
	for i := range r.Run.Expected {
		e := &r.Run.Expected[i]
		rows = append(rows, slices.Concat([]string{e.Algorithm}, valuesOf(e.Point), []string{e.Metric, number(e.Value), number(e.Tolerance), number(e.Ours.Mean), number(e.Ours.Half), number(float64(e.Ours.N)), e.Verdict, e.Formula, e.Source, e.Below}))
	}
	return toCSV(slices.Concat([]string{"algorithm"}, r.Parameters, []string{"metric", "value", "tolerance", "mean", "half", "n", "verdict", "formula", "source", "below"}), rows)
}

// checkExpect checks what does not depend on the points.
func (p *reader) checkExpect(s *Spec) {
	parameters := s.parameters()
	for i := range s.Expect {
		e, at := &s.Expect[i], fmt.Sprintf("expect[%d]", i)
		f := formulaOf(e.Formula)
		m := metric(e.Metric)
		p.metric(at+".metric", e.Metric, s)
		kinds := 0
		for _, given := range []bool{e.Value != nil, e.Formula != "", e.Below != ""} {
			if given {
				kinds++
			}
		}
		p.Want(at+".value", kinds == 1, "want a value, a formula or an algorithm (below)")
		p.Want(at+".formula", e.Formula == "" || f != nil, "want one of %s, not %q%s", strings.Join(formulaNames(), ", "), e.Formula, nearest.Hint(e.Formula, formulaNames()))
		if f != nil && f.metric != e.Metric {
			p.Fail(at+".formula", "%s is a formula for %s, not for %s", e.Formula, f.metric, e.Metric)
		}
		p.Want(at+".value", e.Value == nil || m == nil || !e.Value.Relative || m.Scale == percent, "want a number or a time: %s is not a share", e.Metric)
		p.Want(at+".source", e.Source != "" || e.Formula != "", "missing: want a citation, with the figure or table")
		if e.Below == "" {
			p.Want(at+".tolerance", e.Tolerance != nil && e.Tolerance.Value > 0, "missing: want one above 0, such as 1%%")
		} else {
			p.Want(at+".tolerance", e.Tolerance == nil, "leave it out: with below, two algorithms are compared")
		}
		p.ofExperiment(at+".algorithm", &e.Algorithm, s)
		p.ofExperiment(at+".below", &e.Below, s)
		p.Want(at+".below", e.Below == "" || e.Below != e.Algorithm && len(s.Algorithms) > 1, "want another algorithm")
		for _, name := range slices.Sorted(maps.Keys(e.At)) {
			value, n := e.At[name], slices.Index(parameters, name)
			if n < 0 {
				p.Fail(at+".at", "%q is not a swept parameter", name)
				continue
			}
			if !slices.ContainsFunc(s.Sweep[n].Values, func(v SweepValue) bool { return v.text == value }) {
				p.Fail(at+".at", "%s has no value %s: write it as in sweep[%d].values", name, value, n)
			}
		}
	}
}

// ofExperiment checks that a named algorithm is one of the experiment's, and spells it the same way.
func (p *reader) ofExperiment(at string, algorithm *string, s *Spec) {
	plain, second := strings.CutSuffix(*algorithm, traffic.SecondChance)
	if plain == "" {
		return
	}
	if name, ok := p.algorithm(at, plain); ok {
		if *algorithm = name; second {
			*algorithm += traffic.SecondChance
		}
		p.Want(at, slices.Contains(s.Algorithms, *algorithm), "want one of the experiment's algorithms")
	}
}

// expect computes the expected values, in the order of the file, then of points and algorithms.
func (p *reader) expect(s *Spec, points []Point) (all []Expectation) {
	for i := range s.Expect {
		e, at := &s.Expect[i], fmt.Sprintf("expect[%d]", i)
		for n := range points {
			if !e.isAt(s.parameters(), points[n].Name) {
				continue
			}
			for _, a := range s.Algorithms {
				if e.Algorithm != "" && e.Algorithm != a || e.Below == a {
					continue
				}
				one := Expectation{Metric: e.Metric, Algorithm: a, Point: points[n].Name, Formula: e.Formula, Below: e.Below, Source: e.Source}
				if e.Below != "" {
					all = append(all, one)
					continue
				}
				if f := formulaOf(e.Formula); f != nil {
					v, err := f.of(points[n].Config, a)
					if err != nil {
						p.Fail(at+".formula", "%s %w", e.Formula, err)
						return nil
					}
					if one.Value = v; one.Source == "" {
						one.Source = f.source
					}
				} else {
					one.Value = e.Value.Value
				}
				one.Tolerance = e.Tolerance.of(one.Value)
				all = append(all, one)
			}
		}
	}
	return all
}

// isAt reports whether it is about a point.
func (e *Expect) isAt(parameters []string, point string) bool {
	for i, value := range valuesOf(point) {
		if want, ok := e.At[parameters[i]]; ok && want != value {
			return false
		}
	}
	return true
}
