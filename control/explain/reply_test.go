package explain

import (
	"slices"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

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
