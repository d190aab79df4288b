package traffic

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// quiet is a service that is not busy.
func quiet(events ...Event) *Config {
	return &Config{
		Cluster: cluster(10, 1, 10, 4, 100), Workload: exponentialWork(0.2, 10*time.Millisecond),
		Duration: 20 * time.Second, Window: time.Second, Events: events,
	}
}

// TestRollingUpdate: nothing is lost if endpoints accept connections until all nodes have the table, and
// until connections have ended; otherwise there are refused, broken and unanswered ones.
func TestRollingUpdate(t *testing.T) {
	update := func(l Lifecycle) Event {
		return Event{At: 2 * time.Second, RollingUpdate: &RollingUpdate{l, time.Second}}
	}
	slow := &Distribution{Kind: uniform, Mean: 200 * time.Millisecond}
	for _, tt := range []struct {
		name                        string
		life                        Lifecycle
		refused, broken, unanswered bool
	}{
		{"graceful", Lifecycle{Ready: time.Second, PreStop: time.Second, Grace: 5 * time.Second}, false, false, false},
		{"no preStop", Lifecycle{Ready: time.Second, Grace: 5 * time.Second}, true, false, false},
		{"probe too early", Lifecycle{Ready: time.Second, Listens: time.Second, PreStop: time.Second, Grace: 5 * time.Second}, true, false, false},
		{"no grace", Lifecycle{Ready: time.Second}, false, true, true},
	} {
		c := quiet(update(tt.life))
		c.Cluster.Propagation = slow
		r := run(t, c, "random", 1)
		if r.Refused > 0 != tt.refused || r.Broken > 0 != tt.broken || r.Unanswered > 0 != tt.unanswered {
			t.Errorf("%s: %d refused, %d broken, %d unanswered", tt.name, r.Refused, r.Broken, r.Unanswered)
		}
		if len(r.Changes) != 10 {
			t.Errorf("%s: %d changes, want one for each endpoint", tt.name, len(r.Changes))
		}
	}
}

// TestEjectInUpdate: ejection avoids endpoints that are ready too early.
func TestEjectInUpdate(t *testing.T) {
	c := quiet(Event{At: 2 * time.Second, RollingUpdate: &RollingUpdate{Lifecycle{Listens: 2 * time.Second, PreStop: time.Second, Grace: time.Second}, 2500 * time.Millisecond}})
	c.Duration = 40 * time.Second
	without, with := run(t, c, "random", 1).Refused, run(t, c, "eject(random)", 1).Refused
	if without < 100 || with > without/2 {
		t.Errorf("refused under random: %d, under eject(random): %d", without, with)
	}
}

// TestAway: while the API server is away, nodes keep the endpoints that they have.
func TestAway(t *testing.T) {
	c := quiet(Event{At: time.Second, Away: &Away{For: 10 * time.Second}}, Event{At: 2 * time.Second, Scale: &Scale{To: 5}})
	r := run(t, c, "random", 1)
	for _, w := range r.Windows {
		away := w.End > 3*time.Second && w.End <= 11*time.Second
		late := w.End > 16*time.Second // after the time for which clients wait
		if away && w.Unanswered == 0 && w.End > 6*time.Second || late && w.Unanswered > 0 {
			t.Errorf("at %v: %d unanswered", w.End, w.Unanswered)
		}
	}
}

func TestNodeLoss(t *testing.T) {
	c := quiet(Event{At: 5 * time.Second, NodeLoss: &NodeLoss{Nodes: 2, Noticed: 5 * time.Second}})
	r := run(t, c, "random", 1)
	before, between, after := r.Windows[3], r.Windows[9], r.Windows[15]
	if got := float64(after.Flows) / float64(before.Flows); math.Abs(got-0.8) > 0.06 {
		t.Errorf("the flows are %v of those before, want 0.8: those of the other nodes", got)
	}
	if got := float64(between.Unanswered) / float64(between.Flows); math.Abs(got-0.2) > 0.06 || before.Unanswered > 0 || after.Unanswered > 0 {
		t.Errorf("unanswered: %d before, a share of %v until it is noticed, %d afterwards", before.Unanswered, got, after.Unanswered)
	}
}

// TestFlush: after a flush, connections go where their hash points to, which has not changed under maglev.
func TestFlush(t *testing.T) {
	c := quiet(Event{At: 10 * time.Second, Flush: new(Flush)})
	c.Workload.Idle = &Distribution{Kind: constant, Mean: time.Second}
	r := run(t, c, "random", 1)
	if got := float64(r.Broken) / float64(r.Windows[9].Open); math.Abs(got-0.9) > 0.05 || r.Remapped != r.Broken {
		t.Errorf("random: a share of %v broke, %d remapped of %d; want 0.9, and all", got, r.Remapped, r.Broken)
	}
	if r := run(t, c, "maglev", 1); r.Broken != 0 || r.Windows[10].Open < 700 {
		t.Errorf("maglev: %d broke, %d open", r.Broken, r.Windows[10].Open)
	}
	c.Events[0].Flush.Nodes = 5
	if got := run(t, c, "random", 1).Broken; math.Abs(float64(got)/float64(r.Broken)-0.5) > 0.1 {
		t.Errorf("%d broke on 5 of 10 nodes, %d on all", got, r.Broken)
	}
}

func TestSlow(t *testing.T) {
	for name, e := range map[string]Event{
		"slow":       {At: 5 * time.Second, Slow: &Slow{Factor: 30, For: 5 * time.Second}},
		"antagonist": {At: 5 * time.Second, Antagonist: &Antagonist{Factor: 30, For: 5 * time.Second}},
	} {
		c := quiet(e)
		r := run(t, c, "random", 1)
		if before, in, after := r.Windows[3].MaxOverMean, r.Windows[8].MaxOverMean, r.Windows[19].MaxOverMean; in < 5 || before > 5 || after > 5 {
			t.Errorf("%s: max/mean is %v before, %v meanwhile, %v afterwards", name, before, in, after)
		}
		if r, l := r.MaxOverMean, run(t, c, "lc", 1).MaxOverMean; l > r {
			t.Errorf("%s: max/mean is %v under lc, %v under random", name, l, r)
		}
	}
}

// TestSameZone: flows stay in their zone, so that zones with fewer endpoints have more load.
func TestSameZone(t *testing.T) {
	c := quiet()
	c.Cluster.Nodes = c.Cluster.Nodes[:4] // zones 1, 2, 3 and 1 again
	for i := range c.Cluster.Services[0].Endpoints {
		c.Cluster.Services[0].Endpoints[i].Node = i % 4 // 3, 3, 2 and 2: 5 in zone 1, 3 in zone 2, 2 in zone 3
	}
	c.Cluster.Services[0].SameZone = true
	// Half of the flows for 5 endpoints, a quarter for 3 and a quarter for 2: 1/8 is the largest share.
	if got := run(t, c, "rr", 1).FlowsMaxOverMean; math.Abs(got-1.25) > 0.05 {
		t.Errorf("max/mean of the flows is %v, want 1.25", got)
	}
}

func TestWeights(t *testing.T) {
	c := quiet()
	for i := range c.Cluster.Services[0].Endpoints {
		c.Cluster.Services[0].Endpoints[i].Weight = uint16(1 + i%2*2) // 1 and 3
	}
	if got := run(t, c, "wrr", 1).FlowsJain; got < 0.999 {
		t.Errorf("wrr: Jain's index in proportion to the weights is %v", got)
	}
	if got := run(t, c, "rr", 1).FlowsJain; math.Abs(got-0.8) > 0.01 { // loads 1 and 1/3
		t.Errorf("rr: Jain's index in proportion to the weights is %v, want 0.8", got)
	}
}

// TestNoWeights: if all weights are 0, all endpoints get flows, and their loads are compared as if the weights were equal.
func TestNoWeights(t *testing.T) {
	c := quiet()
	one := run(t, c, "random", 1)
	for i := range c.Cluster.Services[0].Endpoints {
		c.Cluster.Services[0].Endpoints[i].Weight = 0
	}
	none := run(t, c, "random", 1)
	if none.FlowsJain != one.FlowsJain || none.FlowsJain >= 1 || none.FlowsMaxOverMean != one.FlowsMaxOverMean || none.Jain != one.Jain {
		t.Errorf("without weights: Jain's index of flows is %v, max/mean %v, Jain's index of connections %v; with equal ones %v, %v, %v",
			none.FlowsJain, none.FlowsMaxOverMean, none.Jain, one.FlowsJain, one.FlowsMaxOverMean, one.Jain)
	}
	// An endpoint of weight 0 beside others gets no flows, and does not count.
	c.Cluster.Services[0].Endpoints[0].Weight, c.Cluster.Services[0].Endpoints[1].Weight = 2, 2
	if got := run(t, c, "wrr", 1).FlowsJain; got < 0.999 {
		t.Errorf("two endpoints with the same weight, the others with weight 0: Jain's index %v", got)
	}
}

// TestBacklog: an endpoint refuses what is more than its workers and its backlog, and the kernel answers
// before a worker does.
func TestBacklog(t *testing.T) {
	c := &Config{
		Cluster:  cluster(1, 1, 1, 2, 3),
		Workload: Workload{Arrivals: Arrivals{Process: deterministic, Rate: 1000, Flows: 10}, Work: Distribution{Kind: constant, Mean: time.Second}, RoundTrip: time.Millisecond},
		Duration: time.Second,
	}
	r := run(t, c, "random", 1)
	if r.Refused != 5 || r.Response.N() != 5 || time.Duration(r.Response.Percentile(1000)) != 3*time.Second-4*time.Millisecond+time.Millisecond {
		t.Errorf("%d refused, %d response times", r.Refused, r.Response.N())
	}
	if got := time.Duration(r.Connect.Percentile(1000)); got != 2*time.Second-4*time.Millisecond+time.Millisecond {
		t.Errorf("the last connection is answered after %v", got)
	}
	c.Workload.Accept = ByKernel
	if r = run(t, c, "random", 1); time.Duration(r.Connect.Percentile(1000)) != time.Millisecond || r.Refused != 5 {
		t.Errorf("kernel: answered after %v, %d refused", time.Duration(r.Connect.Percentile(1000)), r.Refused)
	}
}

// TestInactive: entries of closed connections count until TimeWait is over.
func TestInactive(t *testing.T) {
	c := quiet()
	c.Cluster = cluster(1, 1, 2, 4, 100)
	c.Workload.Arrivals = Arrivals{Process: deterministic, Rate: 1}
	c.Workload.Work = Distribution{Kind: constant, Mean: time.Millisecond}
	if got := run(t, c, "lc", 1).FlowsMaxOverMean; got > 1.1 { // the one with fewer closed ones is next
		t.Errorf("120 seconds: max/mean of flows is %v", got)
	}
	c.Workload.TimeWait = time.Millisecond
	if got := run(t, c, "lc", 1).FlowsMaxOverMean; got != 2 { // always the first
		t.Errorf("1 millisecond: max/mean of flows is %v", got)
	}
}

// TestDistributions: means, and the tails that make the difference.
func TestDistributions(t *testing.T) {
	const mean = float64(10 * time.Millisecond)
	for _, tt := range []struct {
		d        Distribution
		mean     float64
		deviates float64 // standard deviation
		p99      float64
	}{
		{Distribution{Kind: constant, Mean: time.Duration(mean)}, mean, 0, mean},
		{Distribution{Kind: uniform, Mean: time.Duration(mean)}, mean, mean / math.Sqrt(3), 1.98 * mean},
		{Distribution{Kind: exponential, Mean: time.Duration(mean)}, mean, mean, mean * math.Log(100)},
		{Distribution{Kind: pareto, Mean: time.Duration(mean), Shape: 3}, mean, mean / math.Sqrt(3), mean * 2 / 3 * math.Pow(100, 1.0/3)},
		{Distribution{Kind: lognormal, Mean: time.Duration(mean), Sigma: 1}, mean, mean * math.Sqrt(math.E-1), mean * math.Exp(2.3263-0.5)},
		{Distribution{Kind: empirical, Values: []time.Duration{0, time.Duration(2 * mean)}}, mean, mean, 2 * mean},
	} {
		r := stream(1, tt.d.Kind, 0)
		const n = 400_000
		draws, sum, squares := make([]float64, n), 0.0, 0.0
		for i := range draws {
			draws[i] = float64(tt.d.draw(r))
			sum += draws[i]
			squares += (draws[i] - tt.mean) * (draws[i] - tt.mean)
		}
		slices.Sort(draws)
		if got := sum / n; math.Abs(got/tt.mean-1) > 0.01 {
			t.Errorf("%s: the mean is %v, want %v", tt.d.Kind, got, tt.mean)
		}
		if got := math.Sqrt(squares / n); math.Abs(got-tt.deviates) > 0.06*mean {
			t.Errorf("%s: the standard deviation is %v, want %v", tt.d.Kind, got, tt.deviates)
		}
		if got := draws[n*99/100]; math.Abs(got/tt.p99-1) > 0.02 {
			t.Errorf("%s: the 99th percentile is %v, want %v", tt.d.Kind, got, tt.p99)
		}
		tt.d.Max = time.Millisecond
		if got := tt.d.draw(r); got > int64(time.Millisecond) {
			t.Errorf("%s: %v above the maximum", tt.d.Kind, got)
		}
	}
}

func TestArrivals(t *testing.T) {
	count := func(a Arrivals) (n int, last int64) {
		made := newArrivals(&Config{Workload: Workload{Arrivals: a}, Duration: 1000 * time.Second}, stream(1, "arrivals", 0))
		for {
			at, _ := made.next()
			if at >= int64(1000*time.Second) {
				return n, last
			}
			n, last = n+1, at
		}
	}
	for name, a := range map[string]Arrivals{
		"poisson":       {Process: poisson, Rate: 300},
		"deterministic": {Process: deterministic, Rate: 300},
		"profile":       {Process: profile, Counts: []float64{0, 1200, 0}, Step: 2 * time.Second, Rate: 300},
		"counts":        {Process: profile, Counts: []float64{0, 60}, Step: 100 * time.Millisecond},
		"mmpp":          {Process: mmpp, States: []State{{0, time.Second / 4}, {600, time.Second / 4}}},
	} {
		if n, _ := count(a); math.Abs(float64(n)/300_000-1) > 0.03 {
			t.Errorf("%s: %d flows in 1000 s, want about 300,000", name, n)
		}
	}
	if n, _ := count(Arrivals{Process: mmpp, States: []State{{1e-300, time.Second}}}); n != 0 {
		t.Errorf("%d flows at a rate of almost 0", n)
	}
	if n, last := count(Arrivals{Process: deterministic, Rate: 300, Flows: 4}); n != 4 || last != int64(time.Second*4/300) {
		t.Errorf("%d flows, the last at %v", n, time.Duration(last))
	}
	if n, last := count(Arrivals{Process: traced, Trace: []Traced{{At: 1}, {At: 5}}}); n != 2 || last != 5 {
		t.Errorf("trace: %d flows, the last at %v", n, last)
	}
}

// TestProfile: each step has as many flows as it should, in proportion to the mean rate, and they are a Poisson process; after the last
// step it begins again.
func TestProfile(t *testing.T) {
	c := &Config{Cluster: cluster(1, 1, 10, 10, 100), Workload: exponentialWork(0.5, time.Millisecond), Duration: 80 * time.Second} // 100,000 flows per second at most
	c.Workload.Arrivals = Arrivals{Process: profile, Counts: []float64{1, 0, 3, 4}, Step: time.Second, Load: 0.5}
	a := newArrivals(c, stream(1, "arrivals", 0))
	var in [80]float64
	for at, _ := a.next(); at < int64(len(in))*int64(time.Second); at, _ = a.next() {
		in[at/int64(time.Second)]++
	}
	dispersion := 0.0
	for i, n := range in {
		want := c.Workload.Arrivals.Counts[i%4] * 50_000 / 2
		if math.Abs(n-want) > 5*math.Sqrt(want) {
			t.Errorf("%v flows in second %d, want %v", n, i, want)
		}
		if want > 0 {
			dispersion += (n - want) * (n - want) / want / 60
		}
	}
	if dispersion < 0.5 || dispersion > 1.6 {
		t.Errorf("the variance of the numbers is %v of that of a Poisson process", dispersion)
	}
}

// TestZipf: the k-th of n services gets 1/k of the first one's flows.
func TestZipf(t *testing.T) {
	z, r := newZipf(100, 1), stream(1, "zipf", 0)
	counts := make([]int, 100)
	for range 1_000_000 {
		counts[z.draw(r)]++
	}
	for k, n := range counts {
		if want := 1e6 / 5.18738 / float64(k+1); math.Abs(float64(n)-want) > 5*math.Sqrt(want) {
			t.Errorf("service %d: %d flows, want %.0f", k+1, n, want)
		}
	}
}

func TestTrace(t *testing.T) {
	c := quiet()
	c.Cluster = cluster(1, 2, 1, 1, 0)
	c.Workload.Arrivals = Arrivals{Process: traced, Trace: []Traced{{0, 1, 3 * time.Second}, {time.Second, 1, -1}, {time.Second, 0, time.Second}}}
	if r := run(t, c, "random", 1); r.Flows != 3 || r.Refused != 1 || r.Response.Percentile(1000) != int64(3*time.Second) {
		t.Errorf("%d flows, %d refused, the longest response time %v", r.Flows, r.Refused, time.Duration(r.Response.Percentile(1000)))
	}
}

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		want   string
		change func(c *Config)
	}{
		{"duration: want a time from", func(c *Config) { c.Duration = 0 }},
		{"warmup: want a time below", func(c *Config) { c.Warmup = c.Duration }},
		{"window: want at most", func(c *Config) { c.Window = 1 }},
		{"cluster.nodes: want 1 to 5000 nodes, not 0", func(c *Config) { c.Cluster = Cluster{} }},
		{"cluster.services[0]: want a concurrency", func(c *Config) { c.Cluster.Services[0].Concurrency = 0 }},
		{"cluster.services[0]: endpoint", func(c *Config) { c.Cluster.Services[0].Endpoints[0].Node = 10 }},
		{"workload.arrivals.process: want one of poisson", func(c *Config) { c.Workload.Arrivals.Process = "x" }},
		{"workload.arrivals.process: missing", func(c *Config) { c.Workload.Arrivals.Process = "" }},
		{"workload.arrivals.rate: rate and load cannot be used together", func(c *Config) { c.Workload.Arrivals.Rate = 1 }},
		{"workload.arrivals.rate: want flows per second", func(c *Config) { c.Workload.Arrivals.Load = 0 }},
		{"workload.arrivals.counts: missing", func(c *Config) { c.Workload.Arrivals = Arrivals{Process: profile, Counts: []float64{0}} }},
		{"workload.arrivals.counts: only profile", func(c *Config) { c.Workload.Arrivals.Counts = []float64{1} }},
		{"workload.arrivals.counts[1]: want a number", func(c *Config) { c.Workload.Arrivals = Arrivals{Process: profile, Counts: []float64{1, -1}} }},
		{"workload.arrivals.states: want states", func(c *Config) { c.Workload.Arrivals = Arrivals{Process: mmpp} }},
		{"workload.arrivals.file: missing", func(c *Config) { c.Workload.Arrivals = Arrivals{Process: traced} }},
		{"workload.arrivals.file: flow 2 is before", func(c *Config) {
			c.Workload.Arrivals = Arrivals{Process: traced, Trace: []Traced{{At: 2}, {At: 1}}}
		}},
		{"workload.zipf: want a number from 0 to 10", func(c *Config) { c.Workload.Zipf = math.NaN() }},
		{"workload.clients.perNode: want", func(c *Config) { c.Workload.Clients.PerNode = 1 << 20 }},
		{"workload.work.shape: want a number above 1", func(c *Config) { c.Workload.Work = Distribution{Kind: pareto, Mean: 1, Shape: 1} }},
		{"workload.work.sigma: only lognormal", func(c *Config) { c.Workload.Work.Sigma = 1 }},
		{"workload.work.mean: missing", func(c *Config) { c.Workload.Work.Mean = 0 }},
		{"workload.idle.values: missing", func(c *Config) { c.Workload.Idle = &Distribution{Kind: empirical} }},
		{"workload.accept: want one of worker, kernel", func(c *Config) { c.Workload.Accept = "x" }},
		{"events[0]: want one of scale", func(c *Config) { c.Events = []Event{{}} }},
		{"events[0].at: want a time below", func(c *Config) { c.Events = []Event{{At: time.Hour, Flush: new(Flush)}} }},
		{`events[0].scale.service: the cluster has no service "x"`, func(c *Config) { c.Events = []Event{{Scale: &Scale{Lifecycle: Lifecycle{Service: "x"}}}} }},
		{"events[0].rollingUpdate.preStop: want at most", func(c *Config) {
			c.Events = []Event{{RollingUpdate: &RollingUpdate{Lifecycle: Lifecycle{PreStop: 1}}}}
		}},
		{"events[0].slow.factor: want a number above 0", func(c *Config) { c.Events = []Event{{Slow: &Slow{}}} }},
		{"events[0].nodeLoss.nodes: want a number from 0 to 10", func(c *Config) { c.Events = []Event{{NodeLoss: &NodeLoss{Nodes: 11}}} }},
		{"events[0].apiServerAway.for: want a time from", func(c *Config) { c.Events = []Event{{Away: &Away{}}} }},
	} {
		c := quiet()
		tt.change(c)
		problems := c.Validate()
		if !slices.ContainsFunc(problems, func(p Problem) bool { return strings.HasPrefix(p.Field+": "+p.Text, tt.want) }) {
			t.Errorf("want %q, got %q", tt.want, problems)
		}
		if _, err := Run(c, "random", 1, Options{}); err == nil {
			t.Errorf("%s: it runs", tt.want)
		}
	}
	if problems := busy().Validate(); len(problems) > 0 {
		t.Errorf("a valid config has problems: %q", problems)
	}
	if _, err := Run(quiet(), "best", 1, Options{}); err == nil || !strings.Contains(err.Error(), `"best"`) {
		t.Errorf("an unknown algorithm: %v", err)
	}
}

// TestStop: a run that is stopped ends with an error.
func TestStop(t *testing.T) {
	calls := 0
	c := quiet()
	c.Workload.Arrivals, c.Window = Arrivals{Process: poisson, Rate: 1e6}, c.Duration
	before := time.Duration(-1)
	if _, err := Run(c, "random", 1, Options{Progress: func(at time.Duration) bool { before = at; return false }}); !errors.Is(err, ErrStopped) || before >= c.Duration {
		t.Errorf("a run whose first window has many flows stops at %s of %s: %v", before, c.Duration, err)
	}
	if _, err := Run(quiet(), "random", 1, Options{Progress: func(time.Duration) bool { calls++; return calls < 3 }}); !errors.Is(err, ErrStopped) || calls != 3 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

// TestStopwatch: it measures decisions, and changes nothing else.
func TestStopwatch(t *testing.T) {
	now := int64(0)
	r, err := Run(quiet(), "random", 1, Options{Stopwatch: func() int64 { now += 5; return now }})
	if err != nil || r.Costs.N() < 1000 || r.Costs.Percentile(500) != 5 {
		t.Fatalf("%v, %d costs", err, r.Costs.N())
	}
	r.Costs = stats.Times{}
	if want := run(t, quiet(), "random", 1); want.Connect.N() != r.Connect.N() || want.Jain != r.Jain {
		t.Error("another result with a stopwatch")
	}
}
