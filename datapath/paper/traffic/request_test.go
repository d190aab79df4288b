package traffic

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

const tenth = 100 * time.Millisecond

// near reports a value that is not the one that theory wants.
func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: %.5g, want %.5g", what, got, want)
	}
}

func share(n, of int) float64 { return float64(n) / float64(max(of, 1)) }

// TestDeadline: the time in the queue M/M/1 is exponential with the rate µ-λ, so that a share exp(-(µ-λ)D) is late if nobody stops
// late work. If it is stopped, the work in the endpoint never exceeds D: it is the content of a finite dam, whose distribution is that
// of the queue up to D (Takács, Combinatorial Methods in the Theory of Stochastic Processes, 1967), and a share of
// (1-ρ)x/(1-ρx) is late, with x = exp(-(µ-λ)D).
func TestDeadline(t *testing.T) {
	const mean = 10 * time.Millisecond
	for _, load := range []float64{0.5, 0.8} {
		for _, cancel := range []bool{false, true} {
			c := &Config{Cluster: cluster(1, 1, 1, 1, 1<<30), Workload: exponentialWork(load, mean), Duration: 5000 * time.Second, Warmup: 10 * time.Second}
			c.Workload.RoundTrip = time.Millisecond
			c.Workload.Requests = &Requests{Deadline: 3*mean + time.Millisecond, Cancel: cancel}
			r := run(t, c, "random", 1)
			want := math.Exp(-3 * (1 - load))
			if cancel {
				want *= (1 - load) / (1 - load*want)
			}
			near(t, fmt.Sprintf("load %v, cancel %v: the share of late requests", load, cancel), share(r.Requests.Late, r.Requests.N), want, 0.012)
			if last := r.Response.Percentile(1000); last > int64(c.Workload.Requests.Deadline) || r.Requests.N != r.Response.N()+r.Requests.Late {
				t.Errorf("the last response after %v, %d of %d requests have one, %d are late", time.Duration(last), r.Response.N(), r.Requests.N, r.Requests.Late)
			}
			if !cancel && math.Abs(r.Requests.Worked/float64(c.Duration)-load) > 0.02 {
				t.Errorf("load %v: the endpoint is busy for %v of the time", load, r.Requests.Worked/float64(c.Duration))
			}
		}
	}
}

// calm is a service whose endpoints have a free worker for everyone.
func calm(q *Requests) *Config {
	c := &Config{Cluster: cluster(4, 1, 20, 1000, 0), Workload: exponentialWork(0.01, tenth), Duration: 200 * time.Second, Warmup: 5 * time.Second}
	c.Workload.Requests = q
	return c
}

// TestHedge: without queues a request takes the shorter of X and d+Y, with X and Y exponential. A share exp(-µd) of requests is hedged; the
// mean is (1-exp(-µd)/2)/µ, and beyond d the rate is 2µ.
func TestHedge(t *testing.T) {
	for _, after := range []time.Duration{1, tenth, 3 * tenth} {
		for _, cancel := range []bool{false, true} {
			r := run(t, calm(&Requests{Attempts: 2, Hedge: after, Cancel: cancel}), "random", 1)
			what, p, n := fmt.Sprintf("hedge after %v, cancel %v: ", after, cancel), math.Exp(-after.Seconds()*10), float64(r.Requests.N)
			near(t, what+"share of hedged requests", float64(r.Requests.Hedges)/n, p, 0.01)
			near(t, what+"mean", r.Response.Sum()/float64(r.Response.N())/float64(tenth), 1-p/2, 0.015)
			near(t, what+"99.9th percentile", float64(r.Response.Percentile(999))/float64(tenth), after.Seconds()*10+math.Log(p/0.001)/2, 0.3)
			// The loser, one or the other, works until the winner's response, or to its end. The first one has worked longer.
			wasted := p * (1 + after.Seconds()*10) / 2
			if !cancel {
				wasted += p
			}
			near(t, what+"wasted work of a request", r.Requests.Wasted/n/float64(tenth), wasted, 0.03)
			if r.Response.N() != r.Requests.N || r.Flows != r.Requests.N+r.Requests.Hedges || r.Requests.Retries > 0 {
				t.Errorf("%s%d requests, %d responses, %d flows, %+v", what, r.Requests.N, r.Response.N(), r.Flows, *r.Requests)
			}
		}
	}
	// The same work again, on an endpoint that is no faster, helps nobody.
	r := run(t, calm(&Requests{Attempts: 2, Hedge: tenth, SameWork: true}), "random", 1)
	near(t, "the same work: mean", r.Response.Sum()/float64(r.Response.N())/float64(tenth), 1, 0.015)
}

// TestTimeout: an attempt that takes longer than its timeout fails, and the next one draws again: with the timeout D a request fails by
// n attempts with the probability exp(-nµD).
func TestTimeout(t *testing.T) {
	for attempts, want := range map[int]float64{1: math.Exp(-1), 3: math.Exp(-3)} {
		r := run(t, calm(&Requests{Attempts: attempts, Timeout: tenth, Cancel: true}), "p2c", 1)
		near(t, fmt.Sprintf("%d attempts: failed", attempts), share(r.Requests.Failed, r.Requests.N), want, 0.01)
		if last := r.Response.Percentile(1000); last > int64(attempts)*int64(tenth) {
			t.Errorf("the last response is after %v", time.Duration(last))
		}
	}
}

// halfDeaf is a service of which half of the endpoints refuse.
func halfDeaf(q *Requests) *Config {
	c := calm(q)
	c.Cluster = cluster(4, 1, 10, 1000, 0)
	c.Events = []Event{{At: 1, Scale: &Scale{Lifecycle{Listens: time.Hour}, 20}}}
	c.Workload.Arrivals = Arrivals{Process: poisson, Rate: 1000}
	return c
}

// TestRetries: if half of the endpoints refuse, a share of 2^-n of requests fails n times. A budget of b bounds the attempts to 1+b for each
// request (Beyer et al., Site Reliability Engineering, 2016, chapter 21).
func TestRetries(t *testing.T) {
	r := run(t, halfDeaf(&Requests{Attempts: 3, Backoff: &Distribution{Kind: constant, Mean: time.Millisecond}}), "random", 1)
	near(t, "failed after two retries", share(r.Requests.Failed, r.Requests.N), 1.0/8, 0.01)
	near(t, "retries of a request", share(r.Requests.Retries, r.Requests.N), 3.0/4, 0.01)
	if first := r.Connect.Percentile(1); first != 0 || r.Response.N()+r.Requests.Failed != r.Requests.N {
		t.Errorf("%d responses and %d failures of %d requests", r.Response.N(), r.Requests.Failed, r.Requests.N)
	}
	for _, budget := range []float64{0.1, 0.2} {
		r := run(t, halfDeaf(&Requests{Attempts: 5, Budget: budget}), "random", 1)
		if got := share(r.Requests.Retries, r.Requests.N); got > budget*1.01 || got < budget*0.95 {
			t.Errorf("a budget of %v: %v retries for each request", budget, got)
		}
		// Each retry succeeds half of the time.
		near(t, "failed", share(r.Requests.Failed, r.Requests.N), 0.5-budget/2, 0.01)
	}
	// Refusals under overload: what is late too often is sent again only as far as the budget allows.
	c := &Config{Cluster: cluster(2, 1, 5, 1, 2), Workload: exponentialWork(3, 10*time.Millisecond), Duration: 100 * time.Second}
	c.Workload.Requests = &Requests{Attempts: 4, Budget: 0.15}
	with := run(t, c, "p2c", 1)
	c.Workload.Requests.Budget = 0
	without := run(t, c, "p2c", 1)
	if a, b := share(with.Flows, with.Requests.N), share(without.Flows, without.Requests.N); a > 1.15 || b < 2.5 {
		t.Errorf("attempts of a request in an overload: %v with a budget of 0.15, %v without", a, b)
	}
}

// TestKeepAlive: connections are spread at random, with all their requests. Of N connections with a number K of requests each, to n endpoints,
// the squared coefficient of variation of the endpoints' requests is n/N·E[K²]/E[K]² (1-1/n for the fixed total), and Jain's index 1/(1+that).
func TestKeepAlive(t *testing.T) {
	const n = 20
	for _, tt := range []struct {
		d      *Count
		second float64 // E[K²]/E[K]²
	}{
		{nil, 1}, {&Count{Kind: constant, Mean: 50}, 1}, {&Count{Kind: geometric, Mean: 50}, 2 - 1.0/50}, {&Count{Kind: empirical, Values: []int{1, 99}}, (1 + 99*99) / 2.0 / 2500},
	} {
		unequal, connections := 0.0, 0.0
		for seed := range uint64(10) {
			c := calm(&Requests{PerConnection: tt.d})
			if tt.d != nil {
				c.Workload.Requests.Think = &Distribution{Kind: exponential, Mean: time.Millisecond}
			}
			c.Workload.Work.Mean = time.Millisecond
			c.Workload.Arrivals = Arrivals{Process: poisson, Rate: 2000 / tt.d.average()}
			c.Duration = 20 * time.Second
			r := run(t, c, "random", seed)
			unequal += (1/r.Requests.Jain - 1) / 10
			connections += float64(r.Flows) / 10
			if got := float64(r.Requests.N) / float64(r.Flows); math.Abs(got/tt.d.average()-1) > 0.25 || r.Response.N() != r.Requests.N {
				t.Errorf("%+v: %v requests on a connection, %d responses of %d", tt.d, got, r.Response.N(), r.Requests.N)
			}
		}
		want := (n - 1) / connections * tt.second
		if unequal < want*0.6 || unequal > want*1.6 {
			t.Errorf("%+v: the squared coefficient of variation is %v, want about %v", tt.d, unequal, want)
		}
	}
}

// TestKeptConnection: requests follow each other on one connection, which only counts once for the balancer, and then it is idle.
func TestKeptConnection(t *testing.T) {
	second := &Distribution{Kind: constant, Mean: time.Second}
	c := &Config{
		Cluster:  cluster(1, 1, 2, 1, 0),
		Workload: Workload{Arrivals: Arrivals{Process: traced, Trace: []Traced{{0, -1, -1}, {time.Millisecond, -1, -1}}}, Work: *second, Idle: second, RoundTrip: tenth},
		Duration: 5 * time.Second, Window: tenth,
	}
	c.Workload.Requests = &Requests{PerConnection: &Count{Kind: constant, Mean: 3}, Think: &Distribution{Kind: constant, Mean: tenth / 2}}
	r := run(t, c, "lc", 1)
	if r.Flows != 2 || r.Requests.N != 6 || r.Response.N() != 6 || r.Connect.N() != 2 {
		t.Errorf("%d flows, %d requests, %d responses, %d first replies", r.Flows, r.Requests.N, r.Response.N(), r.Connect.N())
	}
	if first, last := r.Response.Percentile(1), r.Response.Percentile(1000); first != last || first != int64(11*tenth) {
		t.Errorf("responses after %v to %v", time.Duration(first), time.Duration(last))
	}
	var open []int
	for _, w := range r.Windows {
		open = append(open, w.Open)
	}
	// Three times the work, twice the round trip and the time to think, and the idle time are 4.3 s; the second one begins 1 ms later.
	if end := slices.Index(open, 0); end != 43 {
		t.Errorf("the last connection ends in window %d: %v", end, open)
	}
	// A connection that breaks is replaced by the next request, and a request that was under way fails.
	c.Cluster = cluster(2, 1, 2, 1, 10)
	c.Workload.RoundTrip = 0
	c.Events = []Event{{At: 1025 * time.Millisecond, Scale: &Scale{To: 1}}}
	if r := run(t, c, "lc", 1); r.Flows != 3 || r.Requests.N != 6 || r.Requests.Failed != 0 || r.Broken != 1 {
		t.Errorf("%d flows, %d requests, %d failed, %d broken", r.Flows, r.Requests.N, r.Requests.Failed, r.Broken)
	}
	c.Events[0].At = 500 * time.Millisecond
	if r := run(t, c, "lc", 1); r.Flows != 3 || r.Requests.N != 6 || r.Requests.Failed != 1 || r.Broken != 1 {
		t.Errorf("%d flows, %d requests, %d failed, %d broken", r.Flows, r.Requests.N, r.Requests.Failed, r.Broken)
	}
}

// busyRequests is [busy] with everything that clients do.
func busyRequests(cancel bool) *Config {
	c := busy()
	c.Workload.Requests = &Requests{
		PerConnection: &Count{Kind: geometric, Mean: 4}, Think: &Distribution{Kind: exponential, Mean: 50 * time.Millisecond},
		Deadline: 100 * time.Millisecond, Attempts: 4, Timeout: 80 * time.Millisecond, Hedge: 40 * time.Millisecond, Budget: 0.5,
		Backoff: &Distribution{Kind: uniform, Mean: 5 * time.Millisecond}, Cancel: cancel,
	}
	for i := range c.Workload.Arrivals.States {
		c.Workload.Arrivals.States[i].Rate /= 4
	}
	return c
}

// TestRequestsDeterministic: the same bits on all machines, by the whole decision, and if algorithms are told everything. Nothing is left
// at the end.
func TestRequestsDeterministic(t *testing.T) {
	h := fnv.New64a()
	for _, algorithm := range append([]string{"p2c" + SecondChance, "eject(lc)" + SecondChance}, allAlgorithms...) {
		c := busyRequests(algorithm != "random")
		want := run(t, c, algorithm, 7)
		s := newSimulation(c, 7, Options{Stopwatch: func() int64 { return 0 }})
		s.trackAll, s.measured = true, 1
		if err := s.simulate(algorithm); err != nil {
			t.Fatal(err)
		}
		s.result.Costs = stats.Times{}
		if !reflect.DeepEqual(&s.result, want) {
			t.Errorf("%s: another result", algorithm)
		}
		for id := range s.connections {
			if s.connections[id].phase != free {
				t.Fatalf("%s: connection %d is left", algorithm, id)
			}
		}
		if len(s.sessions.unused) != len(s.sessions.all) {
			t.Errorf("%s: %d of %d clients have ended", algorithm, len(s.sessions.unused), len(s.sessions.all))
		}
		fmt.Fprintln(h, want.Response.N(), want.Response.Sum(), want.Response.Percentile(999), want.Flows, want.Refused, want.Unanswered, want.Broken, *want.Requests)
	}
	if got, want := h.Sum64(), uint64(0xf6f71bf6b03a0597); got != want {
		t.Errorf("hash %#x, want %#x", got, want)
	}
}

// TestRequestAccounts: every request has a response, is late or fails.
func TestRequestAccounts(t *testing.T) {
	c := busyRequests(true)
	c.Events = c.Events[:len(c.Events)-1] // clients of lost nodes are gone
	late := 0
	for _, algorithm := range append([]string{"lc" + SecondChance}, allAlgorithms...) {
		r := run(t, c, algorithm, 5)
		q := r.Requests
		if q.N != r.Response.N()+q.Late+q.Failed || q.Hedges == 0 || q.Retries == 0 || q.Wasted <= 0 || q.Wasted >= q.Worked {
			t.Errorf("%s: %d responses, %+v", algorithm, r.Response.N(), *q)
		}
		late += q.Late
	}
	if late == 0 {
		t.Error("no request is late")
	}
}

// TestRequestMemory: it does not depend on the number of requests.
func TestRequestMemory(t *testing.T) {
	with := func(flows int) int {
		c := &Config{Cluster: cluster(2, 1, 20, 1, 100), Workload: exponentialWork(0.6, time.Millisecond), Duration: time.Hour, Window: time.Hour}
		c.Workload.Arrivals.Flows = flows
		c.Workload.Requests = &Requests{PerConnection: &Count{Kind: geometric, Mean: 5}, Deadline: 20 * time.Millisecond, Attempts: 3, Timeout: 10 * time.Millisecond, Hedge: 3 * time.Millisecond, Budget: 0.2}
		return allocated(t, c)
	}
	few, many := with(10_000), with(110_000)
	if more := many - few; more > 500_000 {
		t.Errorf("half a million more requests cost %d bytes", more)
	}
	if size := unsafe.Sizeof(connection{}); size != 64 {
		t.Errorf("a connection has %d bytes, and a cache line 64", size)
	}
}

// randomRequests is [busy] with some of what clients do, and endpoints that come and go with the load. Without a lost node, no client is lost.
func randomRequests(r *rand.Rand) (c *Config, lost bool) {
	c = busy()
	c.Duration /= 2
	some := func() bool { return r.IntN(2) == 0 }
	within := func(d time.Duration) time.Duration {
		return c.Workload.RoundTrip + 1 + time.Duration(r.Int64N(int64(d)))
	}
	q := &Requests{Attempts: 2 + r.IntN(MaxAttempts-1), Cancel: some(), SameWork: some()}
	if some() {
		q.PerConnection, q.Think = &Count{Kind: geometric, Mean: 1 + r.Float64()*9}, &Distribution{Kind: exponential, Mean: within(tenth)}
	}
	for _, d := range []*time.Duration{&q.Deadline, &q.Timeout, &q.Hedge} {
		if some() {
			*d = within(3 * tenth)
		}
	}
	if some() {
		q.Budget, q.Backoff = r.Float64(), &Distribution{Kind: exponential, Mean: within(tenth)}
	}
	if some() {
		c.Workload.Accept, c.Workload.Idle = ByKernel, nil
	}
	for i := range c.Events {
		c.Events[i].At /= 2
	}
	if lost = some(); !lost {
		c.Events = c.Events[:len(c.Events)-1]
	}
	c.Events = append(c.Events, Event{At: time.Second, Autoscale: &Autoscale{Lifecycle: Lifecycle{Service: "service-4", Ready: tenth}, Target: 0.3, Max: 30, Interval: time.Second}})
	c.Workload.Requests = q
	return c, lost
}

// TestRandomRequests: whatever clients do, everything has ended in the end, and every request is accounted for.
func TestRandomRequests(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		c, lost := randomRequests(r)
		if problems := c.Validate(); len(problems) > 0 {
			t.Fatal(problems)
		}
		algorithm := allAlgorithms[r.IntN(len(allAlgorithms))]
		if r.IntN(3) == 0 {
			algorithm += SecondChance
		}
		s := newSimulation(c, seed, Options{})
		if err := s.simulate(algorithm); err != nil {
			t.Fatal(err)
		}
		fail := func(format string, args ...any) {
			t.Errorf("seed %d, %s, %+v: %s", seed, algorithm, *c.Workload.Requests, fmt.Sprintf(format, args...))
		}
		for id := range s.connections {
			if s.connections[id].phase != free {
				fail("connection %d is left", id)
			}
		}
		for id := range s.servers {
			if e := &s.servers[id]; e.busy != 0 || e.open() != 0 {
				fail("%d workers of server %d are busy, and it has %d connections", e.busy, id, e.open())
			}
		}
		if slices.Sort(s.sessions.unused); len(s.sessions.unused) != len(s.sessions.all) || len(slices.Compact(s.sessions.unused)) != len(s.sessions.all) {
			fail("%d of %d clients have ended", len(s.sessions.unused), len(s.sessions.all))
		}
		q := s.result.Requests
		if sum := s.result.Response.N() + q.Late + q.Failed; sum > q.N || sum < q.N && !lost || q.Wasted > q.Worked {
			fail("%d responses, %+v", s.result.Response.N(), *q)
		}
	}
}
