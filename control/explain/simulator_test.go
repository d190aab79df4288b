package explain

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestAffinityHoldsBetweenPackets: a client keeps its endpoint whatever its port,
// another is balanced for itself, and services without affinity forget.
func TestAffinityHoldsBetweenPackets(t *testing.T) {
	endpoints := make(map[string]bool)
	for seed := range uint64(20) {
		a := newSimulation(t, seed, servicetable.NodeConfig{Name: "node-a"})
		first := a.explain(t, flow.Question{Source: "10.244.1.9:1000", Destination: "10.96.0.50:80"})
		if first.Reason != "balanced" || len(first.Candidates) != 3 {
			t.Fatalf("first packet: %+v", first)
		}
		for port := range 10 {
			r := a.explain(t, flow.Question{Source: fmt.Sprintf("10.244.1.9:%d", 1001+port), Destination: "10.96.0.50:80"})
			if r.Reason != "affinity" || r.Endpoint != first.Endpoint || len(r.Candidates) != 1 || r.Draw != nil || len(r.Excluded) != 2 {
				t.Fatalf("packet %d: %+v, the first went to %s", port, r, first.Endpoint)
			}
		}
		other := a.explain(t, flow.Question{Source: "10.244.1.10", Destination: "10.96.0.50:80"})
		if other.Reason != "balanced" {
			t.Fatalf("another client: %+v", other)
		}
		endpoints[other.Endpoint] = true
		for range 2 {
			if r := a.explain(t, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.20:80"}); r.Reason != "balanced" {
				t.Fatalf("a service without affinity: %+v", r)
			}
		}
	}
	if len(endpoints) != 3 {
		t.Errorf("other clients went to %v only", endpoints)
	}
}

// TestSeedMakesItReproducible: the same seed gives the same answers, byte for byte;
// others give others.
func TestSeedMakesItReproducible(t *testing.T) {
	run := func(seed uint64) string {
		a := newSimulation(t, seed, servicetable.NodeConfig{Name: "node-a", ClusterCIDRs: pods})
		a.FollowReply = true
		var out string
		for i := range 50 {
			r := a.Decide(packet(fmt.Sprintf("10.244.1.%d:4000", i%7+1), []string{"10.96.0.20:80", "10.96.0.50:80", "172.20.0.2:30080"}[i%3]))
			b, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			out += string(b) + "\n"
		}
		return out
	}
	first, second, other := run(1), run(1), run(2)
	if first != second {
		t.Error("the same seed gives different answers")
	}
	if first == other {
		t.Error("different seeds give the same answers")
	}
}

// TestExcludedReasons: the same endpoint is out for different reasons under the two
// policies.
func TestExcludedReasons(t *testing.T) {
	s := newSimulation(t, 0, servicetable.NodeConfig{Name: "node-a", ClusterCIDRs: pods})
	for _, tt := range []struct {
		destination string
		want        map[string]string
	}{
		{"service/default/web:http", map[string]string{"10.244.2.3:8080": "not-ready", "[fd00:10:244:1::2]:8080": "other-family", "[fd00:10:244:2::2]:8080": "other-family"}},
		{"service/default/zoned", map[string]string{"10.244.2.2:8080": "other-zone"}},
		{"service/default/leaving", map[string]string{"10.244.2.2:8080": "not-serving"}},
		{"service/default/shop", nil},                                           // internal policy Cluster
		{"172.20.0.2:30030", map[string]string{"10.244.2.2:8080": "not-local"}}, // external policy Local
	} {
		got := make(map[string]string)
		for _, e := range s.explain(t, flow.Question{Source: "192.0.2.10", Destination: tt.destination}).Excluded {
			got[e.Endpoint] = e.Reason
		}
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: excluded %v, want %v", tt.destination, got, tt.want)
		}
	}
}
