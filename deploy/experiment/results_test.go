package experiment_test

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// stuck is an experiment in which no endpoint ever replies.
const stuck = `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: stuck}
cluster: {nodes: 1, services: [{name: web, endpoints: 2}]}
workload:
  arrivals: {process: poisson, rate: 100}
  work: {distribution: constant, mean: 20000h}
duration: 5s
warmup: 2s
algorithms: [random]
seeds: 2
columns: [connect_p99, response_mean]
`

// TestUntilNothing: a metric that no run has adds no seeds, and the results say why.
func TestUntilNothing(t *testing.T) {
	t.Parallel()
	results, _ := run(t, parse(t, stuck+"until: {metric: connect_p99, half: 1%, max: 9}\n"))
	const want = "random: p99 ms (until.metric) was not measured in any run, so no seeds were added"
	if text := results.Text(); len(results.Cells) != 2 || !strings.Contains(text, want) {
		t.Errorf("%d runs, and the table lacks %q:\n%s", len(results.Cells), want, text)
	}
}

// TestNoReply: a run in which no flow gets a reply has no times, and not times of 0.
func TestNoReply(t *testing.T) {
	t.Parallel()
	results, dir := run(t, parse(t, stuck))
	text := results.Text()
	for _, want := range []string{"random          -                 -", "random: in 2 of 2 runs no flow after the warm-up gets a reply", "random: in 2 of 2 runs no work"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	if runs := readFile(t, dir, experiment.FileRuns); !strings.Contains(runs, ",,,,,,") {
		t.Errorf("the runs have times:\n%s", runs)
	}
	if windows := readFile(t, dir, experiment.FileWindows); !strings.Contains(windows, ",,\n") || strings.Contains(windows, ",0,0\n") {
		t.Errorf("the windows have times:\n%s", windows)
	}
	if page := readFile(t, dir, experiment.FileReport); strings.Contains(page, "NaN") {
		t.Error("the report has NaN")
	}
}

// TestIdle: the balance is that of the time with open connections, and there is none without flows.
func TestIdle(t *testing.T) {
	t.Parallel()
	at := func(rate string) string {
		text := strings.NewReplacer("rate: 100", "rate: "+rate, "20000h", "10ms", "duration: 5s", "duration: 300s", "columns: [connect_p99, response_mean]", "columns: [refused, max_mean, jain, flows_max_mean, flows_jain]").Replace(stuck)
		return text
	}
	results, dir := run(t, parse(t, at("0.000001")))
	if text := results.Text(); !strings.Contains(strings.Join(strings.Fields(text), " "), "random - - - - - means of 2 runs") {
		t.Errorf("without flows there are values:\n%s", text)
	}
	if page := readFile(t, dir, experiment.FileReport); strings.Contains(page, "NaN") {
		t.Error("the report has NaN")
	}
	// Nearly always at most one of two endpoints has a connection.
	results, _ = run(t, parse(t, strings.Replace(at("2"), "seeds: 2", "seeds: 1", 1)))
	if v := results.Cells[0].Values; v["open_mean"] == 0 || v["open_mean"] > 0.1 || v["jain"] < 0.5 || v["jain"] > 0.6 || v["max_mean"] < 1.8 || v["max_mean"] > 2 {
		t.Errorf("%g open connections in the mean: Jain's index %g, max/mean %g; want those of one connection", v["open_mean"], v["jain"], v["max_mean"])
	}
	if text := results.Text(); !strings.Contains(text, "\none run of each algorithm, so without confidence intervals\n") {
		t.Errorf("a mean of one run has an interval:\n%s", text)
	}
}
