package text_test

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/crossnode"
	"github.com/nfqproxy/nfqproxy/control/resolve"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/text"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// simulator looks at the cluster of testdata from one of its nodes.
func simulator(t *testing.T, node string, seed uint64) (*crossnode.Simulator, *resolve.Names) {
	t.Helper()
	objects, err := manifest.Load([]string{"../../../datapath/flow/testdata/cluster.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	table, warnings := servicetable.Table(&objects.Objects, servicetable.NodeConfig{
		Name: node, LocalhostNodePorts: true,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")},
	})
	if len(warnings) > 0 {
		t.Fatalf("warnings: %q", warnings)
	}
	s := crossnode.New(table, rand.New(rand.NewPCG(seed, 0)), crossnode.Cluster{Nodes: objects.Nodes, EndpointSlices: objects.EndpointSlices})
	return s, resolve.NamesOf(table, objects.Pods)
}

// TestExplanations: what explain prints, read and found good.
func TestExplanations(t *testing.T) {
	tests := []struct {
		name    string
		node    string
		packets []flow.Question // the story is that of the last
		reply   bool
		walk    text.Walk
		seed    uint64
	}{
		{name: "hairpin", node: "node-a", seed: 1, reply: true, packets: []flow.Question{
			{Protocol: "tcp", Source: "pod/default/web-1", Destination: "service/default/web:http"}}},
		{name: "local-policy-without-pod", node: "node-a", packets: []flow.Question{
			{Protocol: "tcp", Source: "192.0.2.10", Destination: "172.20.0.2:30030"}}},
		{name: "local-policy-with-pod", node: "node-b", reply: true, packets: []flow.Question{
			{Protocol: "tcp", Source: "192.0.2.10", Destination: "172.20.0.3:30030"}}},
		{name: "local-policy-from-node", node: "node-a", packets: []flow.Question{
			{Protocol: "tcp", Source: "127.0.0.1", Destination: "127.0.0.1:30030", Local: true}}},
		{name: "only-terminating", node: "node-a", seed: 1, packets: []flow.Question{
			{Protocol: "tcp", Source: "pod/default/shell", Destination: "service/default/leaving"}}},
		{name: "source-range-outside", node: "node-a", packets: []flow.Question{
			{Protocol: "tcp", Source: "192.0.2.99", Destination: "203.0.113.5:443"}}},
		{name: "source-range-within", node: "node-a", walk: text.WalkRules, packets: []flow.Question{
			{Protocol: "tcp", Source: "192.0.2.9", Destination: "203.0.113.5:443"}}},
		{name: "affinity", node: "node-a", seed: 1, packets: []flow.Question{
			{Protocol: "tcp", Source: "pod/default/shell", Destination: "service/default/sticky"},
			{Protocol: "tcp", Source: "pod/default/shell:40001", Destination: "service/default/sticky"}}},
		{name: "no-service", node: "node-a", packets: []flow.Question{
			{Protocol: "tcp", Source: "pod/default/shell", Destination: "10.96.0.20:8080"}}},
		{name: "no-endpoints", node: "node-a", reply: true, packets: []flow.Question{
			{Protocol: "tcp", Source: "pod/default/shell", Destination: "service/default/nobody-home"}}},
		{name: "zone-hints", node: "node-b", packets: []flow.Question{
			{Protocol: "tcp", Source: "pod/default/web-3", Destination: "service/default/zoned"}}},
		{name: "follow-reply-node-port", node: "node-a", seed: 5, reply: true, packets: []flow.Question{
			{Protocol: "tcp", Source: "192.0.2.10:51234", Destination: "[::ffff:172.20.0.2]:30080"}}},
		{name: "ipv6", node: "node-a", seed: 1, packets: []flow.Question{
			{Protocol: "tcp", Source: "pod/default/shell", Destination: "[fd00:10:96::20]:80"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, names := simulator(t, tt.node, tt.seed)
			s.FollowReply = tt.reply
			var r *flow.Record
			for _, q := range tt.packets {
				p, err := names.Packet(q)
				if err != nil {
					t.Fatal(err)
				}
				r = s.Decide(&p)
			}
			golden(t, tt.name+".txt", (text.Style{}).Explain(r, cmp.Or(tt.walk, text.WalkWords)))
		})
	}
}
