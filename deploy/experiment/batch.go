package experiment

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

// maxBatches is the largest number of batches of a run.
const maxBatches = 1000

// batchesOf returns the values of metrics in consecutive parts of a run, of equal length, after the warm-up: of times of responses by
// the beginning of the connections or requests, and of open connections by the rows of the time series. Metrics without a value in
// each part are not there.
func batchesOf(r *traffic.Result, c *traffic.Config, n int, metrics map[string]float64) map[string][]float64 {
	from, length := c.Warmup, c.Duration-c.Warmup
	responses, windows := make([][]int64, n), make([][]*traffic.Window, n)
	for _, s := range r.Series {
		if at := s.Arrived - from; at >= 0 && at < length {
			i := int64(at) * int64(n) / int64(length)
			responses[i] = append(responses[i], int64(s.Response))
		}
	}
	for i := range r.Windows {
		if at := r.Windows[i].End - from; at > 0 && at <= length {
			k := (int64(at)*int64(n) - 1) / int64(length)
			windows[k] = append(windows[k], &r.Windows[i])
		}
	}
	all := make(map[string][]float64)
	add := func(metric string, value func(i int) (float64, bool)) {
		if _, has := metrics[metric]; !has {
			return
		}
		values := make([]float64, n)
		for i := range values {
			var known bool
			if values[i], known = value(i); !known {
				return
			}
		}
		all[metric] = values
	}
	for i := range responses {
		slices.Sort(responses[i])
	}
	add("response_mean", func(i int) (float64, bool) {
		sum := 0.0
		for _, v := range responses[i] {
			sum += seconds(v)
		}
		return sum / float64(max(len(responses[i]), 1)), len(responses[i]) > 0
	})
	for metric, permille := range map[string]int{"response_p50": 500, "response_p99": 990, "response_p999": 999} {
		add(metric, func(i int) (float64, bool) {
			return seconds(stats.Percentile(responses[i], permille)), len(responses[i]) > 0
		})
	}
	for metric, of := range map[string]func(*traffic.Window) float64{
		"open_mean": func(w *traffic.Window) float64 { return float64(w.Open) },
		"max_mean":  maxOverMean,
		"jain":      jain,
		"endpoints": func(w *traffic.Window) float64 { return float64(w.Endpoints) },
	} {
		add(metric, func(i int) (float64, bool) {
			var values []float64
			for _, w := range windows[i] {
				if v := of(w); !math.IsNaN(v) {
					values = append(values, v)
				}
			}
			return stats.Mean(values), len(values) > 0
		})
	}
	return all
}

// batches are the values of a metric in the batches of all runs of a series; nil: not all runs have them.
func (r *Results) batches(of series, metric string) (values [][]float64) {
	for _, c := range r.Cells {
		if c.series() == of {
			b := c.Batches[metric]
			if len(b) == 0 {
				return nil
			}
			values = append(values, b)
		}
	}
	return values
}

// interval is the mean of a metric over the runs of a series, with the interval of their batches or, without batches, of the runs.
func (r *Results) interval(of series, metric string) stats.Interval {
	i := stats.Confidence(r.values(of, metric))
	if b := r.batches(of, metric); b != nil {
		all := stats.Confidence(slices.Concat(b...))
		i.Half, i.N = all.Half, all.N
	}
	return i
}

// warnBatches warns if consecutive batches of a metric are alike, because they are too short: then their intervals are too narrow. The
// correlation of lag 1 is compared with the largest that independent values have in 95 % of cases (Law, Simulation Modeling and
// Analysis, on batch means).
func (r *Results) warnBatches(columns []*Metric) {
	for i := range r.Run.Series {
		s := &r.Run.Series[i]
		for _, m := range columns {
			runs := r.batches(series{s.Algorithm, s.Point}, m.Name)
			var all []float64
			n := 0
			for _, b := range runs {
				all = append(all, stats.Correlation(b))
				n += len(b)
			}
			if n == 0 {
				continue
			}
			if found := stats.Mean(all); found > 1.645/math.Sqrt(float64(n)) {
				each := time.Duration((s.Duration - s.Warmup) / float64(n/len(runs)) * float64(time.Second))
				r.Run.Warnings = append(r.Run.Warnings, fmt.Sprintf("%s: %s of consecutive batches of %s is correlated (%.2f), so its interval is too narrow; want fewer batches, or a longer duration",
					label(s.Algorithm, s.Point), m.Title, secondsText(each.Seconds()), found))
			}
		}
	}
}
