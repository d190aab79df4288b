package main

import (
	"fmt"
	"io"
	"slices"
)

// sample is one measured value.
type sample struct {
	services   int
	contestant string
	measure    string // the workload, or start, change, stream, memory, rules
	quantity   string
	unit       string
	round      int
	value      float64
}

// samples are all values of a run. They are written to a file as they come.
type samples struct {
	all []sample
	csv io.Writer
}

func newSamples(csv io.Writer) *samples {
	fmt.Fprintln(csv, "services,contestant,measure,quantity,unit,round,value")
	return &samples{csv: csv}
}

func (s *samples) add(v sample) {
	s.all = append(s.all, v)
	fmt.Fprintf(s.csv, "%d,%s,%q,%s,%s,%d,%g\n", v.services, v.contestant, v.measure, v.quantity, v.unit, v.round, v.value)
}

// figure is what repeated measurements of one thing gave.
type figure struct {
	median, min, max float64
	n                int // 0: not measured
}

func (s *samples) figure(services int, contestant, measure, quantity string) figure {
	return summarize(s.values(services, contestant, measure, quantity))
}

func (s *samples) values(services int, contestant, measure, quantity string) (values []float64) {
	for _, v := range s.all {
		if v.services == services && v.contestant == contestant && v.measure == measure && v.quantity == quantity {
			values = append(values, v.value)
		}
	}
	return values
}

func summarize(values []float64) figure {
	n := len(values)
	if n == 0 {
		return figure{}
	}
	sorted := slices.Sorted(slices.Values(values))
	return figure{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1], n}
}

// String gives "12.3 (11.9–13.0)", or a dash if nothing was measured.
func (f figure) String() string {
	switch {
	case f.n == 0:
		return "–"
	case f.n == 1 || f.min == f.max:
		return round3(f.median)
	}
	return fmt.Sprintf("%s (%s–%s)", round3(f.median), round3(f.min), round3(f.max))
}

// round3 gives three digits that count.
func round3(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.01:
		return fmt.Sprintf("%.2f", v)
	case v == 0:
		return "0"
	}
	return fmt.Sprintf("%.4f", v)
}

// alike is the difference below which two figures are called the same: repeats spread
// by as much.
const alike = 0.15

// ratio formats ours over theirs, with a mark if that is no difference.
func ratio(ours, theirs figure) string {
	if ours.n == 0 || theirs.n == 0 || theirs.median == 0 {
		return "–"
	}
	r := ours.median / theirs.median
	if r > 1-alike && r < 1+alike {
		return fmt.Sprintf("%.2f ≈", r)
	}
	return fmt.Sprintf("%.2f", r)
}
