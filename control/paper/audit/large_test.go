package audit_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// largeTable is a table of n services with three endpoints each: so many that rules about
// endpoints have no comments.
func largeTable(n int) *decision.Table {
	byte3 := func(first byte, i int) netip.Addr {
		return netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	var services []*decision.ServicePort
	for i := range n {
		s := &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "default", Name: fmt.Sprintf("s%05d", i), Port: "http"}, Protocol: decision.TCP, Family: decision.IPv4,
			ClusterIP: byte3(11, i+1), Port: 80, HasEndpoints: true, Usable: [2][]uint32{{0, 1, 2}},
		}
		for k := range 3 {
			s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(k + 1)}), 8080)})
		}
		services = append(services, s)
	}
	node := decision.Node{Detector: decision.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, LocalhostNodePorts: true}
	return decision.NewTable(1, time.Time{}, node, services)
}

// TestLargeCluster: without comments on endpoints' rules, the names still are those of the
// portals.
func TestLargeCluster(t *testing.T) {
	table := largeTable(500)
	node := audit.Read(parse(t, render(t, table, decision.IPv4), decision.IPv4))
	if len(node.Services) != 500 || len(node.Problems)+len(node.Gaps) > 0 {
		t.Fatalf("%d services, problems %q, gaps %q", len(node.Services), node.Problems, node.Gaps)
	}
	for i, want := range table.Services() {
		have := node.Services[i]
		if have.Name != want.Name || have.ClusterIP != want.ClusterIP || len(have.Endpoints) != 3 || have.Endpoints[2].AddrPort != want.Endpoints[2].AddrPort {
			t.Fatalf("%+v, want %+v", have, want)
		}
	}
}

// TestUnusedChainsOfALargeCluster: kube-proxy does not remove them at each change.
func TestUnusedChainsOfALargeCluster(t *testing.T) {
	const unused = ":KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC"
	for services, wantGaps := range map[int]int{50: 0, 500: 1} {
		text := strings.Replace(render(t, largeTable(services), decision.IPv4), ":KUBE-SERVICES - [0:0]\n:KUBE-SVC", unused, 1)
		node := audit.Read(parse(t, text, decision.IPv4))
		if len(node.Gaps) != wantGaps || len(node.Problems) != 1-wantGaps {
			t.Errorf("%d services: problems %q, gaps %q", services, node.Problems, node.Gaps)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	dump := parse(b, render(b, largeTable(5000), decision.IPv4), decision.IPv4)
	for b.Loop() {
		audit.Read(dump)
	}
}

func BenchmarkCompare(b *testing.B) {
	before := parse(b, render(b, largeTable(5000), decision.IPv4), decision.IPv4)
	after := parse(b, render(b, largeTable(4990), decision.IPv4), decision.IPv4)
	for b.Loop() {
		if c := audit.Compare(before, after, false); len(c.Services) != 10 || len(c.Tables) != 0 {
			b.Fatal("want 10 services, and nothing else")
		}
	}
}

// TestLargeNFTables: 10,000 services with three endpoints each are read in linear time.
func TestLargeNFTables(t *testing.T) {
	const n = 10000
	ruleset := nftproxy.Tables(largeTable(n), nftproxy.Options{}, decision.IPv4)
	began := time.Now()
	node := audit.ReadNFTables(ruleset)[0]
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("reading took %s", took)
	}
	if len(node.Services) != n || len(node.Problems)+len(node.Gaps) > 0 || len(node.Services[n-1].Endpoints) != 3 {
		t.Fatalf("%d services, problems %q, gaps %q", len(node.Services), node.Problems, node.Gaps)
	}
}
