package crossnode

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestHints: what a cluster adds to the hints of one node, which it does not take away.
func TestHints(t *testing.T) {
	nodeA := servicetable.NodeConfig{Name: "node-a", ClusterCIDRs: pods, LocalhostNodePorts: true}
	noName := servicetable.NodeConfig{ClusterCIDRs: pods}
	unnamed := servicetable.NodeConfig{ClusterCIDRs: pods, IPs: []netip.Addr{netip.MustParseAddr("172.20.0.2")}}
	tests := []struct {
		name     string
		node     servicetable.NodeConfig
		question flow.Question
		want     string // part of the hint; empty: none
	}{
		{"no hint", nodeA, flow.Question{Source: "pod/default/shell", Destination: "10.96.0.20:80"}, ""},
		{"another port", nodeA, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.20:81"}, "10.96.0.20 has other ports: 80/TCP (default/web:http), 53/UDP (default/web:dns)."},
		{"node port of another node", nodeA, flow.Question{Source: "192.0.2.1", Destination: "172.20.0.3:30080"}, "172.20.0.3 is an address of node node-b: set --node node-b to decide there"},
		{"another node's pod", nodeA, flow.Question{Source: "pod/default/web-2", Destination: "10.96.0.20:80"}, "10.244.2.2 belongs to a pod on node node-b, which decides this packet before it arrives here"},
		{"another node's pod, IPv6", nodeA, flow.Question{Source: "pod/default/web-2", Destination: "[fd00:10:96::20]:80"}, "fd00:10:244:2::2 belongs to a pod on node node-b"},
		{"another node's pod at the node port", nodeA, flow.Question{Source: "pod/default/web-2", Destination: "172.20.0.2:30080"}, ""},
		{"no node named, policy Local", unnamed, flow.Question{Source: "192.0.2.1", Destination: "172.20.0.2:30030"}, "no node is given, so no endpoint counts as local: set --node to one of node-a, node-b."},
		{"no node named, policy Cluster", unnamed, flow.Question{Source: "192.0.2.1", Destination: "172.20.0.2:30080"}, ""},
		{"no node named, ClusterIP", noName, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.30:80"}, ""},
		{"a loopback address is not for it", nodeA, flow.Question{Source: "172.20.0.2", Destination: "127.0.0.1:22", Local: true}, ""},
		{"only terminating endpoints", nodeA, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.40:80"}, "No endpoint of default/leaving is ready, so terminating endpoints get new flows while they are serving."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := newSimulation(t, 0, tt.node).explain(t, tt.question).Hint
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("hint %q, want %q", got, tt.want)
			}
		})
	}
}

// TestPortNameMismatch: a slice whose port has another name is a common mistake.
func TestPortNameMismatch(t *testing.T) {
	objects := cluster(t)
	for _, s := range objects.Services {
		if s.Name == "web" {
			s.Spec.Ports[0].Name = "www"
		}
	}
	table, _ := servicetable.Table(&objects.Objects, servicetable.NodeConfig{})
	s := New(table, nil, Cluster{EndpointSlices: objects.EndpointSlices})
	got := s.Decide(packet("10.244.1.9:1", "10.96.0.20:80")).Hint
	if want := `There are endpoints of default/web, but none with the TCP port "www": `; !strings.HasPrefix(got, want) {
		t.Errorf("hint %q, want %q", got, want)
	}
}
