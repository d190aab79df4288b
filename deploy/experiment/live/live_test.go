package live_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/deploy/experiment"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/live"
)

// TestSimulatedOnly: what a lab cannot do is refused.
func TestSimulatedOnly(t *testing.T) {
	for more, want := range map[string]string{
		"  requests: {deadline: 1s}":                           "workload.requests",
		"events: [{at: 0s, autoscale: {target: 0.5, max: 4}}]": "events[0].autoscale",
		"": "",
	} {
		x, err := experiment.Parse("x.yaml", ".", fmt.Appendf(nil, `apiVersion: nfqproxy.io/v1alpha1
kind: Experiment
metadata: {name: own}
cluster:
  nodes: 1
  services: [{name: web, endpoints: 2}]
duration: 1s
algorithms: [lc]
workload:
  arrivals: {process: poisson, rate: 10}
  work: {distribution: constant, mean: 1ms}
%s
`, more))
		if err != nil {
			t.Fatal(err)
		}
		if err := live.Check(x); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", more, err)
		}
	}
}

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
		if tt.refused == "" && err != nil || tt.refused != "" && (err == nil || !strings.Contains(err.Error(), "algorithm "+tt.refused+": nfqproxyd does not support it")) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
