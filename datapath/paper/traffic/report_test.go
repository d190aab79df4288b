package traffic_test

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/datapath/paper/traffic"
)

func meanOf(times *stats.Times) float64 { return times.Sum() / float64(times.N()) / 1e9 }

// many is one service with endpoints of one worker each, and exponential work of a second.
func many(nodes, endpoints int, load float64) *traffic.Config {
	c := &traffic.Config{Duration: 300 * time.Second, Warmup: 60 * time.Second}
	c.Cluster.Nodes = traffic.Generate(nodes, 1)
	s := traffic.Service{Namespace: "default", Name: "web", ClusterIP: traffic.ServiceAddr(0), Port: 80, Concurrency: 1, Backlog: 1 << 20}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, traffic.Endpoint{AddrPort: traffic.EndpointAddr(i), Node: i % nodes, Weight: 1})
	}
	c.Cluster.Services = []traffic.Service{s}
	c.Workload = traffic.Workload{
		Arrivals: traffic.Arrivals{Process: "poisson", Load: load}, Work: traffic.Distribution{Kind: "exponential", Mean: time.Second}, GiveUp: time.Hour, TimeWait: 1,
	}
	return c
}

func run(t *testing.T, c *traffic.Config, algorithm string) *traffic.Result {
	t.Helper()
	r, err := traffic.Run(c, algorithm, 1, traffic.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestIdleQueues: the mean response time of JIQ-Random by theorems 1 and 2 of Lu et al. (2011) for exponential work: a share p of the
// queues has an endpoint, p/(1-p) = r(1-load) with r endpoints for each node, and the time is 1/(1-load(1-p)).
func TestIdleQueues(t *testing.T) {
	for _, tt := range []struct {
		nodes, endpoints int
		load             float64
	}{{40, 400, 0.9}, {100, 400, 0.5}} {
		r := run(t, many(tt.nodes, tt.endpoints, tt.load), "jiq")
		x := float64(tt.endpoints) / float64(tt.nodes) * (1 - tt.load)
		want := 1 / (1 - tt.load/(1+x))
		if got := meanOf(&r.Response); math.Abs(got-want) > 0.05*want {
			t.Errorf("%+v: mean %.3f s, want %.3f", tt, got, want)
		}
		if per := float64(r.Messages) / float64(r.Flows); per > 1.5 {
			t.Errorf("%+v: %.2f messages for each flow, want about one for each time that an endpoint becomes idle", tt, per)
		}
	}
}

// TestOldInformation: Mitzenmacher (2000), section 3: the fewest of all are best with a fresh board, and worse than random with an old
// one, because everyone goes there; two choices are not.
func TestOldInformation(t *testing.T) {
	c := many(10, 100, 0.9)
	c.Duration, c.Warmup = 1000*time.Second, 100*time.Second
	mean := func(algorithm string) float64 { return meanOf(&run(t, c, algorithm).Response) }
	random, p2c := mean("random"), mean("stale(50ms:2)")
	if fresh := mean("stale(50ms)"); fresh >= p2c {
		t.Errorf("fresh: the fewest of all %.2f s, two choices %.2f s", fresh, p2c)
	}
	all, two := mean("stale(50s)"), mean("stale(50s:2)")
	if all <= random || two >= all {
		t.Errorf("after 50 times the mean work: the fewest of all %.2f s, two choices %.2f s, random %.2f s", all, two, random)
	}
}

// TestProbes: with other load on some nodes, Prequal has shorter tails than weighted round robin by utilization at the same total load, which is
// what sections 2 and 5 of the paper are about. Each flow costs three probes.
func TestProbes(t *testing.T) {
	c := many(20, 100, 0.75)
	c.Duration, c.Warmup = 200*time.Second, 40*time.Second
	c.Workload.Work.Mean, c.Workload.RoundTrip = 100*time.Millisecond, time.Millisecond
	c.Events = []traffic.Event{{At: time.Second, Antagonist: &traffic.Antagonist{Nodes: 4, Factor: 1.5}}}
	p99 := func(algorithm string) (float64, float64) {
		r := run(t, c, algorithm)
		return float64(r.Response.Percentile(990)) / 1e9, float64(r.Messages) / float64(r.Flows)
	}
	prequal, probes := p99("prequal")
	wrr, reports := p99("wrr-report(5s)")
	rr, none := p99("rr")
	if prequal >= 3*wrr/4 || wrr >= rr {
		t.Errorf("99th percentiles: prequal %.2f s, wrr-report %.2f s, rr %.2f s", prequal, wrr, rr)
	}
	if math.Abs(probes-3) > 0.01 || reports <= 0 || none != 0 {
		t.Errorf("messages for each flow: prequal %.3f, wrr-report %.3f, rr %.3f", probes, reports, none)
	}
}

// TestForgottenLatency: endpoints that were slow get their share of flows again, though the latest responses that they gave were slow.
func TestForgottenLatency(t *testing.T) {
	c := many(10, 20, 0.5)
	c.Duration, c.Warmup = 200*time.Second, 100*time.Second
	c.Workload.Work.Mean, c.Workload.RoundTrip = 100*time.Millisecond, time.Millisecond
	c.Events = []traffic.Event{{At: time.Second, Antagonist: &traffic.Antagonist{Nodes: 5, Factor: 20, For: 80 * time.Second}}}
	if r := run(t, c, "prequal"); r.FlowsJain < 0.95 {
		t.Errorf("Jain's index of flows %.3f, of the fullest endpoint %.2f", r.FlowsJain, r.FlowsMaxOverMean)
	}
}

// TestSameAgain: algorithms with messages give the same result each time, also when endpoints and nodes go.
func TestSameAgain(t *testing.T) {
	c := many(10, 30, 0.7)
	c.Workload.RoundTrip = time.Millisecond
	c.Events = []traffic.Event{
		{At: 70 * time.Second, Scale: &traffic.Scale{To: 20, Lifecycle: traffic.Lifecycle{Grace: time.Second}}},
		{At: 90 * time.Second, Scale: &traffic.Scale{To: 40, Lifecycle: traffic.Lifecycle{Ready: time.Second}}},
		{At: 120 * time.Second, NodeLoss: &traffic.NodeLoss{Nodes: 2}},
		{At: 200 * time.Second, Flush: &traffic.Flush{}},
	}
	for _, algorithm := range []string{"jiq", "prequal", "wrr-report", "stale(5s:2)", "subset(5:lc)", "eject(prequal)", "bounded", "ring", "jiq+second-chance"} {
		a, b := run(t, c, algorithm), run(t, c, algorithm)
		if !reflect.DeepEqual(a, b) || a.Response.N() == 0 {
			t.Errorf("%s: %d and %d responses, %d and %d messages", algorithm, a.Response.N(), b.Response.N(), a.Messages, b.Messages)
		}
	}
}
