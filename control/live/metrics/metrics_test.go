package metrics

import (
	"flag"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

var update = flag.Bool("update", false, "write the golden file anew")

// exampleTable has services with and without endpoints, here and elsewhere.
func exampleTable() *decision.Table {
	local := func(family decision.Family, internal, external decision.Policy, nodePort uint16, here bool, endpoints ...string) *decision.ServicePort {
		s := &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "shop", Name: fmt.Sprint("s", nodePort)}, Protocol: decision.TCP, Family: family,
			InternalPolicy: internal, ExternalPolicy: external, NodePort: nodePort, HasEndpoints: len(endpoints) > 0,
		}
		for i, e := range endpoints {
			s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(e), Local: here})
			if here {
				s.Usable[decision.Local] = append(s.Usable[decision.Local], uint32(i))
			}
		}
		return s
	}
	table := decision.NewTable(7, time.Unix(1e9, 5e8), decision.Node{}, []*decision.ServicePort{
		local(decision.IPv4, decision.Local, decision.Local, 30001, false, "10.0.0.1:80", "10.0.0.2:80"), // both are dropped
		local(decision.IPv4, decision.Local, decision.Cluster, 0, false, "10.0.0.1:80"),                  // internal
		local(decision.IPv4, decision.Cluster, decision.Local, 30002, true, "10.0.0.1:80"),
		local(decision.IPv4, decision.Cluster, decision.Local, 0, false, "10.0.0.1:80"), // not to be reached from outside
		local(decision.IPv4, decision.Local, decision.Local, 30003, false),              // refused
		local(decision.IPv6, decision.Cluster, decision.Local, 30004, false, "[2001:db8::1]:80"),
	})
	return table
}

func exampleStats() engine.Stats {
	s := engine.Stats{
		Undecodable: 3, HeldBack: 21, Created: 4, Kept: 5, Replaced: 6, Failed: 12, NoRoute: 7, TableFull: 2, LostRecords: 8, Undecided: 99, Reinstalled: 1,
		HostMasqueraded: 16, HostUnknown: 17, EvictedFull: 18, EvictedCrowded: 19, Repaired: 20, ForgottenClients: 24,
		InvalidDropped: 31, LocalhostNodePorts: 32, DecidedByCopy: 33, SecondChances: 34, RefusalsQueued: 35,
		Queues: []engine.QueueStats{
			{Number: 100, Packets: 11, Waiting: 12, Overrun: 13, Refused: 15},
			{Number: 101, Packets: 21, Waiting: 22, Overrun: 23, Refused: 25},
		},
		DecisionTime:  engine.Histogram{Sum: 5 * time.Second},
		EstablishTime: engine.Histogram{Sum: 6 * time.Second},
	}
	s.Flows[decision.DNAT][decision.EntryNodePort][decision.Bound] = 9
	s.Flows[decision.Reject][decision.EntryClusterIP][decision.NoEndpoints] = 10
	s.DecisionTime.Counts[0], s.DecisionTime.Counts[2], s.DecisionTime.Counts[engine.HistogramBuckets] = 1, 2, 3
	s.EstablishTime.Counts[engine.HistogramBuckets-1] = 4
	return s
}

// example has something of everything. It runs in a bubble, where time stands still.
func example() *Metrics {
	m := New("v1.2.3")
	m.ReadStats(exampleStats)
	m.ReadFlows(exampleObserver(), exampleServices())
	m.ReadScripts(func(each func(string, uint64)) { each("my.star", 45) })
	m.ReadShadows(func() (float64, []shadow.Total) {
		return 1.5, []shadow.Total{{Algorithm: "p2c", Agree: 46, Other: 47, Imbalance: 1.25}}
	})
	m.Queued(3, 5)
	time.Sleep(time.Second)
	m.Applied(servicetable.Sync{
		Table: exampleTable(), Began: time.Now().Add(-20 * time.Millisecond), Services: 1, EndpointSlices: 3,
		Triggers: map[decision.Family][]time.Time{
			decision.IPv4: {time.Now().Add(-2 * time.Second), time.Now().Add(time.Hour) /* a clock that is ahead */},
			decision.IPv6: {time.Now().Add(-3 * time.Second)},
		},
	})
	m.Reconciled(decision.IPv6, 30*time.Millisecond, 2)
	m.Answered("/healthz", 503)
	m.Answered("/livez", 200)
	m.Answered("/readyz", 200)
	m.Converged(observe.LastFlow, 0)
	m.Converged(observe.LastFlow, time.Second)
	m.Converged(observe.LastFlow, 3*time.Second)
	m.Converged(observe.Rules, time.Minute)
	m.Odd(observe.Flows{Outdated: 51, UnknownEndpoint: 52, NotTranslated: 53})
	return m
}

// exposition writes all but Go's and the process's own metrics, histograms on one line.
func exposition(t *testing.T, m *Metrics) string {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "kubeproxy_") && !strings.HasPrefix(f.GetName(), "nfqproxy_") {
			continue
		}
		fmt.Fprintf(&b, "# %s: %s\n", strings.ToLower(f.GetType().String()), f.GetHelp())
		for _, metric := range f.GetMetric() {
			var labels []string
			for _, l := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			fmt.Fprintf(&b, "%s{%s} ", f.GetName(), strings.Join(labels, ","))
			h := metric.GetHistogram()
			if h == nil {
				fmt.Fprintln(&b, metric.GetCounter().GetValue()+metric.GetGauge().GetValue())
				continue
			}
			fmt.Fprintf(&b, "%d, sum %g; up to", h.GetSampleCount(), h.GetSampleSum())
			for _, bucket := range h.GetBucket() {
				if !math.IsInf(bucket.GetUpperBound(), 1) {
					fmt.Fprintf(&b, " %g:%d", bucket.GetUpperBound(), bucket.GetCumulativeCount())
				}
			}
			fmt.Fprintln(&b)
		}
	}
	return b.String()
}

func TestExposition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const golden = "testdata/exposition.golden"
		got := exposition(t, example())
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("-golden +got (-update writes it anew):\n%s", diff)
		}
	})
}

// TestLint holds the names against Prometheus' rules. kube-proxy's are not ours to choose.
func TestLint(t *testing.T) {
	m := New("v1.2.3")
	m.ReadStats(exampleStats)
	m.ReadFlows(exampleObserver(), exampleServices())
	m.Applied(servicetable.Sync{Table: exampleTable()})
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if p.Metric != "kubeproxy_sync_proxy_rules_no_local_endpoints_total" {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// TestSameMetricsFromTheStart: what is there with a table, a datapath and an observer does
// not depend on whether anything happened yet, but for how draws spread.
func TestSameMetricsFromTheStart(t *testing.T) {
	idle := New("v1.2.3")
	idle.ReadStats(func() engine.Stats { return engine.Stats{} })
	idle.ReadFlows(fakeObserver{
		stats:    make([]observe.Stats, 1),
		services: []observe.Service{{Namespace: "shop", Fit: &observe.Fit{}, Endpoints: []observe.Endpoint{{}}}},
	}, exampleServices())
	idle.ReadScripts(func(each func(string, uint64)) { each("my.star", 0) })
	idle.ReadShadows(func() (float64, []shadow.Total) { return 0, []shadow.Total{{Algorithm: "p2c"}} })
	idle.Applied(servicetable.Sync{Table: exampleTable()})
	synctest.Test(t, func(t *testing.T) {
		names := func(m *Metrics) []string {
			var list []string
			for line := range strings.Lines(exposition(t, m)) {
				if name, _, ok := strings.Cut(line, "{"); ok && !strings.Contains(name, "_queue_") && !strings.HasPrefix(name, "#") {
					list = append(list, name)
				}
			}
			return slices.Compact(list)
		}
		if diff := cmp.Diff(names(example()), names(idle)); diff != "" {
			t.Errorf("-busy +idle:\n%s", diff)
		}
	})
}

// TestPending: what was queued during a sync is pending after it.
func TestPending(t *testing.T) {
	m := New("")
	expect := func(services, endpoints float64) {
		t.Helper()
		s, e := testutil.ToFloat64(m.proxy.servicesPending), testutil.ToFloat64(m.proxy.endpointsPending)
		if s != services || e != endpoints {
			t.Errorf("pending %v services and %v slices, want %v and %v", s, e, services, endpoints)
		}
	}
	m.Queued(2, 3)
	m.Queued(1, 0)
	expect(3, 3)
	m.Applied(servicetable.Sync{Table: exampleTable(), Services: 2, EndpointSlices: 3})
	expect(1, 0)
	m.Applied(servicetable.Sync{Table: exampleTable(), Services: 1})
	expect(0, 0)
}

func TestConcurrently(t *testing.T) {
	m := New("")
	table := exampleTable()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				m.ReadStats(exampleStats)
				m.ReadFlows(exampleObserver(), exampleServices())
				m.Queued(1, 1)
				m.Applied(servicetable.Sync{Table: table, Services: 1, EndpointSlices: 1})
				m.Reconciled(decision.IPv4, time.Millisecond, 1)
				m.Answered("/livez", 200)
				if _, err := m.registry.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if n := testutil.ToFloat64(m.proxy.servicesTotal); n != 80 {
		t.Errorf("%v changes, want 80", n)
	}
}
