package statustext

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/flowtext"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// sick is a node with as many problems as a daemon can have.
func sick() observe.Status {
	s := observetest.Status()
	s.Node = "node-b"
	s.Problems = []observe.Problem{
		{Code: observe.ProblemRulesDiffer, Text: "the kernel rules differ from the service table: set copy_endpoint lacks 1 elements and has 0 others (ip nfqproxy)"},
		{Code: observe.ProblemWorkerStuck, Text: "queue 101: its worker makes no progress"},
		{Code: observe.ProblemKernelDecides, Text: "new IPv4 flows are not queued: the kernel's copy of the service table decides them"},
	}
	d := s.Daemon
	saved := observetest.Now.Add(-5 * time.Minute)
	d.Source = observe.Source{Saved: &saved}
	d.Table.Conflicts = []string{"one", "two", "three", "four", "five"}
	d.DecidedBy, d.DecidedByCopy = map[string]string{"IPv4": observe.DecidedByCopy}, 1
	d.Queues[1].Stuck = true
	d.Rules.InStep, d.Rules.Differences, d.Rules.Audited = false, []string{"set copy_endpoint lacks 1 elements and has 0 others (ip nfqproxy)"}, nil
	d.Losses = observe.Losses{Undecided: 1, TableFull: 2, NoRoute: 1, OtherFailures: 4, Evicted: 5, ForgottenClients: 6, InvalidDropped: 7, Records: 8}
	d.HostNAT = observe.HostNAT{Applied: true, UnknownFlows: 9, Unknown: []string{"table nat: -A POSTROUTING -m set --match-set pods src -j MASQUERADE: it depends on data that is not known here"}}
	d.HostFirewall.Fault = "ip filter: no buffer space"
	d.Confinement = observe.Confinement{Capabilities: []observe.Capability{}, Program: "aws", Missing: []string{"Landlock: it is not supported by this kernel", "confinement: --confine=false"}}
	return s
}

// starting is a node whose daemon waits for the API server.
func starting() observe.Status {
	return observe.Status{
		Node: "node-c", Problems: []observe.Problem{{Code: observe.ProblemNotServing, Text: "the daemon does not serve yet: waiting for the API server"}},
		Daemon: &observe.Daemon{
			Version: "v1.2.3", ProcessID: 1, Started: observetest.Now.Add(-time.Second), Time: observetest.Now,
			Source: observe.Source{WaitingFor: "the API server"}, HostNAT: observe.HostNAT{Applied: true}, Rules: observe.KernelRules{Error: "the datapath has not started"},
		},
	}
}

func TestRender(t *testing.T) {
	frozen := observe.Status{Node: "node-d", Problems: []observe.Problem{{Code: observe.ProblemUnreachable, Text: "the daemon does not answer: no answer within 25s"}}}
	golden(t, "healthy.txt", Render([]observe.Status{observetest.Status()}, flowtext.Style{}))
	golden(t, "lab.txt", Render([]observe.Status{observetest.Status(), sick(), starting(), frozen}, flowtext.Style{}))
	two := Render([]observe.Status{observetest.Status(), observetest.Status()}, flowtext.Style{})
	if !strings.HasSuffix(two, "\nAll 2 nodes are all right.\n") {
		t.Errorf("two nodes end with\n%s", two)
	}
}

// TestRenderColors: problems are marked.
func TestRenderColors(t *testing.T) {
	text := Render([]observe.Status{sick()}, flowtext.Style{Color: true})
	for _, want := range []string{"\x1b[31m3 problems", "\x1b[31mstuck", "\x1b[31mdecided by the kernel's copy", "\x1b[33mnot in force"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%q", want, text)
		}
	}
}
