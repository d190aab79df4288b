package audit_test

import (
	"bytes"

	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// nftTables is what nft list ruleset prints of kube-proxy's tables for the cluster.
func (c *cluster) nftTables(t testing.TB) string {
	t.Helper()
	table, _ := servicetable.Table(c.objects, c.config)
	return nftText(t, table, nftproxy.Options{ServiceCIDRs: c.serviceCIDRs()})
}

func nftText(t testing.TB, table *decision.Table, o nftproxy.Options) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := nftproxy.Tables(table, o, families...).WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func readRuleset(t testing.TB, text string) *nftables.Ruleset {
	t.Helper()
	r, err := nftables.Read("listing", strings.NewReader(text), nftables.Options{})
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return r
}

// TestObjectsGiveTheSameNFTables: the objects made of what was read, through YAML, give the tables that they were read from.
func TestObjectsGiveTheSameNFTables(t *testing.T) {
	dir := t.TempDir()
	for seed := range uint64(200) {
		c := newCluster(seed)
		c.separate()
		before := c.nftTables(t)
		nodes := audit.ReadNFTables(readRuleset(t, before))
		objects := audit.NewObjects("node-1", nodes...)
		again := throughYAML(t, dir, objects)
		config := audit.Config("node-1", nodes...)
		table, _ := servicetable.Table(again, config)
		after := nftText(t, table, nftproxy.Options{ServiceCIDRs: c.serviceCIDRs()})
		if diff := gocmp.Diff(strings.Split(inOrder(before), "\n"), strings.Split(inOrder(after), "\n")); diff != "" {
			t.Fatalf("seed %d: (-before +again)\n%s\nnotes %q\n%s", seed, diff, objects.Notes, before)
		}
		if !audit.CompareNFTables(readRuleset(t, before), readRuleset(t, after), false).Same() {
			t.Fatalf("seed %d: not the same", seed)
		}
		if objects.ServiceCIDR == nil || len(objects.ServiceCIDR.Spec.CIDRs) != 2 {
			t.Fatalf("seed %d: ServiceCIDR %+v", seed, objects.ServiceCIDR)
		}
	}
}

// TestServicesExplainNFTables: of two states of a node, the changes of services explain all differences of rules and elements.
func TestServicesExplainNFTables(t *testing.T) {
	kinds := make(map[audit.Change]int)
	for seed := range uint64(200) {
		before, after := newCluster(seed), newCluster(seed)
		after.objects.Services, after.objects.EndpointSlices = nil, nil
		for i := range before.objects.Services {
			after.service(i)
		}
		before.separate()
		after.separate()
		c := audit.CompareNFTables(readRuleset(t, before.nftTables(t)), readRuleset(t, after.nftTables(t)), false)
		if len(c.Tables) > 0 || len(c.Proxy) > 0 {
			t.Fatalf("seed %d: tables %+v, proxy %+v", seed, c.Tables, c.Proxy)
		}
		for i := range c.Services {
			kinds[c.Services[i].Change()]++
		}
	}
	for _, k := range []audit.Change{audit.Added, audit.Removed, audit.Changed} {
		if kinds[k] < 5 {
			t.Errorf("%d services are %s", kinds[k], k)
		}
	}
}
