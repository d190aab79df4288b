package experiment_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// run runs an experiment into a new directory.
func run(t *testing.T, x *experiment.Experiment) (*experiment.Results, string) {
	t.Helper()
	dir := t.TempDir()
	r := experiment.Runner{Experiment: x, Backend: experiment.Simulate{Cells: 2}, Dir: dir, Version: "test"}
	results, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return results, dir
}

func load(t *testing.T, name string, seeds int) *experiment.Experiment {
	t.Helper()
	x, err := experiment.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	x.Seeds = seeds
	return x
}

// TestShipped: the experiments show what their pages describe, and have the same bits on all machines.
func TestShipped(t *testing.T) {
	t.Parallel()
	digests := map[string]uint64{"endpoint-changes": 0xb8e6fd725569ef0a, "heavy-tail": 0x782cbafc85ecd3f5, "herding": 0xa51a27650a9ef5ff, "rolling-update": 0x686d3f774972a031, "keep-alive": 0x5dc3fb97fa90b166}
	means := make(map[string]map[string]experiment.Row)
	for _, name := range labs.Experiments() {
		if slices.Contains(reproductions, name) {
			continue
		}
		results, dir := run(t, load(t, name, 2))
		h := fnv.New64a()
		for _, file := range []string{experiment.FileRuns, experiment.FileWindows, experiment.FileChanges} {
			data, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = h.Write(data)
		}
		if got := h.Sum64(); got != digests[name] {
			t.Errorf("%s: digest %#x of the results, want %#x", name, got, digests[name])
		}
		means[name] = make(map[string]experiment.Row)
		for _, row := range results.Summary() {
			means[name][row.Algorithm+strings.TrimPrefix(row.Point, "requests=")] = row
		}
	}
	mean := func(name, algorithm, metric string) float64 { return means[name][algorithm].Metrics[metric].Mean }
	for _, tt := range []struct {
		what string
		ok   bool
	}{
		{"lc waits less for heavy-tailed work than random", mean("heavy-tail", "lc", "connect_p99")*10 < mean("heavy-tail", "random", "connect_p99")},
		{"rr is no better than random there", mean("heavy-tail", "rr", "connect_p99")*3 > mean("heavy-tail", "random", "connect_p99")},
		{"nodes with lc herd to a new endpoint", mean("herding", "lc", "connect_p99") > 10*mean("herding", "p2c", "connect_p99")},
		{"p2c is better than random", mean("herding", "p2c", "connect_p99") < mean("herding", "random", "connect_p99")},
		{"random refuses in a rolling update", mean("rolling-update", "random", "refused") > 0.001},
		{"lc refuses more", mean("rolling-update", "lc", "refused") > 4*mean("rolling-update", "random", "refused")},
		{"with second chances none is refused", mean("rolling-update", "random+second-chance", "refused") == 0 && mean("rolling-update", "lc+second-chance", "refused") == 0},
		{"random remaps all but one of 20", mean("endpoint-changes", "random", "remapped") > 0.94 && mean("endpoint-changes", "random", "remapped") < 0.96},
		{"maglev(251) remaps more than the theory's minimum, and little", mean("endpoint-changes", "maglev(251)", "remapped") < 0.15},
		{"maglev with more slots remaps less", mean("endpoint-changes", "maglev", "remapped") < mean("endpoint-changes", "maglev(251)", "remapped")/2},
		{"fewer connections break with maglev", mean("endpoint-changes", "maglev", "inconsistent")*20 < mean("endpoint-changes", "random", "inconsistent")},
		{"requests of kept connections are uneven", mean("keep-alive", "random1", "requests_max_mean") < 1.1 && mean("keep-alive", "random1000", "requests_max_mean") > 1.8},
		{"lc counts them", mean("keep-alive", "lc1000", "requests_max_mean") < mean("keep-alive", "random1000", "requests_max_mean")-0.3},
		{"lc herds without them", mean("keep-alive", "lc1", "response_mean") > mean("keep-alive", "random1", "response_mean")},
	} {
		if !tt.ok {
			t.Errorf("it is not so: %s", tt.what)
		}
	}
}

// TestContinue: an interrupted run continues, and has the results of one that was not interrupted.
func TestContinue(t *testing.T) {
	t.Parallel()
	x := load(t, "endpoint-changes", 2)
	_, whole := run(t, x)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	r := experiment.Runner{Experiment: x, Backend: experiment.Simulate{}, Dir: dir, Version: "test", Progress: func(done float64, _ int) {
		if done > 3 {
			cancel()
		}
	}}
	results, err := r.Run(ctx)
	if !errors.Is(err, context.Canceled) || results.Missing == 0 || len(results.Cells) < 3 {
		t.Fatalf("%v, %d runs missing, %d done", err, results.Missing, len(results.Cells))
	}
	if page, err := os.ReadFile(filepath.Join(dir, experiment.FileReport)); err != nil || !strings.Contains(string(page), fmt.Sprintf("Incomplete: %d runs are missing", results.Missing)) {
		t.Errorf("the report of an interrupted run: %v", err)
	}
	begin := -1.0
	r.Progress = func(done float64, _ int) {
		if begin < 0 {
			begin = done
		}
	}
	if results, err = r.Run(t.Context()); err != nil || results.Missing != 0 {
		t.Fatalf("%v, %d runs missing", err, results.Missing)
	}
	if begin < 3 {
		t.Errorf("it began with %v runs, want those that were done", begin)
	}
	for _, file := range []string{experiment.FileExperiment, experiment.FileRuns, experiment.FileWindows, experiment.FileChanges, experiment.FileSummary, experiment.FileTable, experiment.FileLaTeX} {
		a, err1 := os.ReadFile(filepath.Join(whole, file))
		b, err2 := os.ReadFile(filepath.Join(dir, file))
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s is another one after an interruption: %v, %v", file, err1, err2)
		}
	}
}

// TestDirectory: results of something else are never overwritten.
func TestDirectory(t *testing.T) {
	t.Parallel()
	_, dir := run(t, load(t, "endpoint-changes", 1))
	files := t.TempDir()
	if err := os.WriteFile(filepath.Join(files, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, dir, version, want string }{
		{"heavy-tail", dir, "test", "has the results of another experiment"},
		{"endpoint-changes", dir, "other", "has results of nfqproxy test (simulate), but this is other (simulate)"},
		{"endpoint-changes", files, "test", "is neither empty nor an experiment's directory"},
	} {
		r := experiment.Runner{Experiment: load(t, tt.name, 1), Backend: experiment.Simulate{}, Dir: tt.dir, Version: tt.version}
		if _, err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s into %s: %v, want %s", tt.name, tt.dir, err, tt.want)
		}
	}
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, experiment.FileRun), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := experiment.Open(damaged); err == nil || !strings.Contains(err.Error(), "run.json: damaged: unexpected end of JSON input: restore it, or run") {
		t.Errorf("a damaged directory: %v", err)
	}
	if _, err := experiment.Open(files); err == nil || !strings.Contains(err.Error(), "is not an experiment's directory") {
		t.Error(err)
	}
}

// TestCompare: the algorithms of two directories are side by side.
func TestCompare(t *testing.T) {
	t.Parallel()
	_, a := run(t, load(t, "endpoint-changes", 1))
	_, b := run(t, load(t, "endpoint-changes", 2))
	text, err := experiment.Compare([]string{a, b})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"runs", "kernel", "remapped %", "maglev(251)", "endpoint-changes"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if _, err := experiment.Compare([]string{a, t.TempDir()}); err == nil {
		t.Error("a directory without results is compared")
	}
}

// TestReport: the page is complete HTML, loads nothing, and its texts are escaped.
func TestReport(t *testing.T) {
	t.Parallel()
	text := strings.Replace(small, "title: t", `title: "a <script>alert(1)</script> & b"`, 1)
	x, err := experiment.Parse("x.yaml", ".", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	_, dir := run(t, x)
	page, err := os.ReadFile(filepath.Join(dir, experiment.FileReport))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(page), "<script") || strings.Contains(string(page), "http://") || strings.Contains(string(page), "src=") {
		t.Error("the page has a script, or loads something")
	}
	plots := bytes.Count(page, []byte("</svg>"))
	if plots < 4 {
		t.Errorf("%d plots", plots)
	}
}

const small = `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: small}
title: t
cluster:
  nodes: 2
  services: [{name: web, endpoints: 3}]
workload:
  arrivals: {process: poisson, rate: 100}
  work: {distribution: exponential, mean: 5ms}
duration: 2s
algorithms: [random, lc+second-chance]
seeds: 2
`

// TestMistakes: each is one line with file, line and field.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ old, new, want string }{
		{"kind: Experiment", "kind: Lab", "x.yaml:2: kind: want Experiment"},
		{"name: small", "name: Small", "x.yaml:3: metadata.name: want lower-case letters"},
		{"nodes: 2", "nodes: 0", "x.yaml:6: cluster.nodes: want 1 to 5000, or a lab"},
		{"nodes: 2", "nods: 2", "x.yaml:6: cluster.nods: unknown field"},
		{"endpoints: 3", "endpoints: many", `x.yaml:7: cluster.services[0].endpoints: want an integer, have the string "many"`},
		{"process: poisson", "process: fish", "x.yaml:9: workload.arrivals"},
		{"mean: 5ms", "mean: -5ms", "x.yaml:10: workload.work"},
		{"duration: 2s", "duration: 2", "x.yaml:11: duration: want a time with its unit"},
		{"[random, lc+second-chance]", "[random, best]", `x.yaml:12: algorithms[1]: balancing algorithm "best": unknown`},
		{"[random, lc+second-chance]", "[lc, lc]", "x.yaml:12: algorithms[1]: want each algorithm only once"},
		{"seeds: 2", "seeds: 0", "x.yaml:13: seeds: want a whole number from 1 to 1000, have 0"},
		{"endpoints: 3", "endpoints: 3, concurrency: 0", "x.yaml:7: cluster.services[0].concurrency: want a whole number from 1 to 1048576, have 0"},
		{"seeds: 2", "columns: [speed]", "x.yaml:13: columns[0]: want one of flows"},
		{"seeds: 2", "window: 3s", "x.yaml:13: window: want one that ends after the warm-up"},
		{"process: poisson, rate: 100", "process: mmpp, states: [{rate: 0, stay: 1s}]", "x.yaml:9: workload.arrivals.states: want a state with a rate above 0"},
		{"mean: 5ms", "mean: 5ms, max: 1ms", "x.yaml:10: workload.work.max: want a time of the mean 5ms or more"},
		{"nodes: 2\n  services: [{name: web, endpoints: 3}]", "lab: knd", `x.yaml:6: cluster.lab: no file and no built-in lab "knd" (did you mean "kind"?)`},
		{"seeds: 2", "events: [{at: 1s}]", "x.yaml:13: events[0]"},
		{"process: poisson, rate: 100", "process: trace, file: none.csv", "x.yaml:9: workload.arrivals.file: "},
		{"nodes: 2\n  services: [{name: web, endpoints: 3}]", "lab: none.yaml", "x.yaml:6: cluster.lab"},
	} {
		text := strings.Replace(small, tt.old, tt.new, 1)
		if text == small {
			t.Fatalf("%s: the text does not have it", tt.old)
		}
		_, err := experiment.Parse("x.yaml", t.TempDir(), []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v\nwant %s", tt.new, err, tt.want)
		}
	}
	if _, err := experiment.Load("heavy-tale"); err == nil || !strings.Contains(err.Error(), "heavy-tail") {
		t.Errorf("a misspelt name: %v", err)
	}
}

// TestLab: the cluster of a lab.
func TestLab(t *testing.T) {
	t.Parallel()
	text := strings.Replace(small, "nodes: 2\n  services: [{name: web, endpoints: 3}]", "lab: kind", 1)
	x, err := experiment.Parse("x.yaml", ".", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(x.Points[0].Config.Cluster.Nodes); n < 2 || len(x.Points[0].Config.Cluster.Services) == 0 {
		t.Errorf("%d nodes, services %+v", n, x.Points[0].Config.Cluster.Services)
	}
	run(t, x)
}

// TestInvocations: the profile of arrivals is the sum of the functions in a file of Azure's format.
func TestInvocations(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const header = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\n"
	write(t, dir, map[string]string{
		"day.csv": header + "a,b,c,http,0,1,2\na,b,d,timer,7,0,1\n", "no-header.csv": "a,b,c,http,0,1,2\n", "no-minutes.csv": "HashOwner,HashApp,HashFunction,Trigger\na,b,c,http\n", "short.csv": header + "a,b,c,http,0,1\n", "text.csv": header + "a,b,c,http,0,x,2\n",
	})
	for _, tt := range []struct{ arrivals, want string }{
		{"process: profile, file: day.csv, step: 1s, rate: 50", ""},
		{"process: profile, file: no-header.csv", "no-header.csv:1: want the header HashOwner,HashApp"},
		{"process: profile, file: no-minutes.csv", "no-minutes.csv:1: want the header HashOwner,HashApp"},
		{"process: profile, file: short.csv", "short.csv:2: want 7 columns as in the header, not 6"},
		{"process: profile, file: text.csv", `text.csv:2: minute 2: want a number of invocations, not "x"`},
		{"process: profile, file: day.csv, counts: [1]", "x.yaml:9: workload.arrivals.counts: counts and file cannot be used together"},
	} {
		x, err := experiment.Parse("x.yaml", dir, []byte(strings.Replace(small, "process: poisson, rate: 100", tt.arrivals, 1)))
		switch {
		case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want)):
			t.Errorf("%s: %v", tt.arrivals, err)
		case tt.want == "" && err != nil:
			t.Error(err)
		case tt.want == "":
			if got := x.Points[0].Config.Workload.Arrivals.Counts; !slices.Equal(got, []float64{7, 1, 3}) {
				t.Errorf("counts %v", got)
			}
			run(t, x)
		}
	}
}

// FuzzParse: no text panics.
func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	for _, name := range labs.Experiments() {
		text, err := labs.ExperimentFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(text, []byte("file")) || bytes.Contains(text, []byte("lab")) || bytes.Contains(text, []byte("script")) { // no other files
			return
		}
		if x, err := experiment.Parse("x.yaml", t.TempDir(), text); err == nil {
			for _, p := range x.Points {
				if problems := p.Config.Validate(); len(problems) > 0 {
					t.Errorf("a config with mistakes: %+v", problems)
				}
			}
		}
	})
}
