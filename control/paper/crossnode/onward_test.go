package crossnode

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestOnward: a packet is followed to the node that has its destination's address, and the reply back.
func TestOnward(t *testing.T) {
	objects := cluster(t)
	table := func(node string) *decision.Table {
		t, _ := servicetable.Table(&objects.Objects, servicetable.NodeConfig{Name: node, ClusterCIDRs: pods})
		return t
	}
	for _, tt := range []struct {
		name, node string
		question   flow.Question
		next       string // the verdict of the next node; empty: there is none
		endpoint   string
		hint       string   // part of that of this node
		nextHint   string   // part of that of the next one
		reply      []string // parts of the reply's path on this node
		nextReply  []string // likewise
	}{
		{
			"node port, Local, the endpoint is there", "node-a", flow.Question{Source: "pod/default/shell", Destination: "node/node-b:30030"}, "dnat", "10.244.2.2:8080",
			"172.20.0.3 is an address of node node-b, which gets the packet and decides", "",
			[]string{"node node-b translates the packet, to 10.244.2.2:8080", "it passes this node as it is"}, []string{"the endpoint is on this node", "un-DNAT"},
		},
		{
			"node port, Local, the endpoint is here", "node-b", flow.Question{Source: "10.244.2.9", Destination: "172.20.0.2:30030"}, "dnat", "10.244.2.2:8080",
			"172.20.0.2 is an address of node node-a", "If node node-b masquerades what its pods send to other nodes, the source is 172.20.0.3 here, and the packet is dropped: policy Local",
			[]string{"node node-a translates the packet"}, []string{"that is on node node-b, and the endpoint is not on this node: the reply does not return here", "does not take it for the reply"},
		},
		{
			"node port, Local, from the node", "node-b", flow.Question{Source: "172.20.0.3", Destination: "172.20.0.2:30030", Local: true}, "drop", "",
			"which gets the packet and decides", "", []string{"no reply: node node-a drops the packet"}, []string{"no reply"},
		},
		{
			"IPv6", "node-a", flow.Question{Source: "fd00:10:244:1::9", Destination: "[fd00:172:20::3]:30080"}, "dnat", "",
			"fd00:172:20::3 is an address of node node-b", "", []string{"node node-b translates the packet"}, []string{"un-SNAT"},
		},
		{
			"no node port", "node-a", flow.Question{Source: "10.244.1.9", Destination: "172.20.0.3:30000"}, "accept", "",
			"172.20.0.3 is an address of node node-b", "whose node ports are", []string{"node node-b does not translate the packet either"}, []string{"nothing was translated"},
		},
		{"own node port", "node-b", flow.Question{Source: "10.244.2.9", Destination: "172.20.0.3:30080"}, "", "", "", "", []string{"un-DNAT"}, nil},
		{"cluster IP", "node-a", flow.Question{Source: "10.244.1.9", Destination: "10.96.0.20:80"}, "", "", "", "", []string{"un-DNAT"}, nil},
		{"a pod elsewhere", "node-a", flow.Question{Source: "10.244.1.9", Destination: "10.244.2.2:8080"}, "", "", "is an endpoint of", "", []string{"nothing was translated: the reply needs no translation"}, nil},
		{"an address of nobody", "node-a", flow.Question{Source: "10.244.1.9", Destination: "203.0.113.99:80"}, "", "", "", "", []string{"nothing was translated on this node: if another one translates the packet"}, nil},
		{"a pod of another node", "node-a", flow.Question{Source: "10.244.2.9", Destination: "203.0.113.5:443"}, "", "", "10.244.2.9 belongs to a pod on node node-b, which decides this packet before it arrives here", "", nil, nil},
		{"another node", "node-a", flow.Question{Source: "172.20.0.3", Destination: "10.96.0.20:80"}, "", "", "172.20.0.3 is an address of node node-b, which decides this packet before it arrives here", "", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newSimulation(t, 1, servicetable.NodeConfig{Name: tt.node, ClusterCIDRs: pods})
			a.Simulator = New(table(tt.node), rand.New(rand.NewPCG(1, 0)), Cluster{Nodes: objects.Nodes, Pods: objects.Pods, EndpointSlices: objects.EndpointSlices, Table: table})
			a.FollowReply = true
			r := a.explain(t, tt.question)
			contains := func(what, text string, parts ...string) {
				for _, part := range parts {
					if !strings.Contains(text, part) {
						t.Errorf("%s: no %q in %q", what, part, text)
					}
				}
			}
			contains("hint", r.Hint, tt.hint)
			contains("reply", strings.Join(r.Reply.Steps, "\n"), tt.reply...)
			if tt.next == "" {
				if len(r.Others) != 0 {
					t.Fatalf("a next node: %+v", r.Others[0])
				}
				return
			}
			if len(r.Others) != 1 {
				t.Fatalf("%d next nodes, want 1", len(r.Others))
			}
			next := r.Others[0]
			if next.Node == tt.node || next.Verdict != tt.next || tt.endpoint != "" && next.Endpoint != tt.endpoint || next.Local || next.Others != nil {
				t.Errorf("next: %+v; want %s %s", next, tt.next, tt.endpoint)
			}
			contains("next hint", next.Hint, tt.nextHint)
			contains("next reply", strings.Join(next.Reply.Steps, "\n"), tt.nextReply...)
			if tt.nextHint == "" && next.Hint != "" {
				t.Errorf("unexpected hint of the next node: %s", next.Hint)
			}
		})
	}
}

// TestOrigin: the node that decides a packet first.
func TestOrigin(t *testing.T) {
	objects := cluster(t)
	places := PlacesOf(objects.Nodes, objects.Pods)
	for _, tt := range []struct{ source, destination, want string }{
		{"10.244.1.9", "10.96.0.20", "node-a"},
		{"10.244.2.77", "172.20.0.2", "node-b"}, // by its prefix
		{"172.20.0.3", "172.20.0.2", "node-b"},
		{"192.0.2.1", "172.20.0.2", "node-a"},
		{"192.0.2.1", "10.96.0.20", ""},
		{"fd00:10:244:2::9", "fd00:10:96::20", "node-b"},
	} {
		if got := places.Origin(netip.MustParseAddr(tt.source), netip.MustParseAddr(tt.destination)); got != tt.want {
			t.Errorf("%s to %s: %q, want %q", tt.source, tt.destination, got, tt.want)
		}
	}
}
