package live_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/live"
)

// TestCheckAlgorithms: algorithms that nfqproxyd does not have are refused before a lab starts, also those of a service.
func TestCheckAlgorithms(t *testing.T) {
	for _, tt := range []struct{ compared, own, refused string }{
		{"lc+second-chance", "maglev(251)", ""},
		{"eject(p2c)", "lc", ""},
		{"jiq", "lc", "jiq"},
		{"eject(hrw)+second-chance", "lc", "eject(hrw)"},
		{"lc", "ring", "ring"},
	} {
		x, err := experiment.Parse("x.yaml", ".", fmt.Appendf(nil, `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: own}
cluster:
  nodes: 1
  services: [{name: web, endpoints: 2, algorithm: %q}]
workload:
  arrivals: {process: poisson, rate: 10}
  work: {distribution: constant, mean: 1ms}
duration: 1s
algorithms: [%q]
`, tt.own, tt.compared))
		if err != nil {
			t.Fatal(err)
		}
		err = live.Check(x)
		if tt.refused == "" && err != nil || tt.refused != "" && (err == nil || !strings.Contains(err.Error(), "algorithm "+tt.refused+": nfqproxyd does not have it")) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
