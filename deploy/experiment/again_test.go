package experiment_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

// tree are the files of a directory, by their paths in it.
func tree(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := make(map[string][]byte)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		all[filepath.ToSlash(name)] = data
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// swept has a parameter, expected values and a script.
const swept = `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: swept}
title: t
cluster:
  nodes: 1
  services: [{name: web, endpoints: 3}]
workload:
  arrivals: {process: poisson, load: 0.5}
  work: {distribution: exponential, mean: 5ms}
sweep:
- {field: workload.arrivals.load, values: [0.3, 0.6]}
duration: 2s
algorithms: [random, script:first.star]
seeds: 2
expect:
- {metric: response_mean, algorithm: random, at: {load: 0.3}, value: 1s, source: nobody, tolerance: 1ms}
`

// runSwept runs the experiment swept.
func runSwept(t *testing.T) (*experiment.Results, string) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{"x.yaml": swept, "first.star": firstOnly})
	return run(t, load(t, filepath.Join(dir, "x.yaml"), 2))
}

// TestReportAgain: all that is made of the runs is written again, with the bytes that the run wrote.
func TestReportAgain(t *testing.T) {
	t.Parallel()
	_, dir := runSwept(t)
	before := tree(t, dir)
	removed := 0
	for name := range before {
		if name == experiment.FileExperiment || name == experiment.FileRun || strings.HasPrefix(name, "cells/") || strings.HasPrefix(name, "scripts/") {
			continue
		}
		removed++
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := experiment.Report(dir)
	if err != nil || !strings.Contains(text, "means of 2 runs of each algorithm") || removed < 10 {
		t.Fatalf("%v, %d files removed, table\n%s", err, removed, text)
	}
	after := tree(t, dir)
	for name, data := range before {
		if !bytes.Equal(after[name], data) {
			t.Errorf("%s is another one", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d files, want %d", len(after), len(before))
	}
}

// TestWarningsOfBoth: a warning about the simulation and the live runs is there once, others say which they are about.
func TestWarningsOfBoth(t *testing.T) {
	t.Parallel()
	simulated, _ := run(t, parse(t, stuck))
	live := *simulated
	live.Run.Warnings = append(slices.Clone(simulated.Run.Warnings[1:]), "too hot")
	both := experiment.Both{Simulated: simulated, Live: &live}
	want := append([]string{"simulated: " + simulated.Run.Warnings[0]}, append(simulated.Run.Warnings[1:], "live: too hot")...)
	if text := both.Table().Text(); !strings.Contains(text, strings.Join(want, "\n")) || strings.Count(text, want[1]) != 1 {
		t.Errorf("the warnings of both are not\n%s\nin\n%s", strings.Join(want, "\n"), text)
	}
}

// TestLateFlows: live runs on a machine that is too slow have a warning.
func TestLateFlows(t *testing.T) {
	t.Parallel()
	results, dir := run(t, parse(t, strings.ReplaceAll(stuck, "20000h", "10ms")))
	for late, want := range map[float64]int{0.001: 0, 2.5: 1} {
		for _, c := range results.Cells {
			c.Values["late_p99"] = late
		}
		if err := results.Write(dir); err != nil {
			t.Fatal(err)
		}
		const text = "random: flows began late, one in a hundred by 2.5 s or more, and took "
		if n := len(slices.DeleteFunc(slices.Clone(results.Run.Warnings), func(w string) bool { return !strings.HasPrefix(w, text) })); n != want {
			t.Errorf("flows are %g s late: %q", late, results.Run.Warnings)
		}
	}
}

// TestErrorOfTheSimulation: it has the confidence interval of the differences of runs with the same seed.
func TestErrorOfTheSimulation(t *testing.T) {
	t.Parallel()
	simulated, _ := run(t, parse(t, strings.NewReplacer("seeds: 2", "seeds: 3", "[connect_p99, response_mean]", "[jain]").Replace(stuck)))
	live := *simulated
	live.Cells = nil
	for i, c := range simulated.Cells {
		other := *c
		// Both vary from seed to seed, and most of that is the same.
		c.Values = map[string]float64{"jain": 0.2 * float64(i+1)}
		other.Values = map[string]float64{"jain": 0.2*float64(i+1) + 0.01*float64(i+1)}
		live.Cells = append(live.Cells, &other)
	}
	both := experiment.Both{Simulated: simulated, Live: &live}
	// The differences are 0.01, 0.02 and 0.03, their interval 4.303*0.01/sqrt(3), and the live mean 0.42.
	if text := both.Table().Text(); !strings.Contains(text, " -4.8 ±5.9 %\n") {
		t.Errorf("the error is not -4.8 ±5.9 %% in\n%s", text)
	}
}

// TestReportOfChanged: the report says that the file is not the one of the runs.
func TestReportOfChanged(t *testing.T) {
	t.Parallel()
	const want = "experiment.yaml, or a file that it names, was changed after these runs"
	results, dir := runSwept(t)
	if text := results.Text(); strings.Contains(text, want) {
		t.Errorf("nothing was changed:\n%s", text)
	}
	write(t, dir, map[string]string{experiment.FileExperiment: strings.Replace(swept, "mean: 5ms", "mean: 9ms", 1)})
	if text, err := experiment.Report(dir); err != nil || !strings.Contains(text, want) {
		t.Errorf("%v; no %q in\n%s", err, want, text)
	}
}

// TestReportOfBoth: the directory of a simulation with live runs gets its page again.
func TestReportOfBoth(t *testing.T) {
	t.Parallel()
	_, results := run(t, load(t, "endpoint-changes", 1))
	dir := t.TempDir()
	for _, one := range []string{experiment.DirSimulated, experiment.DirLive} {
		if err := os.CopyFS(filepath.Join(dir, one), os.DirFS(results)); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := experiment.Report(dir); err != nil || !strings.Contains(text, "error of the simulation") {
		t.Fatalf("%v, table\n%s", err, text)
	}
	if page := readFile(t, dir, experiment.FileReport); !strings.Contains(page, "The same file, simulated and live") {
		t.Error("the page is not that of both")
	}
	if _, err := experiment.Report(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is not an experiment's directory") {
		t.Errorf("an empty directory: %v", err)
	}
}

// TestInputsInResults: the directory of results has the files that the experiment names; it runs again from there, whatever has
// become of them.
func TestInputsInResults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"x.yaml": named, "a/times.txt": "1ms\n3ms\n", "b/times.txt": "100ms\n", "lab.yaml": scriptedLab, "policies/first.star": firstOnly})
	x := load(t, filepath.Join(dir, "x.yaml"), 1)
	_, results := run(t, x)
	write(t, dir, map[string]string{"a/times.txt": "2ms\n", "lab.yaml": "", "policies/first.star": failing})
	for name, want := range map[string]string{"files/times.txt": "1ms\n3ms\n", "files/2-times.txt": "100ms\n", "files/lab.yaml": scriptedLab} {
		if got := readFile(t, results, name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	y := load(t, filepath.Join(results, experiment.FileExperiment), 1)
	if y.Digest != x.Digest {
		t.Error("the experiment in the results is another one")
	}
	_, again := run(t, y)
	for _, name := range []string{experiment.FileRuns, experiment.FileWindows} {
		if readFile(t, again, name) != readFile(t, results, name) {
			t.Errorf("it has other results in %s", name)
		}
	}
	// Results of earlier versions do not have the files: they are where the experiment says.
	if err := os.RemoveAll(filepath.Join(results, "files")); err != nil {
		t.Fatal(err)
	}
	if _, err := experiment.Load(filepath.Join(results, experiment.FileExperiment)); err == nil || !strings.Contains(err.Error(), "times.txt: no such file") && !strings.Contains(err.Error(), "lab.yaml: no such file") {
		t.Errorf("without its files: %v", err)
	}
	write(t, results, map[string]string{"a/times.txt": "1ms\n3ms\n", "b/times.txt": "100ms\n", "lab.yaml": scriptedLab})
	if y := load(t, filepath.Join(results, experiment.FileExperiment), 1); y.Digest != x.Digest {
		t.Error("the experiment of earlier results is another one")
	}
}

// named names files: a lab, and two of the same name.
const named = `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: named}
cluster: {lab: lab.yaml}
workload:
  arrivals: {process: poisson, rate: 100}
  work: {distribution: empirical, file: a/times.txt}
  idle: {distribution: empirical, file: b/times.txt}
duration: 2s
algorithms: [random]
seeds: 1
`
