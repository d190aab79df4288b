package crossnode

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/resolve"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// cluster is that of package flow's stories.
func cluster(t testing.TB) *manifest.Objects {
	t.Helper()
	objects, err := manifest.Load([]string{"../../../datapath/flow/testdata/cluster.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// pods are the prefixes of the cluster's pods.
var pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}

// simulation answers questions about the cluster.
type simulation struct {
	*Simulator
	*resolve.Names
}

func newSimulation(t testing.TB, seed uint64, config servicetable.NodeConfig) *simulation {
	t.Helper()
	objects := cluster(t)
	table, _ := servicetable.Table(&objects.Objects, config)
	names := resolve.NamesOf(table, objects.Pods)
	for _, n := range objects.Nodes {
		names.AddNode(n.Name, servicetable.NodeAddresses(n))
	}
	return &simulation{New(table, rand.New(rand.NewPCG(seed, 0)), Cluster{Nodes: objects.Nodes, EndpointSlices: objects.EndpointSlices}), names}
}

// explain explains a packet that has to make sense.
func (a *simulation) explain(t testing.TB, q flow.Question) *flow.Record {
	t.Helper()
	if q.Protocol == "" {
		q.Protocol = "tcp"
	}
	p, err := a.Packet(q)
	if err != nil {
		t.Fatal(err)
	}
	return a.Decide(&p)
}

func packet(src, dst string) *decision.Packet {
	return &decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort(src), Destination: netip.MustParseAddrPort(dst)}
}
