package experiment_test

import (
	"math"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// batched is a queue whose theory is known, with one run that is long enough for 20 batches.
const batched = `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: batched}
title: t
cluster:
  nodes: 1
  services: [{name: web, endpoints: 10, backlog: 1000000}]
workload:
  arrivals: {process: poisson, load: 0.5}
  work: {distribution: exponential, mean: 10ms}
duration: 205s
warmup: 5s
window: 5s
algorithms: [random, p2c]
seeds: 1
batches: 20
columns: [response_mean, response_p99, connect_p50, open_mean]
expect:
- {metric: response_mean, algorithm: random, formula: mm1-time, tolerance: 4%}
- {metric: response_mean, algorithm: p2c, below: random, source: nobody}
`

// TestBatches: one run has intervals by its batches, which are about as wide as those of several runs that are as long together.
func TestBatches(t *testing.T) {
	t.Parallel()
	one, dir := run(t, parse(t, batched))
	several, _ := run(t, parse(t, strings.NewReplacer("seeds: 1", "seeds: 20", "batches: 20\n", "", "205s", "15s").Replace(batched)))
	of := func(r *experiment.Results, metric string) (half float64, n int) {
		i := r.Summary()[0].Metrics[metric]
		return i.Half, i.N
	}
	for _, metric := range []string{"response_mean", "response_p99", "open_mean"} {
		half, n := of(one, metric)
		want, _ := of(several, metric)
		if n != 20 || half < want/2 || half > 2*want {
			t.Errorf("%s: ± %g by %d batches, and ± %g by 20 runs", metric, half, n, want)
		}
	}
	if half, n := of(one, "connect_p50"); half != 0 || n != 1 {
		t.Errorf("a metric without batches: ± %g by %d", half, n)
	}
	for i, c := range one.Cells {
		sum := 0.0
		for _, v := range c.Batches["open_mean"] {
			sum += v
		}
		if mean := sum / 20; math.Abs(mean-c.Values["open_mean"]) > 1e-9*mean { // as many rows of the time series in each
			t.Errorf("cell %d: the batches' mean is %g, the run's %g", i, mean, c.Values["open_mean"])
		}
	}
	if err := one.Verdict(); err != nil {
		t.Error(err)
	}
	if d := one.Run.Differences[0]; d.Metric != "response_mean" || d.N != 20 || d.Mean+d.Half >= 0 {
		t.Errorf("difference %+v", d)
	}
	if text := readFile(t, dir, experiment.FileTable); !strings.Contains(text, "by 20 batches of each run") || strings.Contains(text, "correlated") {
		t.Errorf("table:\n%s", text)
	}
	again, err := experiment.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.Text(), one.Text(); got != want {
		t.Errorf("read again:\n%s\nwant\n%s", got, want)
	}
}

// TestBatchesOfWarmups: batches of runs with different warm-ups have no pairs, so differences are by runs.
func TestBatchesOfWarmups(t *testing.T) {
	t.Parallel()
	results, _ := run(t, parse(t, strings.NewReplacer("warmup: 5s", "warmup: mser-5", "seeds: 1", "seeds: 2", "205s", "60s").Replace(batched)))
	if d := results.Run.Differences[0]; d.N != 2 {
		t.Errorf("difference %+v", d)
	}
	if n := results.Summary()[0].Metrics["response_mean"].N; n != 40 {
		t.Errorf("interval by %d batches", n)
	}
}

// TestShortBatches: batches that are shorter than the queues remember have a warning, and those without a row of the time series no
// interval.
func TestShortBatches(t *testing.T) {
	t.Parallel()
	results, _ := run(t, parse(t, strings.NewReplacer("batches: 20", "batches: 400", "load: 0.5", "load: 0.9", "205s", "25s").Replace(batched)))
	if text := results.Text(); !strings.Contains(text, "of consecutive batches of 0.050 s is correlated") {
		t.Errorf("no warning:\n%s", text)
	}
	if i := results.Summary()[0].Metrics["open_mean"]; i.N != 1 || i.Half != 0 {
		t.Errorf("open connections, of which there are 4 values: %+v", i)
	}
}

// TestBatchesUntil: a run is long enough, or there are more.
func TestBatchesUntil(t *testing.T) {
	t.Parallel()
	for half, want := range map[string]bool{"10%": false, "1%": true} {
		results, _ := run(t, parse(t, strings.Replace(batched, "batches: 20", "batches: 20\nuntil: {metric: response_mean, half: "+half+", max: 9}", 1)))
		if more := len(results.Cells) > 2; more != want {
			t.Errorf("until ± %s: %d runs", half, len(results.Cells))
		}
	}
}
