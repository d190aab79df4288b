package explain

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
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

func TestReply(t *testing.T) {
	nodeA := servicetable.NodeConfig{Name: "node-a", ClusterCIDRs: pods, LocalhostNodePorts: true}
	nodeB := servicetable.NodeConfig{Name: "node-b", ClusterCIDRs: pods}
	noDetector := servicetable.NodeConfig{Name: "node-b"}
	unmasked := nodeA
	unmasked.NoHairpinMasquerade = true
	tests := []struct {
		name     string
		node     servicetable.NodeConfig
		question flow.Question
		want     flow.Reply // without Steps
		steps    []string   // parts of them, in order
		not      []string   // in no step
	}{
		{
			"pod to an endpoint elsewhere", nodeB, flow.Question{Source: "10.244.2.9", Destination: "10.96.0.60:443"},
			flow.Reply{Source: "10.244.1.2:8080", Destination: "10.244.2.9:40000", SeenSource: "10.96.0.60:443", SeenDestination: "10.244.2.9:40000"},
			[]string{"10.244.1.2:8080 -> 10.244.2.9:40000", "the pod itself, which is on this node", "connection tracking", "un-DNAT: the source becomes 10.96.0.60:443 again", "never sees 10.244.1.2:8080"},
			[]string{"un-SNAT"},
		},
		{
			"endpoint here keeps the client's address", nodeB, flow.Question{Source: "192.0.2.1", Destination: "172.20.0.3:30030"},
			flow.Reply{Source: "10.244.2.2:8080", Destination: "192.0.2.1:40000", SeenSource: "172.20.0.3:30030", SeenDestination: "192.0.2.1:40000"},
			[]string{"the endpoint is on this node", "un-DNAT"},
			[]string{"un-SNAT"},
		},
		{
			"masqueraded", nodeB, flow.Question{Source: "192.0.2.1:55", Destination: "198.51.100.7:443"},
			flow.Reply{Source: "10.244.1.2:8080", Destination: "172.20.0.3:55", SeenSource: "198.51.100.7:443", SeenDestination: "192.0.2.1:55"},
			[]string{"this node, for example 172.20.0.3:55", "the reply returns to this node, wherever the endpoint is", "connection tracking", "un-SNAT: the destination becomes 192.0.2.1:55 again", "un-DNAT"},
			nil,
		},
		{
			"hairpin", nodeA, flow.Question{Source: "pod/default/web-1", Destination: "10.96.0.60:443"},
			flow.Reply{Source: "10.244.1.2:8080", Destination: "172.20.0.2:40000", SeenSource: "10.96.0.60:443", SeenDestination: "10.244.1.2:40000"},
			[]string{"this node", "un-SNAT: the destination becomes 10.244.1.2:40000 again", "un-DNAT"},
			nil,
		},
		{
			"hairpin, not masqueraded", unmasked, flow.Question{Source: "pod/default/web-1", Destination: "10.96.0.60:443"},
			flow.Reply{},
			[]string{"10.244.1.2:40000 -> 10.244.1.2:8080; Linux drops it as spoofed", "the reply would stay within the pod", "which never comes"},
			[]string{"un-DNAT"},
		},
		{
			"masqueraded, the node's address unknown", servicetable.NodeConfig{ClusterCIDRs: pods}, flow.Question{Source: "192.0.2.1", Destination: "198.51.100.7:443"},
			flow.Reply{Source: "10.244.1.2:8080", SeenSource: "198.51.100.7:443", SeenDestination: "192.0.2.1:40000"},
			[]string{"-> an address of this node", "un-SNAT"},
			[]string{"invalid"},
		},
		{
			"made on the node", noDetector, flow.Question{Source: "172.20.0.3", Destination: "10.96.0.60:443", Local: true},
			flow.Reply{Source: "10.244.1.2:8080", Destination: "172.20.0.3:40000", SeenSource: "10.96.0.60:443", SeenDestination: "172.20.0.3:40000"},
			[]string{"this node itself, so the reply returns here", "un-DNAT"},
			nil,
		},
		{
			"the trap: an outsider that is not masqueraded", noDetector, flow.Question{Source: "192.0.2.1", Destination: "10.96.0.60:443"},
			flow.Reply{Source: "10.244.1.2:8080", Destination: "192.0.2.1:40000", SeenSource: "10.96.0.60:443", SeenDestination: "192.0.2.1:40000"},
			[]string{"unless the reply is routed through this node, it is not translated back"},
			nil,
		},
		{"refused", nodeA, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.80:80"}, flow.Reply{}, []string{"ICMP port unreachable"}, nil},
		{"dropped", nodeA, flow.Question{Source: "192.0.2.1", Destination: "172.20.0.2:30030"}, flow.Reply{}, []string{"no reply"}, nil},
		{
			"untouched", nodeA, flow.Question{Source: "10.244.1.9", Destination: "10.244.1.2:8080"},
			flow.Reply{Source: "10.244.1.2:8080", Destination: "10.244.1.9:40000", SeenSource: "10.244.1.2:8080", SeenDestination: "10.244.1.9:40000"},
			[]string{"nothing was translated"}, nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := newSimulation(t, 0, tt.node)
			if r := a.explain(t, tt.question); r.Reply != nil {
				t.Error("a reply without a request")
			}
			a.FollowReply = true
			got := a.explain(t, tt.question).Reply
			steps := got.Steps
			got.Steps = nil
			if got.Source != tt.want.Source || got.Destination != tt.want.Destination || got.SeenSource != tt.want.SeenSource || got.SeenDestination != tt.want.SeenDestination {
				t.Errorf("got  %+v\nwant %+v", *got, tt.want)
			}
			rest := steps
			for _, part := range tt.steps {
				i := slices.IndexFunc(rest, func(s string) bool { return strings.Contains(s, part) })
				if i < 0 {
					t.Fatalf("no %q, in its order, in\n%s", part, strings.Join(steps, "\n"))
				}
				rest = rest[i:]
			}
			for _, part := range tt.not {
				if strings.Contains(strings.Join(steps, "\n"), part) {
					t.Errorf("there is %q in\n%s", part, strings.Join(steps, "\n"))
				}
			}
		})
	}
}
