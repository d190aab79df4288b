package text_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/text"
)

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

func TestStatus(t *testing.T) {
	frozen := observe.Status{Node: "node-d", Problems: []observe.Problem{{Code: observe.ProblemUnreachable, Text: "the daemon does not answer: no answer within 25s"}}}
	golden(t, "status-healthy.txt", text.Style{}.Status([]observe.Status{observetest.Status()}))
	golden(t, "status-lab.txt", text.Style{}.Status([]observe.Status{observetest.Status(), sick(), starting(), frozen}))
	two := text.Style{}.Status([]observe.Status{observetest.Status(), observetest.Status()})
	if !strings.HasSuffix(two, "\nAll 2 nodes are healthy.\n") {
		t.Errorf("two nodes end with\n%s", two)
	}
}

// TestStatusColors: problems are marked.
func TestStatusColors(t *testing.T) {
	got := text.Style{Color: true}.Status([]observe.Status{sick()})
	for _, want := range []string{"\x1b[31m3 problems", "\x1b[31mstuck", "\x1b[31mdecided by the kernel's copy", "\x1b[33mnot in force"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%q", want, got)
		}
	}
}
