package experiment_test

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// withRequests is M/M/1 with a deadline.
const withRequests = `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: deadline}
cluster:
  nodes: 1
  services: [{name: web, endpoints: 20, backlog: 1000000}]
workload:
  arrivals: {process: poisson, load: 0.6}
  work: {distribution: exponential, mean: 10ms}
  requests: {deadline: 30ms, cancel: true}
duration: 60s
warmup: 1s
algorithms: [random]
seeds: 5
columns: [deadline_errors, wasted]
sweep: [{field: workload.requests.cancel, values: [true, false]}]
expect: [{metric: deadline_errors, formula: mm1-deadline, tolerance: 3%}]
`

// TestRequests: the share of late requests is that of theory, and their metrics are in the results of such experiments only.
func TestRequests(t *testing.T) {
	t.Parallel()
	results, dir := run(t, parse(t, withRequests))
	if err := results.Verdict(); err != nil || len(results.Run.Expected) != 2 {
		t.Errorf("%v\n%s", err, results.Text())
	}
	if text := results.Text(); !strings.Contains(text, "deadline errors %  wasted work %") {
		t.Error(text)
	}
	_, plain := run(t, parse(t, small))
	with, head := readFile(t, dir, experiment.FileRuns), readFile(t, plain, experiment.FileRuns)
	for _, name := range []string{"response_p999", "errors", "wasted", "requests_jain"} {
		if !strings.Contains(with, ","+name) || strings.Contains(head, name) {
			t.Errorf("column %s: the experiment without requests has %s", name, head)
		}
	}
}

// TestAutoscaleColumns: the number of endpoints is in the results of experiments with autoscale only.
func TestAutoscaleColumns(t *testing.T) {
	t.Parallel()
	const autoscale = "events: [{at: 0s, autoscale: {target: 0.01, max: 9, interval: 100ms}}]\nseeds: 2"
	_, with := run(t, parse(t, strings.Replace(small, "seeds: 2", autoscale, 1)))
	_, without := run(t, parse(t, small))
	for _, file := range []string{experiment.FileRuns, experiment.FileWindows} {
		if text := readFile(t, with, file); !strings.Contains(text, ",endpoints\n") || file == experiment.FileWindows && !strings.Contains(text, ",9\n") {
			t.Errorf("%s: %s", file, text)
		}
		if text := readFile(t, without, file); strings.Contains(text, "endpoints") {
			t.Errorf("%s without autoscale: %s", file, text)
		}
	}
	const plot = "Endpoints of all services"
	if a, b := readFile(t, with, experiment.FileReport), readFile(t, without, experiment.FileReport); !strings.Contains(a, plot) || strings.Contains(b, plot) {
		t.Error("the report has a plot of the endpoints without autoscale, or none with it")
	}
	for _, tt := range []struct{ event, want string }{
		{"{target: 0.5}", "x.yaml:13: events[0].autoscale.max: want a number from 1"},
		{"{target: 60, max: 5}", "x.yaml:13: events[0].autoscale.target: want a share"},
		{"{target: 0.5, min: 8, max: 5}", "x.yaml:13: events[0].autoscale.max: want a number from 8"},
		{"{target: 0.5, max: 5, interval: 1us}", "x.yaml:13: events[0].autoscale.interval: want a time from 1ms"},
		{"{target: 0.5, max: 5, stabilization: -1s}", "x.yaml:13: events[0].autoscale.stabilization: want a time from"},
		{"{target: 0.5, max: 5, service: other}", `x.yaml:13: events[0].autoscale.service: the cluster has no service "other"`},
	} {
		_, err := experiment.Parse("x.yaml", t.TempDir(), []byte(strings.Replace(small, "seeds: 2", "events: [{at: 0s, autoscale: "+tt.event+"}]", 1)))
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.event, err)
		}
	}
	if _, err := experiment.Parse("x.yaml", t.TempDir(), []byte(strings.Replace(small, "seeds: 2", "columns: [endpoints]", 1))); err == nil || !strings.Contains(err.Error(), "want an event with autoscale") {
		t.Error(err)
	}
}

// TestRequestMistakes: each is one line with file, line and field.
func TestRequestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ old, new, want string }{
		{"{deadline: 30ms, cancel: true}", "{dedline: 30ms, cancel: true}", "x.yaml:10: workload.requests.dedline: unknown field, did you mean \"deadline\"?"},
		{"deadline: 30ms", "deadline: soon", "x.yaml:10: workload.requests.deadline: want a time"},
		{"deadline: 30ms, cancel: true", "cancel: true", "x.yaml:10: workload.requests.cancel: with cancel=true: want a deadline, a timeout or attempts"},
		{"deadline: 30ms", "deadline: 30ms, attempts: 6", "x.yaml:10: workload.requests.attempts: with cancel=true: want 1 to 5, not 6"},
		{"deadline: 30ms", "deadline: 30ms, hedge: 5ms", "x.yaml:10: workload.requests.hedge: with cancel=true: want attempts of 2 or more beside it"},
		{"deadline: 30ms", "deadline: 30ms, budget: 0.1", "x.yaml:10: workload.requests.budget: with cancel=true: want attempts of 2 or more beside it"},
		{"deadline: 30ms", "deadline: 30ms, think: {distribution: constant, mean: 1s}", "x.yaml:10: workload.requests.think: with cancel=true: want perConnection beside it"},
		{"deadline: 30ms", "perConnection: {distribution: constant, mean: 0.5}, deadline: 30ms", "x.yaml:10: workload.requests.perConnection.mean: with cancel=true: want a number from 1"},
		{"deadline: 30ms", "perConnection: {distribution: zipf, mean: 5}, deadline: 30ms", "x.yaml:10: workload.requests.perConnection.distribution: with cancel=true: want one of constant, geometric, empirical"},
		{"deadline: 30ms", "deadline: 30ms, backoff: {distribution: empirical, file: none.txt}, attempts: 2", "x.yaml:10: workload.requests.backoff.file"},
		{"deadline: 30ms", "deadline: 30ms, attempts: 2", "x.yaml:17: expect[0].formula: mm1-deadline wants requests with a deadline"},
		{"algorithms: [random]", "algorithms: [p2c]", "x.yaml:17: expect[0].formula: mm1-deadline wants algorithm random"},
		{"metric: deadline_errors, formula: mm1-deadline", "metric: response_mean, formula: mm1-time", "x.yaml:17: expect[0].formula: mm1-time wants no requests"},
		{"  requests: {deadline: 30ms, cancel: true}\n", "", "x.yaml:14: columns[0]: want workload.requests"},
	} {
		text := strings.Replace(withRequests, tt.old, tt.new, 1)
		if text == withRequests {
			t.Fatalf("%s: the text does not have it", tt.old)
		}
		_, err := experiment.Parse("x.yaml", t.TempDir(), []byte(text))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v\nwant %s", tt.new, err, tt.want)
		}
	}
}
