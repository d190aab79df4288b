package traffic

import (
	"fmt"
	"hash/fnv"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// cluster is a generated cluster: services with endpoints of weight 1, each with workers and a backlog.
func cluster(nodes, services, endpoints, workers, backlog int) Cluster {
	c := Cluster{Nodes: Generate(nodes, 3)}
	for i := range services {
		s := Service{Namespace: "default", Name: fmt.Sprintf("service-%d", i+1), ClusterIP: ServiceAddr(i), Port: 80, Concurrency: workers, Backlog: backlog}
		for e := range endpoints {
			n := i*endpoints + e
			s.Endpoints = append(s.Endpoints, Endpoint{AddrPort: EndpointAddr(n), Node: n % nodes, Weight: 1})
		}
		c.Services = append(c.Services, s)
	}
	return c
}

// exponentialWork is a workload of connections whose work takes that long on average.
func exponentialWork(load float64, mean time.Duration) Workload {
	return Workload{Arrivals: Arrivals{Process: poisson, Load: load}, Work: Distribution{Kind: exponential, Mean: mean}}
}

func run(t testing.TB, c *Config, algorithm string, seed uint64) *Result {
	t.Helper()
	r, err := Run(c, algorithm, seed, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// bins is a config with n connections to n endpoints, which all stay open.
func bins(n int) *Config {
	return &Config{
		Cluster:  cluster(1, 1, n, 1<<20, 0),
		Workload: Workload{Arrivals: Arrivals{Process: deterministic, Rate: float64(n) * 2, Flows: n}, Work: Distribution{Kind: constant, Mean: time.Hour}},
		Duration: time.Second, Window: time.Second,
	}
}

// TestBallsIntoBins: the fullest of n endpoints under random. Raab and Steger ("Balls into Bins" – A Simple
// and Tight Analysis, 1998, theorem 1) prove for n connections a maximum of ln n/ln ln n times
// (1 + a ln ln ln n/ln ln n), with a near 1, for large n. For a finite n the loads are close to independent
// ones of a Poisson distribution with mean 1, which gives the probability of each maximum.
func TestBallsIntoBins(t *testing.T) {
	for _, n := range []int{1000, 10_000, 100_000} {
		for seed := range uint64(3) {
			got := run(t, bins(n), "random", seed).Windows[0].MaxOverMean // the mean is 1
			ln := math.Log(float64(n))
			lnln := math.Log(ln)
			first := ln / lnln
			if got < first || got > 2*first*(1+math.Log(lnln)/lnln) {
				t.Errorf("%d connections: the maximum is %v, want about %.1f", n, got, first)
			}
			if p := maximumWithin(n, int(got)); p < 1e-4 || maximumWithin(n, int(got)-1) > 1-1e-4 {
				t.Errorf("%d connections: a maximum of at most %v has a probability of %v", n, got, p)
			}
		}
	}
}

// maximumWithin is the probability that none of n loads exceeds k.
func maximumWithin(n, k int) float64 {
	p, term := 0.0, math.Exp(-1)
	for i := range k + 1 {
		p += term
		term /= float64(i + 1)
	}
	return math.Pow(p, float64(n))
}

// TestTwoChoices: the maximum under p2c is log2 log2 n plus a constant (Azar, Broder, Karlin and Upfal, Balanced
// Allocations, 1999), and does not depend on the number of connections above the mean (Berenbrink, Czumaj, Steger
// and Vöcking, Balanced Allocations: The Heavily Loaded Case, 2000).
func TestTwoChoices(t *testing.T) {
	for _, n := range []int{100, 1000, 10_000, 100_000} {
		got := run(t, bins(n), "p2c", 1).Windows[0].MaxOverMean
		if bound := math.Log2(math.Log2(float64(n))) + 1; got < 2 || got > bound {
			t.Errorf("%d connections: the maximum is %v, want 2 to %.1f", n, got, bound)
		}
	}
	c := bins(1000)
	c.Workload.Arrivals.Flows, c.Workload.Arrivals.Rate = 50_000, 100_000
	if gap := run(t, c, "p2c", 1).Windows[0].MaxOverMean*50 - 50; gap < 1 || gap > math.Log2(math.Log2(1000))+1 {
		t.Errorf("50 connections for each endpoint: %v above the mean under p2c", gap)
	}
	if gap := run(t, c, "random", 1).Windows[0].MaxOverMean*50 - 50; gap < 15 {
		t.Errorf("50 connections for each endpoint: %v above the mean under random, want more: the test has no power", gap)
	}
}

// erlangC is the probability that a connection waits for one of c workers under a load.
func erlangC(c int, load float64) float64 {
	a := load * float64(c)
	sum, term := 0.0, 1.0
	for k := range c {
		sum += term
		term *= a / float64(k+1)
	}
	term /= 1 - load
	return term / (sum + term)
}

// TestErlangC: one endpoint with Poisson arrivals and exponential work is the queue M/M/c.
func TestErlangC(t *testing.T) {
	for _, tt := range []struct {
		workers int
		load    float64
	}{{1, 0.7}, {4, 0.8}, {16, 0.9}} {
		const mean = 10 * time.Millisecond
		c := &Config{
			Cluster: cluster(1, 1, 1, tt.workers, 1<<30), Workload: exponentialWork(tt.load, mean),
			Duration: 4000 * time.Second / time.Duration(tt.workers), Warmup: 10 * time.Second,
		}
		r := run(t, c, "random", 1)
		want := erlangC(tt.workers, tt.load)
		if math.Abs(r.Waited-want) > 0.02 {
			t.Errorf("M/M/%d with load %v: %v wait, want %v", tt.workers, tt.load, r.Waited, want)
		}
		wait, wantWait := r.Connect.Sum()/float64(r.Connect.N()), want*float64(mean)/(float64(tt.workers)*(1-tt.load))
		if math.Abs(wait/wantWait-1) > 0.06 {
			t.Errorf("M/M/%d with load %v: the mean wait is %v, want %v", tt.workers, tt.load, time.Duration(wait), time.Duration(wantWait))
		}
	}
}

// TestMaglevDisruption: one endpoint of n goes. The flows of the others stay but for a small share, which
// falls with the size of the table (Eisenbud et al., Maglev, NSDI 2016, section 5.3); random moves (n-2)/(n-1)
// of them, all that do not draw theirs again.
func TestMaglevDisruption(t *testing.T) {
	const n = 100
	c := &Config{
		Cluster: cluster(3, 1, n, 10, 10), Workload: exponentialWork(0.1, time.Millisecond), Duration: time.Second,
		Events: []Event{{At: time.Second / 2, Scale: &Scale{To: n - 1}}},
	}
	moved := func(algorithm string) float64 {
		r := run(t, c, algorithm, 1)
		if len(r.Changes) != 1 || r.Changes[0].Kept < probeFlows*(n-3)/n || r.Changes[0].Kept == probeFlows {
			t.Fatalf("%s: changes %+v", algorithm, r.Changes)
		}
		return float64(r.Changes[0].Moved) / float64(r.Changes[0].Kept)
	}
	if got, want := moved("random"), float64(n-2)/(n-1); math.Abs(got-want) > 0.01 {
		t.Errorf("random moves %v, want %v", got, want)
	}
	large, middle, small := moved("maglev"), moved("maglev(4093)"), moved("maglev(251)")
	if large > 0.02 || middle > 0.05 || small > 0.5 || large > middle || middle > small || small == 0 {
		t.Errorf("maglev moves %v with 65537 slots, %v with 4093, %v with 251", large, middle, small)
	}
}

// busy is a small cluster with all kinds of events.
func busy() *Config {
	c := &Config{
		Cluster: cluster(6, 5, 6, 2, 4),
		Workload: Workload{
			Arrivals: Arrivals{Process: mmpp, States: []State{{300, time.Second}, {900, 500 * time.Millisecond}}},
			Zipf:     1, Work: Distribution{Kind: pareto, Mean: 10 * time.Millisecond, Shape: 1.5, Max: time.Minute},
			Idle:      &Distribution{Kind: lognormal, Mean: 200 * time.Millisecond, Sigma: 1},
			RoundTrip: time.Millisecond, TimeWait: 2 * time.Second, GiveUp: time.Second,
		},
		Duration: 20 * time.Second, Warmup: time.Second,
		Events: []Event{
			{At: 2 * time.Second, Slow: &Slow{Factor: 20, For: 2 * time.Second}},
			{At: 4 * time.Second, RollingUpdate: &RollingUpdate{Lifecycle: Lifecycle{Ready: 200 * time.Millisecond, Listens: 300 * time.Millisecond, Grace: time.Second}}},
			{At: 8 * time.Second, Scale: &Scale{Lifecycle: Lifecycle{Service: "service-2", Grace: time.Second}, To: 9}},
			{At: 9 * time.Second, Scale: &Scale{Lifecycle: Lifecycle{Service: "default/service-2"}, To: 3}},
			{At: 10 * time.Second, Antagonist: &Antagonist{Nodes: 2, Factor: 3, For: time.Second}},
			{At: 12 * time.Second, Flush: &Flush{Nodes: 3}},
			{At: 13 * time.Second, Away: &Away{For: 2 * time.Second}},
			{At: 14 * time.Second, Scale: &Scale{Lifecycle: Lifecycle{Service: "service-3"}, To: 3}},
			{At: 16 * time.Second, NodeLoss: &NodeLoss{Noticed: time.Second}},
		},
	}
	c.Cluster.Propagation = &Distribution{Kind: exponential, Mean: 50 * time.Millisecond}
	c.Cluster.Services[3].SameZone = true
	c.Cluster.Services[4].Algorithm = "wrr"
	return c
}

// allAlgorithms are algorithms of all kinds.
var allAlgorithms = []string{"random", "rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "dh", "maglev", "maglev(251)", "p2c", "jsq(3)", "ewma", "eject(p2c)", "eject(maglev(251))",
	"ring", "ring-table", "hrw", "jump", "multiprobe", "bounded", "wpod(2)", "rr-random", "subset(3:lc)", "stale(100ms)", "stale(100ms:2)", "jiq", "prequal", "wrr-report(2s)"}

// TestDeterministic: the same bits again, and the same as on any other machine. GOARCH=386 and GOAMD64=v3
// compute with other instructions.
func TestDeterministic(t *testing.T) {
	h := fnv.New64a()
	for _, algorithm := range allAlgorithms {
		r := run(t, busy(), algorithm, 7)
		if again := run(t, busy(), algorithm, 7); !reflect.DeepEqual(r, again) {
			t.Errorf("%s: another result of the same run", algorithm)
		}
		if other := run(t, busy(), algorithm, 8); reflect.DeepEqual(r, other) {
			t.Errorf("%s: the same result of another seed", algorithm)
		}
		for _, times := range []*stats.Times{&r.Connect, &r.Response} {
			fmt.Fprintln(h, times.N(), times.Sum(), times.Percentile(500), times.Percentile(990), times.Percentile(999))
			*times = stats.Times{}
		}
		// Fields of features that are off here are not in the hash.
		fmt.Fprintln(h, strings.NewReplacer(" Endpoints:0", "", " Requests:<nil>", "").Replace(fmt.Sprintf("%+v", *r)))
	}
	if got, want := h.Sum64(), uint64(0xc7face10a330b456); got != want {
		t.Errorf("hash %#x, want %#x", got, want)
	}
}

// TestSameFlows: all algorithms meet the same flows.
func TestSameFlows(t *testing.T) {
	c := busy()
	c.Events = nil
	flows := func(algorithm string) (n []int) {
		for _, w := range run(t, c, algorithm, 3).Windows {
			n = append(n, w.Flows)
		}
		return n
	}
	if a, b := flows("random"), flows("lc"); !slices.Equal(a, b) {
		t.Errorf("flows in windows under random %v, under lc %v", a, b)
	}
}

// TestAccounts: every flow is answered, refused, unanswered or broken before the reply.
func TestAccounts(t *testing.T) {
	c := busy()
	for _, algorithm := range allAlgorithms {
		r := run(t, c, algorithm, 5)
		ends := r.Connect.N() + r.Refused + r.Unanswered
		if ends > r.Flows || ends < r.Flows-r.Broken {
			t.Errorf("%s: %d flows; %d answered, %d refused, %d unanswered, %d broken", algorithm, r.Flows, r.Connect.N(), r.Refused, r.Unanswered, r.Broken)
		}
	}
}

// TestLargest: each node of the largest cluster decides alone.
func TestLargest(t *testing.T) {
	if testing.Short() {
		t.Skip("needs ten seconds and a gigabyte of memory")
	}
	c := &Config{Cluster: cluster(MaxNodes, MaxServices, 2, 4, 100), Workload: exponentialWork(0.5, 100*time.Millisecond), Duration: 10 * time.Second}
	c.Workload.Arrivals = Arrivals{Process: poisson, Rate: 10_000}
	c.Events = []Event{{At: 5 * time.Second, Scale: &Scale{To: 4}}}
	if r := run(t, c, "p2c", 1); r.Flows < 90_000 || r.Refused > 0 || len(r.Changes) == 0 {
		t.Errorf("%d flows, %d refused, changes %v", r.Flows, r.Refused, r.Changes)
	}
}

// BenchmarkPowerOfTwo simulates three million flows from one node. Those of 10,000 endpoints cost more: their state is in no cache.
func BenchmarkPowerOfTwo(b *testing.B) {
	const flows = 3_000_000
	for _, endpoints := range []int{500, 10_000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			c := &Config{Cluster: cluster(1, 1, endpoints, 1, 1<<30), Workload: exponentialWork(0.9, time.Second), Duration: 2 * time.Hour}
			c.Workload.Arrivals.Flows = flows
			began := time.Now()
			for b.Loop() {
				r, err := Run(c, "p2c", 1, Options{Stopwatch: func() int64 { return int64(time.Since(began)) }})
				if err != nil || r.Flows != flows {
					b.Fatal(r.Flows)
				}
			}
			b.ReportMetric(flows*float64(b.N)/b.Elapsed().Seconds(), "flows/s")
		})
	}
}

// BenchmarkMillion simulates a million flows.
func BenchmarkMillion(b *testing.B) {
	for _, algorithm := range []string{"random", "p2c", "lc", "maglev"} {
		b.Run(algorithm, func(b *testing.B) {
			c := &Config{
				Cluster: cluster(20, 50, 10, 4, 100), Workload: exponentialWork(0.8, 10*time.Millisecond),
				Duration: 1000 * time.Second,
			}
			c.Workload.Arrivals.Flows = 1_000_000
			for b.Loop() {
				if r := run(b, c, algorithm, 1); r.Flows != 1_000_000 {
					b.Fatal(r.Flows)
				}
			}
		})
	}
}
