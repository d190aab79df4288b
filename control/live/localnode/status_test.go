package localnode

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"github.com/nfqproxy/nfqproxy/datapath/live/otherproxy"
	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// fakeDaemon has the state that a test gives it.
type fakeDaemon struct {
	source          observe.Source
	check           engine.RuleCheck
	checkErr        error
	rules, firewall string // faults
	hostNAT         observe.HostNAT
	confinement     observe.Confinement
	flowLog         string
}

func (d *fakeDaemon) Describe(to *observe.Daemon) {
	to.Source, to.HostNAT, to.FlowLog, to.Confinement = d.source, d.hostNAT, d.flowLog, d.confinement
	to.Rules.Fault, to.HostFirewall.Fault = d.rules, d.firewall
}
func (d *fakeDaemon) CheckRules(context.Context) (engine.RuleCheck, error) {
	return d.check, d.checkErr
}

// healthy makes the daemon of a bench one that serves.
func (b *bench) healthy() {
	b.stats = &engine.Stats{
		Undecided: 1, Failed: 9, TableFull: 2, NoRoute: 3, EvictedFull: 5, EvictedCrowded: 6, ForgottenClients: 7, InvalidDropped: 8, LostRecords: 9, DecidedByCopy: 12,
		Reinstalled: 10, Repaired: 11, FilterRepaired: 12, HostMasqueraded: 13, HostUnknown: 14,
		Queues: []engine.QueueStats{{Number: 100, Packets: 1, Waiting: 2, Overrun: 3, Refused: 4, PortID: 5}, {Number: 101}},
	}
	b.daemon = fakeDaemon{
		check: engine.RuleCheck{
			Queued: map[decision.Family]bool{decision.IPv4: true, decision.IPv6: true}, Audited: time.Unix(1, 0), Compared: time.Unix(2, 0),
			Comparison: ruleset.Comparison{Chains: 53, Rules: 111, Elements: 1234},
		},
		hostNAT:     observe.HostNAT{Applied: true, Unknown: []string{"a rule"}},
		confinement: observe.Confinement{NoNewPrivs: true},
	}
}

// status reads the only one.
func (b *bench) status(t *testing.T) *observe.Status {
	t.Helper()
	all, err := b.Status(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, error %v", all, err)
	}
	return &all[0]
}

func TestStatus(t *testing.T) {
	b := newBench(t, 0)
	b.healthy()
	got := b.status(t)
	tables, err := b.Tables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c := got.Daemon.Connections; c == nil || c.Limit == 0 && c.Entries == 0 {
		t.Errorf("connections %+v, want the kernel's", c)
	}
	audited, compared := time.Unix(1, 0), time.Unix(2, 0)
	want := &observe.Status{Node: "node-a", Problems: []observe.Problem{}, Daemon: &observe.Daemon{
		Version: "v1", ProcessID: os.Getpid(), Started: b.journal.Started(), Time: got.Daemon.Time,
		Table: &tables[0], Connections: got.Daemon.Connections,
		DecidedBy: map[string]string{"IPv4": observe.DecidedByDaemon, "IPv6": observe.DecidedByDaemon}, DecidedByCopy: 12,
		Queues: []observe.Queue{{Number: 100, Packets: 1, Waiting: 2, Overrun: 3, Refused: 4, PortID: 5}, {Number: 101}},
		Losses: observe.Losses{Undecided: 1, TableFull: 2, NoRoute: 3, OtherFailures: 4, Evicted: 11, ForgottenClients: 7, InvalidDropped: 8, Records: 9},
		Rules: observe.KernelRules{
			InStep: true, Compared: &compared, Chains: 53, Rules: 111, Elements: 1234, Audited: &audited, Reinstalled: 10, Repaired: 11,
		},
		HostNAT:      observe.HostNAT{Applied: true, Masqueraded: 13, Unknown: []string{"a rule"}, UnknownFlows: 14},
		HostFirewall: observe.HostFirewall{Repaired: 12},
		Confinement:  observe.Confinement{NoNewPrivs: true, Capabilities: []observe.Capability{}},
	}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestProblems: each condition that needs an operator is one problem, and lost packets are none.
func TestProblems(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(*bench)
		want  observe.Problem
	}{
		"no table": {func(b *bench) { b.table, b.stats, b.daemon.source.WaitingFor = nil, nil, "the API server" },
			observe.Problem{Code: observe.ProblemNotServing, Text: "the daemon does not serve yet: waiting for the API server"}},
		"saved": {func(b *bench) { at := time.Unix(0, 0).UTC(); b.daemon.source.Saved = &at },
			observe.Problem{Code: observe.ProblemSavedObjects, Text: "the API server does not answer: the daemon serves by the objects that were saved at 1970-01-01T00:00:00Z"}},
		"late": {func(b *bench) { b.daemon.source.Late = true },
			observe.Problem{Code: observe.ProblemChangesLate, Text: "a change of Services or endpoints waits too long to come into force"}},
		"damaged": {func(b *bench) { b.daemon.rules = "no buffer space" },
			observe.Problem{Code: observe.ProblemRulesDamaged, Text: "the kernel rules are damaged, and the repair fails: no buffer space"}},
		"different": {func(b *bench) { b.daemon.check.Comparison.Differences = []string{"a", "b", "c", "d", "e"} },
			observe.Problem{Code: observe.ProblemRulesDiffer, Text: "the kernel rules differ from the service table: a, b, c and 2 more"}},
		"unreadable": {func(b *bench) { b.daemon.check.Err = errors.Join(errors.New("no buffer space"), errors.New("busy")) },
			observe.Problem{Code: observe.ProblemRulesUnknown, Text: "cannot compare the kernel rules with the service table: no buffer space; busy"}},
		"no result": {func(b *bench) { b.daemon.checkErr = context.DeadlineExceeded },
			observe.Problem{Code: observe.ProblemRulesUnknown, Text: "cannot compare the kernel rules with the service table: no result within 20s"}},
		"stuck": {func(b *bench) { b.stats.Queues[1].Stuck = true },
			observe.Problem{Code: observe.ProblemWorkerStuck, Text: "queue 101: its worker makes no progress"}},
		"not queued": {func(b *bench) { b.daemon.check.Queued[decision.IPv6] = false },
			observe.Problem{Code: observe.ProblemKernelDecides, Text: "new IPv6 flows are not queued: the kernel's copy of the service table decides them"}},
		"firewall": {func(b *bench) { b.daemon.firewall = "ip filter: busy" },
			observe.Problem{Code: observe.ProblemHostFirewall, Text: "rules are missing in the host's firewall, which may drop flows to services: ip filter: busy"}},
		"flow log": {func(b *bench) { b.daemon.flowLog = "write flows.jsonl: no space left on device" },
			observe.Problem{Code: observe.ProblemFlowLog, Text: "the flow log gets no more records, and they are lost: write flows.jsonl: no space left on device; make room, and restart the daemon"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 0)
			b.healthy()
			tt.spoil(b)
			s := b.status(t)
			if diff := cmp.Diff([]observe.Problem{tt.want}, s.Problems); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if s.Daemon.Rules.InStep && (tt.want.Code == observe.ProblemRulesDiffer || tt.want.Code == observe.ProblemRulesUnknown) {
				t.Error("the rules are in step")
			}
		})
	}
}

// TestObservedProblems: an observing daemon that follows connections has a problem only beside a proxy that leaves nothing in them.
func TestObservedProblems(t *testing.T) {
	for _, tt := range []struct {
		proxy     string
		following bool
		want      []observe.Problem
	}{
		{"kube-proxy (ipvs)", true, []observe.Problem{}},
		{"kube-proxy (ipvs)", false, []observe.Problem{{Code: observe.ProblemNotObserving, Text: "the kernel's connections are not followed, so flows have no records: no memory"}}},
		{otherproxy.Cilium, true, []observe.Problem{{Code: observe.ProblemNotObserving, Text: "Cilium translates in eBPF, before connection tracking: flows to Services have records without the Service, or none"}}},
	} {
		d := &observe.Daemon{Observed: tt.proxy, Table: &observe.Table{}, Kernel: &observe.Kernel{Following: tt.following, Why: "no memory"}}
		if diff := cmp.Diff(tt.want, problems(d)); diff != "" {
			t.Errorf("%s, following: %t: -want +got:\n%s", tt.proxy, tt.following, diff)
		}
	}
}
