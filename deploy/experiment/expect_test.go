package experiment_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

// reproductions are the shipped experiments that repeat published results. Some of their points take minutes.
var reproductions = []string{"balls-into-bins", "consistent-hashing", "hedging", "join-idle-queue", "maglev-evenness", "maglev-resilience", "many-nodes", "mm1", "power-of-d", "prequal", "stale-information", "two-choices"}

var (
	sixValues = regexp.MustCompile(`\[([^,\]]+), ([^,\]]+)(, [^,\]]+){4}\]`)
	heavyLoad = regexp.MustCompile(`(?m)^- .*(load: 0\.(8|9|95|99)|flows: 655373|nodes: 1000|rate: 2(286|540))[,}].*\n|^- .*algorithm: (maglev|[a-z-]+\(655373\)), value.*\n`)
)

// TestReproductions: each expected value is reproduced. "make test" has the two lowest loads, in shorter runs.
func TestReproductions(t *testing.T) {
	t.Parallel()
	for _, name := range reproductions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := labs.ExperimentFile(name)
			if err != nil {
				t.Fatal(err)
			}
			least := 4
			if !netnstest.All() {
				least = 1
				text = heavyLoad.ReplaceAll(sixValues.ReplaceAll(text, []byte("[$1, $2]")), nil)
				for _, long := range []struct{ from, to string }{{"[10m, 10m]", "[3m, 3m]"}, {", 10000]", "]"}, {", 20000]", "]"}, {", 655373]", "]"}, {", 1000000]", "]"},
					{"0.5, 0.9]", "0.5]"}, {", 100, 1000]", ", 100]"}, {", 900, 750, 500]", "]"}, {"1500, 1667, 1852, 2058, 2286, 2540, 2823", "1852, 2058"}, {"duration: 90s", "duration: 60s"},
					{"algorithms: [maglev, maglev(655373), ring-table, ring-table(655373)]", "algorithms: [ring-table]"}, {"flows: 10000000", "flows: 5000000"}} {
					text = bytes.ReplaceAll(text, []byte(long.from), []byte(long.to))
				}
			}
			x, err := experiment.Parse(name, ".", text)
			if err != nil {
				t.Fatal(err)
			}
			results, _ := run(t, x)
			if err := results.Verdict(); err != nil || len(results.Run.Expected) < least {
				t.Errorf("%d expected values: %v\n%s", len(results.Run.Expected), err, results.Text())
			}
			for _, w := range results.Run.Warnings {
				if !strings.Contains(w, "until.max") { // the interval is narrow enough for the verdict
					t.Error(w)
				}
			}
		})
	}
}

// queueing is M/M/1 at two loads.
const queueing = `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: queueing}
title: t
cluster:
  nodes: 1
  services: [{name: web, endpoints: 2, backlog: 1000000}]
workload:
  arrivals: {process: poisson}
  work: {distribution: exponential, mean: 10ms}
sweep:
- {field: workload.arrivals.load, values: [0.3, 0.5], with: {duration: [20s, 30s]}}
warmup: 1s
algorithms: [random, p2c]
seeds: 3
until: {metric: response_mean, half: 5%, max: 9}
columns: [response_mean]
expect:
- {metric: response_mean, algorithm: random, formula: mm1-time, tolerance: 8%}
- {metric: response_mean, algorithm: p2c, at: {load: 0.5}, value: 20ms, source: "nobody, table 1", tolerance: 1ms}
- {metric: response_mean, algorithm: p2c, at: {load: 0.3}, value: 0.0112, source: "nobody, table 1", tolerance: 0.001%}
`

func parse(t *testing.T, text string) *experiment.Experiment {
	t.Helper()
	x, err := experiment.Parse("x.yaml", ".", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestExpect: expected values and their verdicts are in all results, and the error counts them.
func TestExpect(t *testing.T) {
	t.Parallel()
	results, dir := run(t, parse(t, queueing))
	var verdicts []string
	for _, e := range results.Run.Expected {
		verdicts = append(verdicts, e.Algorithm+" "+e.Point+" "+e.Verdict)
	}
	want := "random load=0.3 reproduced, random load=0.5 reproduced, p2c load=0.5 differs, p2c load=0.3 not decided: too few runs"
	if got := strings.Join(verdicts, ", "); got != want {
		t.Errorf("verdicts %s\nwant %s", got, want)
	}
	const message = "queueing (simulate): 1 of 4 expected values differ; 1 of 4 expected values are not decided: run more --seeds"
	if err := results.Verdict(); err == nil || err.Error() != message {
		t.Errorf("%v, want %s", err, message)
	}
	var written experiment.Run
	if err := json.Unmarshal([]byte(readFile(t, dir, experiment.FileRun)), &written); err != nil {
		t.Fatal(err)
	}
	if e := written.Expected[1]; e.Verdict != experiment.Reproduced || e.Value < 0.0199999 || e.Value > 0.0200001 || e.Formula != "mm1-time" || e.Ours.N < 3 {
		t.Errorf("run.json: %+v", e)
	}
	if d := written.Differences; len(d) != 2 || d[0].Algorithm != "p2c" || d[0].From != "random" || d[0].Mean >= 0 || d[0].N < 3 {
		t.Errorf("differences: %+v", d)
	}
	for file, want := range map[string]string{
		experiment.FileExpected:   "p2c,0.5,response_mean,0.02,0.001,",
		experiment.FileMarkdown:   "| nobody, table 1 |",
		experiment.FileReport:     "<td>differs</td>",
		experiment.FileTable:      "not decided: too few runs",
		experiment.FileDifference: "p2c,random,0.3,response_mean,-",
		experiment.FileRuns:       "algorithm,seed,repeat,load,flows,",
	} {
		if text := readFile(t, dir, file); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", file, want, text[:min(len(text), 2000)])
		}
	}
}

// TestOrder: an order of two algorithms is decided by the differences of runs with the same flows, and in all results.
func TestOrder(t *testing.T) {
	t.Parallel()
	text := queueing[:strings.Index(queueing, "expect:")] + `expect:
- {metric: response_mean, algorithm: p2c, below: random, source: nobody}
- {metric: response_mean, below: p2c, at: {load: 0.5}, source: nobody}
- {metric: refused, algorithm: p2c, at: {load: 0.5}, below: random, source: nobody}
`
	results, dir := run(t, parse(t, text))
	var verdicts []string
	for _, e := range results.Run.Expected {
		verdicts = append(verdicts, e.Algorithm+" "+e.Point+" below "+e.Below+" "+e.Verdict)
	}
	want := "p2c load=0.3 below random reproduced, p2c load=0.5 below random reproduced, random load=0.5 below p2c differs, p2c load=0.5 below random differs"
	if got := strings.Join(verdicts, ", "); got != want {
		t.Errorf("verdicts %s\nwant %s", got, want)
	}
	if d, e := results.Run.Differences[0], results.Run.Expected[0]; d.Interval != e.Ours || e.Ours.Mean >= 0 || e.Ours.N < 3 {
		t.Errorf("the order has %+v, the table of differences %+v", e.Ours, d.Interval)
	}
	for file, want := range map[string]string{experiment.FileExpected: ",reproduced,,nobody,random\n", experiment.FileTable: "below random"} {
		if text := readFile(t, dir, file); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", file, want, text)
		}
	}
	one := parse(t, strings.NewReplacer("seeds: 3", "seeds: 1", "until: {metric: response_mean, half: 5%, max: 9}\n", "").Replace(text))
	if results, _ := run(t, one); results.Run.Expected[0].Verdict != experiment.NotDecided {
		t.Errorf("one run: %s", results.Run.Expected[0].Verdict)
	}
}

// TestPairs: with the same flows the difference of two algorithms is known better than their means.
func TestPairs(t *testing.T) {
	t.Parallel()
	text := strings.Replace(strings.Replace(queueing, "[random, p2c]", "[random, rr]", 1), "until: {metric: response_mean, half: 5%, max: 9}\n", "", 1)
	text = strings.Replace(text[:strings.Index(text, "expect:")], "seeds: 3", "seeds: 6", 1)
	results, _ := run(t, parse(t, text))
	for i, row := range results.Summary() {
		if row.Algorithm == "rr" {
			continue
		}
		d, other := results.Run.Differences[i/2], results.Summary()[i+1].Metrics["response_mean"]
		if independent := row.Metrics["response_mean"].Half + other.Half; d.Half >= independent || d.N != 6 {
			t.Errorf("%s: difference ± %v of %d runs, the means ± %v together", row.Point, d.Half, d.N, independent)
		}
	}
}

// TestCores: the same bits on one and on two processors, and after an interruption.
func TestCores(t *testing.T) {
	x := parse(t, strings.Replace(queueing, "warmup: 1s", "warmup: mser-5", 1))
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	for i, cells := range []int{1, 2, 2} {
		runtime.GOMAXPROCS(cells)
		r := experiment.Runner{Experiment: x, Backend: experiment.Simulate{Cells: cells}, Dir: dirs[i], Version: "test"}
		if i == 2 {
			ctx, cancel := context.WithCancel(t.Context())
			r.Progress = func(done float64, _ int) {
				if done > 7 {
					cancel()
				}
			}
			if results, err := r.Run(ctx); !errors.Is(err, context.Canceled) || results.Missing == 0 {
				t.Fatalf("not interrupted: %v", err)
			}
			r.Progress = nil
		}
		if _, err := r.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, e := range entries {
		if e.IsDir() || e.Name() == experiment.FileCosts || e.Name() == experiment.FileReport { // times of this machine
			continue
		}
		compared++
		for _, other := range dirs[1:] {
			if readFile(t, dirs[0], e.Name()) != readFile(t, other, e.Name()) {
				t.Errorf("%s differs", e.Name())
			}
		}
	}
	if compared < 8 {
		t.Errorf("%d files were compared", compared)
	}
}

// TestWarnings: runs that are too short say so. The mean of the first is far below the 10 times of its work that theory says.
func TestWarnings(t *testing.T) {
	t.Parallel()
	text := strings.NewReplacer("[random, p2c]", "[random]", "[0.3, 0.5], with: {duration: [20s, 30s]}", "[0.90, 1.1], with: {duration: [10s, 20s]}", "columns: [response_mean]", "columns: [connect_p999]").Replace(queueing)
	text = text[:strings.Index(text, "expect:")]
	results, dir := run(t, parse(t, text))
	table := readFile(t, dir, experiment.FileTable)
	for _, want := range []string{
		"random at load=0.90: the relaxation time of the queues is about 3.8 s, the warm-up 1.0 s and the rest 9.0 s: the empty start lowers means by about",
		"random at load=1.1: load 1.1: the queues grow until the end",
		"(until.max) the interval of response mean ms is",
		"p99.9 ms: of ",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no warning %q in\n%s", want, table)
		}
	}
	if n := len(results.Run.Warnings); n < 4 {
		t.Errorf("%d warnings in run.json", n)
	}
}

// TestWarmup: MSER-5 cuts the time in which the queues fill, and the mean is nearer to the 100 ms of theory than with it.
func TestWarmup(t *testing.T) {
	t.Parallel()
	text := strings.NewReplacer("[random, p2c]", "[random]", "[0.3, 0.5], with: {duration: [20s, 30s]}", "[0.90], with: {duration: [20s]}", "endpoints: 2", "endpoints: 100", "warmup: 1s", "warmup: 0s").Replace(queueing)
	text = text[:strings.Index(text, "until:")]
	with, _ := run(t, parse(t, text))
	without, dir := run(t, parse(t, strings.Replace(text, "warmup: 0s", "warmup: mser-5", 1)))
	s := without.Run.Series[0]
	if !s.MSER || s.Warmup < 0.5 || s.Warmup > 10 {
		t.Errorf("cut %+v", s)
	}
	lowest, low := without.Summary()[0].Metrics["response_mean"].Mean, with.Summary()[0].Metrics["response_mean"].Mean
	if lowest <= low {
		t.Errorf("mean %v with the filling of the queues, %v without", low, lowest)
	}
	if text := readFile(t, dir, experiment.FileMarkdown); !strings.Contains(text, "what MSER-5 (White 1997) has cut") {
		t.Errorf("the report does not show the cut:\n%s", text)
	}
}

// TestExpectMistakes: each is one line with file, line and field.
func TestExpectMistakes(t *testing.T) {
	t.Parallel()
	const maglev = "formula: maglev-disruption"
	for _, tt := range []struct{ old, new, want string }{
		{"algorithm: random, formula: mm1-time", "formula: mm1-time", "x.yaml:19: expect[0].formula: mm1-time wants algorithm random, or one endpoint"},
		{"formula: mm1-time", "formula: mg1-time", "x.yaml:19: expect[0].formula: want one of mm1-time, "},
		{"formula: mm1-time", "formula: mmc-waited", "x.yaml:19: expect[0].formula: mmc-waited is a formula for waited, not for response_mean"},
		{"formula: mm1-time", "formula: mm1-time, value: 1", "x.yaml:19: expect[0].value: want a value, a formula or an algorithm (below)"},
		{"formula: mm1-time, tolerance: 8%", "below: random, source: s", "x.yaml:19: expect[0].below: want another algorithm"},
		{"formula: mm1-time, tolerance: 8%", "below: lc, source: s", "x.yaml:19: expect[0].below: want one of the experiment's algorithms"},
		{"formula: mm1-time", "below: p2c, source: s", "x.yaml:19: expect[0].tolerance: leave it out: with below, two algorithms are compared"},
		{"formula: mm1-time, tolerance: 8%", "below: p2c", "x.yaml:19: expect[0].source: missing"},
		{"algorithm: random, formula: mm1-time", "formula: stale-time", "x.yaml:19: expect[0].formula: stale-time wants algorithm random or stale(AGE:N), not p2c"},
		{"metric: response_mean, algorithm: random, formula: mm1-time", "metric: flows_jain, formula: selection-jain", "x.yaml:19: expect[0].formula: selection-jain wants a number of flows within the duration"},
		{"formula: mm1-time, tolerance: 8%", "formula: mm1-time", "x.yaml:19: expect[0].tolerance: missing"},
		{"tolerance: 8%", "tolerance: some", "x.yaml:19: expect[0].tolerance: want a number, a time with its unit, or a percentage"},
		{`, source: "nobody, table 1", tolerance: 1ms`, ", tolerance: 1ms", "x.yaml:20: expect[1].source: missing"},
		{"value: 20ms", "value: 20%", "x.yaml:20: expect[1].value: want a number or a time"},
		{"at: {load: 0.5}", "at: {load: 0.6}", "x.yaml:20: expect[1].at: load has no value 0.6"},
		{"at: {load: 0.5}", "at: {lode: 0.5}", `x.yaml:20: expect[1].at: "lode" is not a swept parameter`},
		{"algorithm: p2c, at: {load: 0.5}", "algorithm: lc, at: {load: 0.5}", "x.yaml:20: expect[1].algorithm: want one of the experiment's"},
		{"distribution: exponential", "distribution: uniform", "x.yaml:19: expect[0].formula: mm1-time wants exponential work"},
		{"values: [0.3, 0.5]", "values: [0.3, 1.5]", "x.yaml:20: expect[1].at: load has no value"},
		{"field: workload.arrivals.load", "field: seeds", "x.yaml:12: sweep[0].field: want a field of cluster, workload"},
		{"field: workload.arrivals.load", "field: workload.idle.mean, name: load", "x.yaml:12: sweep[0]: with load=0.3: the file has no field workload.idle.mean"},
		{"field: workload.arrivals.load", "field: 'cluster.services[3].endpoints', name: load", "x.yaml:12: sweep[0]: with load=0.3: the file has no field cluster.services[3].endpoints"},
		{"duration: [20s, 30s]", "duration: [20s]", "x.yaml:12: sweep[0].with: want as many values of duration"},
		{"duration: [20s, 30s]", "duration: [20s, 30]", "x.yaml:1: duration: with load=0.5: want a time with its unit"},
		{"values: [0.3, 0.5]", "values: [0.3, 0.3]", "x.yaml:12: sweep[0].values: 0.3 is given twice"},
		{"warmup: 1s", "warmup: mser-6", "x.yaml:13: warmup: want a time with its unit, such as 30s or 5ms, or mser-5"},
		{"half: 5%", "half: 0", "x.yaml:16: until.half: want half of the interval's width"},
		{"max: 9", "max: 2", "x.yaml:16: until.max: want 3 (seeds) to 1000"},
		{"metric: response_mean, half", "metric: speed, half", "x.yaml:16: until.metric: want one of flows"},
		{"metric: response_mean, algorithm: random, formula: mm1-time", "metric: remapped, algorithm: random, " + maglev, "x.yaml:19: expect[0].formula: maglev-disruption wants algorithm maglev"},
	} {
		text := strings.Replace(queueing, tt.old, tt.new, 1)
		if text == queueing {
			t.Fatalf("%s: the text does not have it", tt.old)
		}
		_, err := experiment.Parse("x.yaml", t.TempDir(), []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v\nwant %s", tt.new, err, tt.want)
		}
	}
}

// TestScriptHash: run.json has the hash of each script.
func TestScriptHash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"x.yaml": withAlgorithms("[script:first.star]"), "first.star": firstOnly})
	results, _ := run(t, load(t, filepath.Join(dir, "x.yaml"), 1))
	if s := results.Run.Scripts; len(s) != 1 || s[0].Name != "first.star" || len(s[0].SHA256) != 64 {
		t.Errorf("scripts %+v", s)
	}
}
