package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// result is what was measured with so many Services.
type result struct {
	services, endpoints int
	starts              []usage // at each start, when it was ready
	idle                usage   // of the last start, some time later
	end                 usage   // and after all changes
	changes             []latency
	bursts              []burst
}

// figure is one line of the table.
type figure struct {
	name  string
	value float64
}

func (r *result) figures() []figure {
	of := func(f func(usage) float64) float64 { return quantile(r.starts, f, 0.5) }
	figures := []figure{
		{"time to ready, s", of(func(u usage) float64 { return u.after.Seconds() })},
		{"CPU time until ready, s", of(func(u usage) float64 { return u.cpu.Seconds() })},
		{"VmRSS at ready, MiB", of(func(u usage) float64 { return u.rss })},
		{"VmHWM at ready, MiB", of(func(u usage) float64 { return u.peak })},
		{"VmRSS idle, MiB", r.idle.rss},
		{"VmRSS at the end, MiB", r.end.rss},
		{"VmHWM at the end, MiB", r.end.peak},
		{"CPU time of all changes, s", (r.end.cpu - r.idle.cpu).Seconds()},
	}
	for _, q := range []struct {
		name string
		at   float64
	}{{"median", 0.5}, {"p90", 0.9}, {"max", 1}} {
		figures = append(figures,
			figure{"request to obeyed, " + q.name + ", ms", quantile(r.changes, func(l latency) float64 { return ms(l.sent) }, q.at)},
			figure{"answer to obeyed, " + q.name + ", ms", quantile(r.changes, func(l latency) float64 { return ms(l.answered) }, q.at)})
	}
	return append(figures,
		figure{"burst: slices", quantile(r.bursts, func(b burst) float64 { return float64(b.slices) }, 0.5)},
		figure{"burst: first request to last answer, ms", quantile(r.bursts, func(b burst) float64 { return ms(b.api) }, 0.5)},
		figure{"burst: last answer to obeyed, median, ms", quantile(r.bursts, func(b burst) float64 { return ms(b.obeyed) }, 0.5)},
		figure{"burst: last answer to obeyed, max, ms", quantile(r.bursts, func(b burst) float64 { return ms(b.obeyed) }, 1)},
		figure{"burst: tables", quantile(r.bursts, func(b burst) float64 { return float64(b.tables) }, 0.5)})
}

// quantile is the smallest value that at least the share q does not exceed.
func quantile[T any](from []T, value func(T) float64, q float64) float64 {
	if len(from) == 0 {
		return 0
	}
	values := make([]float64, len(from))
	for i := range from {
		values[i] = value(from[i])
	}
	slices.Sort(values)
	return values[max(0, int(q*float64(len(values))+0.999999)-1)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// writeTable writes a column for each size.
func writeTable(to io.Writer, results []*result) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, value func(*result) string) {
		fmt.Fprintf(w, "%s\t", name)
		for _, r := range results {
			fmt.Fprintf(w, "%s\t", value(r))
		}
		fmt.Fprintln(w)
	}
	row("Services", func(r *result) string { return strconv.Itoa(r.services) })
	row("endpoints", func(r *result) string { return strconv.Itoa(r.services * r.endpoints) })
	for i, f := range results[0].figures() {
		row(f.name, func(r *result) string { return format(r.figures()[i].value) })
	}
	return w.Flush()
}

func format(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// writeCSV writes a line for each figure.
func writeCSV(to io.Writer, results []*result) error {
	w := csv.NewWriter(to)
	if err := w.Write([]string{"services", "endpoints", "figure", "value"}); err != nil {
		return err
	}
	for _, r := range results {
		for _, f := range r.figures() {
			if err := w.Write([]string{strconv.Itoa(r.services), strconv.Itoa(r.services * r.endpoints), f.name, format(f.value)}); err != nil {
				return err
			}
		}
	}
	w.Flush()
	return w.Error()
}
