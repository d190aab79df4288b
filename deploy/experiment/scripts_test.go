package experiment_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/experiment"
)

const (
	firstOnly = "def pick(candidates, flow, state):\n    return 0\n"
	failing   = "def pick(candidates, flow, state):\n    return candidates[7]\n"
)

// write writes files into a directory.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// withAlgorithms is the small experiment with other algorithms.
func withAlgorithms(list string) string {
	return strings.Replace(small, "[random, lc+second-chance]", list, 1)
}

// TestScript: a script selects the endpoints wherever an algorithm is named. Each algorithm of the table sends all flows
// to one endpoint of three.
func TestScript(t *testing.T) {
	t.Parallel()
	own := strings.Replace(withAlgorithms("[random]"), "endpoints: 3}", `endpoints: 3, algorithm: "script:policies/first.star"}`, 1)
	lab := strings.Replace(withAlgorithms("[random]"), "nodes: 2\n  services: [{name: web, endpoints: 3}]", "lab: lab.yaml", 1)
	for _, tt := range []struct{ name, text, algorithm string }{
		{"compared", withAlgorithms("[script:policies/first.star]"), "script:first.star"},
		{"with second chances", withAlgorithms("[script:policies/first.star+second-chance]"), "script:first.star+second-chance"},
		{"in eject", withAlgorithms("[eject(script:policies/first.star)]"), "eject(script:first.star)"},
		{"in subset", withAlgorithms("['subset(3:script:policies/first.star)']"), "subset(3:script:first.star)"},
		{"of a service", own, "random"},
		{"of a lab's service", lab, "random"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, map[string]string{"x.yaml": tt.text, "policies/first.star": firstOnly, "lab.yaml": scriptedLab})
			x := load(t, filepath.Join(dir, "x.yaml"), 1)
			results, _ := run(t, x)
			if c := results.Cells[0]; c.Algorithm != tt.algorithm || c.Values["flows_max_mean"] != 3 || c.Values["flows"] < 100 {
				t.Errorf("%s: %v flows, the endpoint with most has %v of the mean, want 3", c.Algorithm, c.Values["flows"], c.Values["flows_max_mean"])
			}
			if len(x.Scripts) != 1 || x.Scripts[0].Name() != "first.star" {
				t.Errorf("scripts %v", x.Scripts)
			}
		})
	}
}

const scriptedLab = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: scripted}
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
proxy: {scripts: [policies/first.star]}
nodes: [{name: node-a, addresses: [192.0.2.10], podCIDRs: [10.244.1.0/24]}]
deployments: [{name: web, nodes: [node-a], replicas: 3, ports: [{port: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {nfqproxy.io/balance: "script:first.star"}}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestScriptInResults: the directory of results has the scripts; they run again from there, with the same bits, whatever
// has become of the file that the experiment names.
func TestScriptInResults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "x.yaml")
	write(t, dir, map[string]string{"x.yaml": withAlgorithms("[random, script:policies/first.star]"), "policies/first.star": firstOnly})
	x := load(t, path, 1)
	_, results := run(t, x)
	again := func(name string) *experiment.Experiment {
		return load(t, filepath.Join(name, experiment.FileExperiment), 1)
	}
	write(t, dir, map[string]string{"policies/first.star": failing})
	if y := again(results); y.Digest != x.Digest {
		t.Error("the experiment in the results is another one")
	} else if _, repeated := run(t, y); readFile(t, repeated, experiment.FileRuns) != readFile(t, results, experiment.FileRuns) {
		t.Error("it has other results")
	}
	if page := readFile(t, results, experiment.FileReport); !strings.Contains(page, "<h3>first.star</h3>\n<pre>def pick(candidates, flow, state):\n") {
		t.Error("the report lacks the script")
	}
	r := experiment.Runner{Experiment: load(t, path, 1), Backend: experiment.Simulate{}, Dir: results, Version: "test"}
	if _, err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "has the results of another experiment") {
		t.Errorf("another text of the script continues the run: %v", err)
	}
}

func readFile(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestScriptFails: the results say that endpoints were drawn at random instead, in how many runs, and why.
func TestScriptFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"x.yaml": withAlgorithms("[random, script:bad.star]"), "bad.star": failing})
	results, out := run(t, load(t, filepath.Join(dir, "x.yaml"), 2))
	if c := results.Cells[1]; len(c.ScriptErrors) != 1 || float64(c.ScriptFailures) < c.Values["flows"] {
		t.Errorf("%d failures of %v flows, %q", c.ScriptFailures, c.Values["flows"], c.ScriptErrors)
	}
	const want = "a script failed in 2 of 4 runs ("
	for _, file := range []string{experiment.FileTable, experiment.FileReport, experiment.FileLaTeX} {
		if text := readFile(t, out, file); !strings.Contains(text, want) || !strings.Contains(text, "bad.star:2:22: list index 7 out of range") {
			t.Errorf("%s does not say that the script failed", file)
		}
	}
	if text := readFile(t, out, experiment.FileLaTeX); !strings.Contains(text, "\n% "+want) {
		t.Error("the note is not a comment of LaTeX")
	}
}

// TestScriptMistakes: each is one line with file, line and field.
func TestScriptMistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a.star": firstOnly, "b/a.star": firstOnly, "broken.star": "def pick(:\n", "lab.yaml": strings.Replace(scriptedLab, "policies/first", "none", 1)})
	for _, tt := range []struct{ algorithms, want string }{
		{"[script:none.star]", "x.yaml:12: algorithms[0]: balancing script: "},
		{"[script:broken.star]", "x.yaml:12: algorithms[0]: balancing script " + filepath.Join(dir, "broken.star") + ":1:11: "},
		{"[script:a.star, script:b/a.star]", "x.yaml:12: algorithms[1]: scripts "},
		{"[script:a.star, script:./a.star]", "x.yaml:12: algorithms[1]: want each algorithm only once"},
		{"['script:']", "x.yaml:12: algorithms[0]: balancing algorithm \"script:\": want script:FILE"},
		{"[script:b]", "x.yaml:12: algorithms[0]: balancing script " + filepath.Join(dir, "b") + ": want a file"},
	} {
		_, err := experiment.Parse("x.yaml", dir, []byte(withAlgorithms(tt.algorithms)))
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v\nwant %s", tt.algorithms, err, tt.want)
		}
	}
	text := strings.Replace(small, "nodes: 2\n  services: [{name: web, endpoints: 3}]", "lab: lab.yaml", 1)
	if _, err := experiment.Parse("x.yaml", dir, []byte(text)); err == nil || !strings.HasPrefix(err.Error(), "x.yaml:6: cluster.lab: balancing script: ") {
		t.Errorf("a script of the lab: %v", err)
	}
}

// TestOwnAlgorithm: a program runs an experiment with an algorithm of its own. Without the program the results are read, but not continued.
func TestOwnAlgorithm(t *testing.T) {
	t.Parallel()
	first := balance.Entry{Name: "first", Make: func(string) (balance.Algorithm, error) {
		return balance.Algorithm{New: func(*balance.Set, balance.Picker) balance.Picker { return firstPicker{} }}, nil
	}}
	text := []byte(withAlgorithms("[random, first, eject(first)]"))
	if _, err := experiment.Parse("x.yaml", ".", text); err == nil || !strings.Contains(err.Error(), `balancing algorithm "first": unknown`) {
		t.Errorf("without the algorithm: %v", err)
	}
	x, err := experiment.Parse("x.yaml", ".", text, first)
	if err != nil {
		t.Fatal(err)
	}
	x.Seeds = 1
	results, dir := run(t, x)
	for _, c := range results.Cells[1:] {
		if c.Values["flows_max_mean"] != 3 {
			t.Errorf("%s: the endpoint with most has %v of the mean, want all", c.Algorithm, c.Values["flows_max_mean"])
		}
	}
	if again, err := experiment.Open(dir); err != nil || len(again.Cells) != 3 {
		t.Errorf("the results without the program: %v", err)
	}
}

type firstPicker struct{}

func (firstPicker) Pick(balance.Flow) decision.Pick {
	return decision.Pick{Evidence: decision.Evidence{Kind: decision.Noted, Note: "the first"}}
}

// TestPublished: algorithms of package algorithms run wherever one is named, and their messages count.
func TestPublished(t *testing.T) {
	t.Parallel()
	x, err := experiment.Parse("x.yaml", ".", []byte(withAlgorithms("[jiq, 'stale(1s:2)', prequal+second-chance, ring]")))
	if err != nil {
		t.Fatal(err)
	}
	x.Seeds = 1
	results, _ := run(t, x)
	for _, c := range results.Cells {
		if want := c.Algorithm == "jiq" || c.Algorithm == "prequal+second-chance"; c.Values["messages"] > 0 != want {
			t.Errorf("%s: %v messages for each flow", c.Algorithm, c.Values["messages"])
		}
	}
}
