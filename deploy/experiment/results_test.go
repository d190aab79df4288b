package experiment_test

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// TestNoReply: a run in which no flow gets a reply has no times, and not times of 0.
func TestNoReply(t *testing.T) {
	t.Parallel()
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
	if page := readFile(t, dir, experiment.FileReport); strings.Contains(page, "NaN") {
		t.Error("the report has NaN")
	}
}
