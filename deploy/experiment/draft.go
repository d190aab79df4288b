package experiment

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"
)

// Draft is what a new experiment file is about: one service, and flows to it.
type Draft struct {
	Nodes, Endpoints int
	// Load is the offered load, as a share of the endpoints' capacity.
	Load float64
	// Work is the mean service time of a flow at an endpoint, and Distribution that of these times.
	Work         time.Duration
	Distribution string
	Algorithms   []string
}

// Write returns the file at a path, with comments. It has the mistakes that [Parse] finds in such a file, and is not
// written anywhere.
func (d *Draft) Write(path string) ([]byte, error) {
	base := filepath.Base(path)
	name := strings.TrimSuffix(base, filepath.Ext(base))
	more := map[string]string{"lognormal": ", sigma: 1", "pareto": ", shape: 1.5"}[d.Distribution]
	duration := d.duration()
	text := fmt.Sprintf(`apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: %[1]s}
title: %[2]s, at a load of %[3]g # what is compared, in one line
cluster:
  nodes: %[4]d # each decides alone
  services:
  - {name: web, endpoints: %[5]d, concurrency: 1} # concurrency: flows that an endpoint works on at a time; others wait
workload:
  arrivals: {process: poisson, load: %[3]g} # the share of all endpoints' capacity, or rate: flows per second
  work: {distribution: %[6]s, mean: %[7]v%[8]s}
# Changes of the cluster, for example:
# events:
# - {at: %[9]v, scale: {to: %[10]d}}
# - {at: %[9]v, slow: {endpoints: 1, factor: 10}}
duration: %[11]v # long enough for the queues of this load to settle
warmup: %[12]v # flows that begin before are in no result
algorithms: [%[2]s]
seeds: 10 # each is a run with other random numbers; or until an interval is narrow:
# until: {metric: response_mean, half: 1%%, max: 100}
# Parameters with several values:
# sweep:
# - {field: workload.arrivals.load, values: [0.5, 0.7, 0.9]}
# Expected values of a publication, or by a formula, with a verdict:
# expect:
# - {metric: response_mean, algorithm: random, formula: mm1-time, tolerance: 5%%}
`, name, strings.Join(d.Algorithms, ", "), d.Load, d.Nodes, d.Endpoints, d.Distribution, d.Work, more,
		short(duration/2), d.Endpoints+1, short(duration), short(duration/10))
	_, err := Parse(path, filepath.Dir(path), []byte(text))
	return []byte(text), err
}

// short is a duration without units that are 0: "1m", and not "1m0s".
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// duration is a round time for 50,000 flows, and of at least 200 relaxation times of the queue M/M/1: see the warnings.
func (d *Draft) duration() time.Duration {
	settled := 1 - math.Sqrt(min(d.Load, 0.99))
	seconds := d.Work.Seconds() * max(50_000/(float64(max(d.Endpoints, 1))*max(d.Load, 0.01)), 200/(settled*settled))
	round := time.Second
	for _, step := range []time.Duration{10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 10 * 3600, 24 * 3600} {
		if round = step * time.Second; round.Seconds() >= seconds {
			break
		}
	}
	return round
}
