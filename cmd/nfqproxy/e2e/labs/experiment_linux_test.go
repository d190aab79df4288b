package labs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/live"
)

// experimentHead begins the files of experiments. What follows overrides it.
const experimentHead = `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: test}
duration: 3s
window: 500ms
seeds: 1
`

// liveCell runs the first cell of an experiment in a lab.
func liveCell(t *testing.T, body string) *experiment.Cell {
	t.Helper()
	x, err := experiment.Parse("test.yaml", ".", []byte(experimentHead+body))
	if err != nil {
		t.Fatal(err)
	}
	if err := live.Check(x); err != nil {
		t.Fatal(err)
	}
	shares := 0.0
	c, _, err := live.Backend{Env: e2etest.CommandEnv()}.Run(t.Context(), x, experiment.Key{Algorithm: x.Algorithms[0], Seed: 1, Repeat: 1}, func(done float64) {
		if done <= shares || done > 1 {
			t.Errorf("a progress of %v after %v", done, shares)
		}
		shares = done
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestExperimentLive: live runs measure what happens to real connections. Each case has one thing that can
// go wrong, and only that does.
func TestExperimentLive(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, body string
		want       string // the metrics that are not 0, of those of failures
		busy       string // one that may be not 0 as well, on a busy machine
	}{
		{"nothing", `
cluster: {nodes: 2, zones: 2, services: [{name: web, endpoints: 4, concurrency: 64, weights: [1, 2], sameZone: true}, {name: db, namespace: data, endpoints: 2, concurrency: 64}]}
workload: {arrivals: {process: poisson, rate: 100}, work: {distribution: exponential, mean: 5ms}, idle: {distribution: constant, mean: 10ms}, clients: {perNode: 3, ports: 20}}
algorithms: [wlc]
`, "", ""},
		{"full listen backlog", `
cluster: {nodes: 1, services: [{name: web, endpoints: 1, concurrency: 2, backlog: 1}]}
workload: {arrivals: {process: deterministic, rate: 50}, work: {distribution: constant, mean: 200ms}, accept: kernel}
algorithms: [random]
`, "refused", ""},
		{"slow endpoints", `
cluster: {nodes: 1, services: [{name: web, endpoints: 2, concurrency: 4, backlog: 0}]}
workload: {arrivals: {process: deterministic, rate: 50}, work: {distribution: constant, mean: 1ms}}
events: [{at: 500ms, slow: {endpoints: 1, factor: 1000}}, {at: 1s, antagonist: {factor: 500}}]
algorithms: [random]
`, "refused", ""},
		{"ready too early", `
cluster: {nodes: 2, services: [{name: web, endpoints: 2, concurrency: 64}]}
workload: {arrivals: {process: deterministic, rate: 50}, work: {distribution: constant, mean: 1ms}}
events: [{at: 500ms, scale: {to: 4, listens: 1s}}]
algorithms: [random]
`, "refused", ""},
		{"ready too early, with second chances", `
cluster: {nodes: 2, services: [{name: web, endpoints: 2, concurrency: 64}]}
workload: {arrivals: {process: deterministic, rate: 20}, work: {distribution: constant, mean: 1ms}}
events: [{at: 500ms, scale: {to: 3, listens: 1s}}]
algorithms: [rr+second-chance]
`, "", ""},
		{"loss of a node", `
cluster: {nodes: 2, services: [{name: web, endpoints: 2, concurrency: 64}]}
workload: {arrivals: {process: deterministic, rate: 50}, work: {distribution: constant, mean: 1ms}, giveUp: 300ms}
events: [{at: 1s, nodeLoss: {noticed: 1s}}]
algorithms: [random]
`, "unanswered", "broken"}, // a connection that is served just then
		{"endpoints that end with connections", `
cluster: {nodes: 1, services: [{name: web, endpoints: 2, concurrency: 64}]}
workload: {arrivals: {process: deterministic, rate: 20}, work: {distribution: constant, mean: 5ms}, idle: {distribution: constant, mean: 1s}}
events: [{at: 1500ms, scale: {to: 1, preStop: 500ms, grace: 500ms}}]
algorithms: [random]
`, "broken", ""},
		{"loss of connection tables", `
cluster: {nodes: 1, services: [{name: web, endpoints: 4, concurrency: 64}]}
workload: {arrivals: {process: deterministic, rate: 20}, work: {distribution: constant, mean: 1s}}
events: [{at: 2s, conntrackFlush: {}}]
algorithms: [random]
`, "broken inconsistent", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := liveCell(t, tt.body)
			var got []string
			for _, name := range []string{"refused", "unanswered", "broken", "inconsistent"} {
				if c.Values[name] > 0 && name != tt.busy {
					got = append(got, name)
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("failures: %v of %v flows, want %q; refused %v, unanswered %v, broken %v, inconsistent %v", got, c.Values["flows"], tt.want,
					c.Values["refused"], c.Values["unanswered"], c.Values["broken"], c.Values["inconsistent"])
			}
			sum, windows := 0, len(c.Windows)
			for i := range c.Windows {
				sum += c.Windows[i].Flows
			}
			if windows != 6 || float64(sum) != c.Values["flows"] || c.Values["connect_p50"] <= 0 {
				t.Errorf("%d windows with %d flows, of %v; a median of %v", windows, sum, c.Values["flows"], c.Values["connect_p50"])
			}
			if _, ok := c.Values["remapped"]; ok {
				t.Error("a live run cannot know what would happen to other flows")
			}
		})
	}
}

// TestExperimentAlgorithm: the algorithm of a live cell is in force, and its flows are those of the simulation.
func TestExperimentAlgorithm(t *testing.T) {
	t.Parallel()
	const body = `
cluster: {nodes: 1, services: [{name: web, endpoints: 4, concurrency: 64}]}
workload: {arrivals: {process: poisson, rate: 100}, work: {distribution: constant, mean: 1ms}}
algorithms: [rr]
`
	c := liveCell(t, body)
	x, err := experiment.Parse("test.yaml", ".", []byte(experimentHead+body))
	if err != nil {
		t.Fatal(err)
	}
	flows := 0.0
	for range x.Points[0].Config.Flows(1) {
		flows++
	}
	mean := flows / 4
	if most := (mean + 1) / mean; c.Values["flows"] != flows || c.Values["flows_max_mean"] > most {
		t.Errorf("%v flows of %v; the endpoint with most has %v of the mean, by rr at most %v", c.Values["flows"], flows, c.Values["flows_max_mean"], most)
	}
}

// TestExperimentScript: a live cell is balanced by the scripts that the file names, and says what goes wrong in them.
func TestExperimentScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"first.star": "return 0", "bad.star": "return candidates[7]"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("def pick(candidates, flow, state):\n    "+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := liveCell(t, fmt.Sprintf(`
cluster: {nodes: 1, services: [{name: web, endpoints: 4, concurrency: 64}]}
workload: {arrivals: {process: poisson, rate: 100}, work: {distribution: constant, mean: 1ms}}
algorithms: ["script:%[1]s/first.star", "script:%[1]s/bad.star"]
`, dir))
	if c.Algorithm != "script:first.star" || c.Values["flows_max_mean"] != 4 || len(c.ScriptErrors) > 0 {
		t.Errorf("%s: the endpoint with most has %v of the mean, want 4; errors %q", c.Algorithm, c.Values["flows_max_mean"], c.ScriptErrors)
	}
	c = liveCell(t, fmt.Sprintf(`
cluster: {nodes: 1, services: [{name: web, endpoints: 4, concurrency: 64, algorithm: "script:%s/bad.star"}]}
workload: {arrivals: {process: poisson, rate: 100}, work: {distribution: constant, mean: 1ms}}
algorithms: [random]
`, dir))
	if len(c.ScriptErrors) != 1 || !strings.HasPrefix(c.ScriptErrors[0], "bad.star:2:22: list index 7 out of range") || c.Values["refused"] > 0 {
		t.Errorf("errors %q, refused %v", c.ScriptErrors, c.Values["refused"])
	}
}

// TestExperimentCommand: nfqproxy experiment run --simulate --live compares both, and continues.
func TestExperimentCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := e2etest.WriteFile(t, "small.yaml", []byte(experimentHead+`
cluster: {nodes: 2, services: [{name: web, endpoints: 4, concurrency: 16}]}
workload: {arrivals: {process: poisson, rate: 100}, work: {distribution: exponential, mean: 5ms}}
algorithms: [random, lc]
`))
	run := func(args ...string) (code int, stdout, stderr string) {
		cmd := e2etest.Command(append([]string{"experiment", "run", file, "--output-directory", "both"}, args...)...)
		cmd.Dir = dir
		return e2etest.RunCommand(t, nil, cmd)
	}
	code, stdout, stderr := run("--simulate", "--live")
	if code != 0 || !strings.Contains(stdout, "error of the simulation") || !strings.Contains(stdout, "both/report.html") {
		t.Fatalf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	page := e2etest.ReadFile(t, filepath.Join(dir, "both", experiment.FileReport))
	for _, want := range []string{"error of the simulation", ", simulated</", ", live</", "live/report.html"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	cells := func() (names []string) {
		entries, err := os.ReadDir(filepath.Join(dir, "both", experiment.DirLive, "cells"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, e.Name()+info.ModTime().String())
		}
		return names
	}
	before := cells()
	if code, stdout, stderr := run("--simulate", "--live"); code != 0 || strings.Join(cells(), " ") != strings.Join(before, " ") {
		t.Errorf("it ran again: exit code %d\n%s\n%s", code, stdout, stderr)
	}
	// One that no lab can have is refused, and nothing is written.
	large := e2etest.WriteFile(t, "large.yaml", []byte(experimentHead+`
cluster: {nodes: 200, services: [{name: web, endpoints: 4}]}
workload: {arrivals: {process: poisson, rate: 100}, work: {distribution: exponential, mean: 5ms}}
algorithms: [random]
`))
	cmd := e2etest.Command("experiment", "run", large, "--output-directory", "large", "--live")
	cmd.Dir = dir
	if code, _, stderr := e2etest.RunCommand(t, nil, cmd); code != 2 || !strings.Contains(stderr, "200 nodes: at most 16 can run live") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "large")); err == nil {
		t.Error("a directory was made")
	}
}
