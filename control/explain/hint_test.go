package explain

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestHints: by the service table alone.
func TestHints(t *testing.T) {
	nodeA := servicetable.NodeConfig{Name: "node-a", ClusterCIDRs: pods, LocalhostNodePorts: true}
	with := func(change func(*servicetable.NodeConfig)) servicetable.NodeConfig {
		c := nodeA
		change(&c)
		return c
	}
	closed := with(func(c *servicetable.NodeConfig) { c.LocalhostNodePorts = false })
	restricted := with(func(c *servicetable.NodeConfig) {
		c.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}
	})
	bridge := with(func(c *servicetable.NodeConfig) { c.Mode, c.Bridge = servicetable.BridgeInterface, "cni0" })
	tests := []struct {
		name     string
		node     servicetable.NodeConfig
		question flow.Question
		want     string // part of the hint; empty: none
	}{
		{"no hint", nodeA, flow.Question{Source: "pod/default/shell", Destination: "10.96.0.20:80"}, ""},
		{"another port", nodeA, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.20:81"}, "10.96.0.20 has other ports: 80/TCP (default/web:http), 53/UDP (default/web:dns)."},
		{"another protocol", nodeA, flow.Question{Protocol: "udp", Source: "10.244.1.9", Destination: "10.96.0.20:80"}, "10.96.0.20 has other ports"},
		{"another port of a load balancer IP", nodeA, flow.Question{Source: "192.0.2.1", Destination: "203.0.113.5:80"}, "203.0.113.5 has other ports: 443/TCP (default/bank)."},
		{"another port of an external IP", nodeA, flow.Question{Source: "192.0.2.1", Destination: "198.51.100.7:80"}, "198.51.100.7 has other ports: 443/TCP (default/bank)."},
		{"no such node port", nodeA, flow.Question{Source: "192.0.2.1", Destination: "172.20.0.2:30000"}, "172.20.0.2 is an address of this node, whose node ports are: 30030/TCP (default/shop), 30080/TCP (default/web:http), 30053/UDP (default/web:dns)."},
		{"node port of another protocol", nodeA, flow.Question{Protocol: "udp", Source: "192.0.2.1", Destination: "172.20.0.2:30080"}, "whose node ports are"},
		{"node port of no node", nodeA, flow.Question{Source: "192.0.2.1", Destination: "172.20.0.4:30080"}, "172.20.0.4 is not a known address of this node: set --node-ip or --node"},
		{"node port closed there", restricted, flow.Question{Source: "192.0.2.1", Destination: "172.20.0.2:30080"}, "30080 is the node port of default/web:http, but --nodeport-addresses excludes 172.20.0.2."},
		{"node port closed on loopback", closed, flow.Question{Source: "127.0.0.1", Destination: "127.0.0.1:30080", Local: true}, "--localhost-nodeports=false closes node ports"},
		{"node port addresses without loopback", restricted, flow.Question{Source: "127.0.0.1", Destination: "127.0.0.1:30080", Local: true}, "but --nodeport-addresses excludes 127.0.0.1."},
		{"node port on IPv6 loopback", nodeA, flow.Question{Source: "::1", Destination: "[::1]:30080", Local: true}, "node ports are never open on IPv6 loopback addresses"},
		{"an endpoint", nodeA, flow.Question{Source: "10.244.1.9", Destination: "10.244.1.2:8080"}, "10.244.1.2 is an endpoint of default/bank: a packet to its own address reaches it without any service."},
		{"nothing near", nodeA, flow.Question{Source: "10.244.1.9", Destination: "10.96.9.9:80"}, "service ports has the address 10.96.9.9."},
		{"source is the node's", nodeA, flow.Question{Source: "172.20.0.2", Destination: "10.96.0.20:80"}, "172.20.0.2 is an address of this node itself: for a packet that originates on it, set --local."},
		{"source is loopback", nodeA, flow.Question{Source: "127.0.0.1", Destination: "127.0.0.1:30080"}, "set --local"},
		{"made on the node with another's source", nodeA, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.20:80", Local: true}, "10.244.1.9 is not a known address of this node"},
		{"no interface", bridge, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.20:80"}, "set --in-interface"},
		{"an interface", bridge, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.20:80", InInterface: "cni0"}, ""},
		{"no endpoints", nodeA, flow.Question{Source: "10.244.1.9", Destination: "10.96.0.80:80"}, "No EndpointSlice of default/nobody-home (by its label kubernetes.io/service-name) has an endpoint."},
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
