package traffic

import (
	"reflect"
	"testing"

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
