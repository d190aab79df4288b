package audit_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	peers "github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/bench/cluster/kubeproxytest"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// TestRealNFTables has the real kube-proxy write its tables of mode nftables for generated clusters: those that nftproxy writes
// are the same byte for byte as nft lists them, but for the order of the services' chains and sets, which is random. ReadNFTables
// finds in them the services of the table, and no problem.
func TestRealNFTables(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	netnstest.RequireTool(t, "nft")
	clustertest.RequireProgram(t, peers.KubeProxy)
	for seed := range uint64(netnstest.Cases(100, 5)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := newCluster(seed)
			c.separate()
			table, _ := servicetable.Table(c.objects, c.config)
			var want bytes.Buffer
			if _, err := nftproxy.Tables(table, nftproxy.Options{ServiceCIDRs: c.serviceCIDRs()}, families...).WriteTo(&want); err != nil {
				t.Fatal(err)
			}
			have := c.realNFTables(t, inOrder(want.String()))
			if diff := cmp.Diff(strings.Split(inOrder(have), "\n"), strings.Split(inOrder(want.String()), "\n")); diff != "" {
				t.Fatalf("(-kube-proxy +nftproxy)\n%s\nin\n%s", diff, have)
			}
			c.compareNFTables(t, table, have)
		})
	}
}

// compareNFTables compares what is read from kube-proxy's tables with the table that they are for.
func (c *cluster) compareNFTables(t *testing.T, table *decision.Table, listing string) {
	t.Helper()
	nodes := readNFTables(t, listing)
	if len(nodes) != 2 {
		t.Fatalf("%d nodes in\n%s", len(nodes), listing)
	}
	for i, f := range families {
		var want []*audit.Service
		for _, s := range table.Services() {
			if s.Family == f {
				want = append(want, shownByNFTables(table, s))
			}
		}
		node := nodes[i]
		if diff := cmp.Diff(want, node.Services, services); diff != "" {
			t.Fatalf("%s: (-want +have)\n%s\nin\n%s", f, diff, listing)
		}
		if len(node.Problems) > 0 || len(node.Gaps) > 0 || node.Mode != proxymode.ModeNFTables {
			t.Fatalf("%s: %s, problems %q, gaps %q in\n%s", f, node.Mode, node.Problems, node.Gaps, listing)
		}
		p := node.Proxy
		if p.MasqueradeMark != table.Node().Mark() || !strings.HasPrefix(p.Version, "1.36") || p.MasqueradeAll != c.config.MasqueradeAll || !slices.Equal(p.ServiceCIDRs, c.serviceCIDRs()[i:i+1]) ||
			c.config.PrimaryNodePorts != (len(p.NodePortAddresses) == 1 && p.NodePortAddresses[0] == table.Node().IP(f)) {
			t.Fatalf("%s: %+v of %+v", f, p, c.config)
		}
	}
}

func readNFTables(t testing.TB, listing string) []*audit.Node {
	t.Helper()
	ruleset, err := nftables.Read("listing", strings.NewReader(listing))
	if err != nil {
		t.Fatal(err)
	}
	return audit.ReadNFTables(ruleset)
}

// realNFTables has kube-proxy write its tables until nft lists what is wanted.
func (c *cluster) realNFTables(t *testing.T, want string) string {
	t.Helper()
	addresses := []netip.Prefix{
		netip.PrefixFrom(netip.MustParseAddr(addr(decision.IPv4, nodeNet, 1)), 16), netip.PrefixFrom(netip.MustParseAddr(addr(decision.IPv6, nodeNet, 1)), 64),
	}
	done := func(listing string) bool { return inOrder(listing) == want }
	have := kubeproxytest.NFTables(t, c.objects, &c.config, addresses, done)
	if !done(have) { // kube-proxy does not write its tables again if it learns of a ServiceCIDR only after them (OnServiceCIDRsChanged)
		have = kubeproxytest.NFTables(t, c.objects, &c.config, addresses, done)
	}
	return have
}
