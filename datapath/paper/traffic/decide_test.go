package traffic

import (
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// TestWholeDecision: new flows get the same endpoints by their route as by the daemon's whole decision, whatever happens to the cluster.
func TestWholeDecision(t *testing.T) {
	for _, algorithm := range allAlgorithms {
		want := run(t, busy(), algorithm, 9)
		s := newSimulation(busy(), 9, Options{Stopwatch: func() int64 { return 0 }})
		s.measured = 1
		if err := s.simulate(algorithm); err != nil {
			t.Fatal(err)
		}
		if s.result.Costs.N() < want.Flows {
			t.Errorf("%s: %d whole decisions of %d flows", algorithm, s.result.Costs.N(), want.Flows)
		}
		s.result.Costs = stats.Times{}
		if !reflect.DeepEqual(&s.result, want) {
			t.Errorf("%s: the results differ", algorithm)
		}
	}
}

// TestOpenOnly: the results are the same if algorithms that read the number of open connections only are told of all events.
func TestOpenOnly(t *testing.T) {
	for _, algorithm := range allAlgorithms {
		want := run(t, busy(), algorithm, 9)
		s := newSimulation(busy(), 9, Options{})
		s.trackAll = true
		if err := s.simulate(algorithm); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(&s.result, want) {
			t.Errorf("%s: the results differ", algorithm)
		}
	}
}

// TestMemory: it does not depend on the number of flows.
func TestMemory(t *testing.T) {
	with := func(flows int) int {
		c := &Config{Cluster: cluster(2, 1, 20, 1, 100), Workload: exponentialWork(0.8, time.Millisecond), Duration: time.Hour, Window: time.Hour}
		c.Workload.Arrivals.Flows, c.Workload.TimeWait = flows, time.Millisecond
		return allocated(t, c)
	}
	few, many := with(50_000), with(550_000)
	if more := many - few; more > 500_000 {
		t.Errorf("half a million more flows cost %d bytes", more)
	}
}

// allocated is how many bytes a simulation allocates.
func allocated(t *testing.T, c *Config) int {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Run(c, "p2c", 1, Options{Stopwatch: func() int64 { return 0 }}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}
