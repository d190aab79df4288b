package metrics

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
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

	"github.com/nfqproxy/nfqproxy/control/live/limit"
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
	s.Flows = map[engine.FlowClass]uint64{
		{Verdict: decision.DNAT, Entry: decision.EntryNodePort, Reason: decision.Bound}:          9,
		{Verdict: decision.Reject, Entry: decision.EntryClusterIP, Reason: decision.NoEndpoints}: 10,
	}
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
	m.ReadStats(exampleStats)
	m.ReadFlows(exampleObserver(), exampleServices())
	table := exampleTable()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
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

func get(h http.Handler, path, accept string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	m := New("v1.2.3")
	h := m.Handler(HandlerConfig{Log: slog.New(slog.DiscardHandler)})
	for _, c := range []struct{ path, accept, contentType, body string }{
		{"/proxyMode", "", "text/plain; charset=utf-8", "iptables"},
		{"/healthz", "", "text/plain; charset=utf-8", "ok"},
		{"/metrics", "", "text/plain; version=0.0.4", `nfqproxy_build_info{version="v1.2.3"} 1` + "\n"},
		{"/metrics", "", "text/plain; version=0.0.4", "\ngo_goroutines "},
		{"/metrics", "application/openmetrics-text", "application/openmetrics-text", "\n# EOF\n"},
	} {
		w := get(h, c.path, c.accept)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), c.contentType) || !strings.Contains(w.Body.String(), c.body) {
			t.Errorf("%s (%s): %d %s, want 200 %s with %q in it", c.path, c.accept, w.Code, w.Header().Get("Content-Type"), c.contentType, c.body)
		}
	}
	// Each is kube-proxy's answer, and no more.
	for path, want := range map[string]string{"/proxyMode": "iptables", "/healthz": "ok"} {
		if w := get(h, path, ""); w.Body.String() != want || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %q, headers %v", path, w.Body, w.Header())
		}
	}
	if w := get(h, "/proxyMode", ""); w.Header().Get("Server") != "nfqproxy" {
		t.Errorf("/proxyMode: headers %v do not name nfqproxy", w.Header())
	}
	if w := get(h, "/configz", ""); w.Code != http.StatusNotFound {
		t.Errorf("/configz: %d, want 404", w.Code)
	}
}

func TestProfilingIsAnOption(t *testing.T) {
	m := New("")
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine", "/debug/pprof/symbol"} {
		for profiling, want := range map[bool]int{false: http.StatusNotFound, true: http.StatusOK} {
			h := m.Handler(HandlerConfig{Profiling: profiling, Log: slog.New(slog.DiscardHandler)})
			if w := get(h, path, ""); w.Code != want {
				t.Errorf("%s with profiling %v: %d, want %d", path, profiling, w.Code, want)
			}
		}
	}
}

// TestHosts: over a loopback address, only addresses and localhost are names of the server.
func TestHosts(t *testing.T) {
	h := New("").Handler(HandlerConfig{Log: slog.New(slog.DiscardHandler)})
	loopback, node := net.IPv4(127, 0, 0, 1), net.IPv4(172, 20, 0, 2)
	for _, c := range []struct {
		local net.IP
		host  string
		code  int
	}{
		{loopback, "localhost:10249", 200},
		{loopback, "LOCALHOST", 200},
		{loopback, "127.0.0.1:10249", 200},
		{loopback, "[::1]:10249", 200},
		{loopback, "[::1]", 200},
		{loopback, "172.20.0.2:9449", 200}, // a proxy in front of it that hands the name on
		{net.IPv6loopback, "evil.example:10249", 403},
		{loopback, "evil.example:10249", 403},
		{loopback, "127.0.0.1.evil.example", 403},
		{loopback, "localhost.evil.example", 403},
		{loopback, "", 200},
		{node, "node-1.example:10249", 200},
		{node, "172.20.0.2:10249", 200},
	} {
		for _, path := range []string{"/metrics", "/healthz", "/proxyMode"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host = c.host
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{IP: c.local, Port: 10249})))
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != c.code {
				t.Errorf("%s at %s as %q: %d %s, want %d", path, c.local, c.host, w.Code, w.Body, c.code)
			}
		}
	}
}

// TestLimits: what the servers refused can be seen.
func TestLimits(t *testing.T) {
	m, set := New(""), new(limit.Set)
	m.ReadLimits(set)
	q := set.New("health", "connections", limit.Numbers{Total: 2, Each: 1})
	a := limit.Address(netip.MustParseAddr("10.244.0.1"))
	for range 3 {
		_, _ = q.Take(a)
	}
	text := exposition(t, m)
	for _, want := range []string{
		`nfqproxy_server_in_use{server="health",what="connections"} 1`, `nfqproxy_server_limit{server="health",what="connections"} 2`,
		`nfqproxy_server_refused_total{limit="client",server="health",what="connections"} 2`,
		`nfqproxy_server_refused_total{limit="total",server="health",what="connections"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
