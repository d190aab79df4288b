package netfilter

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
)

const largeServices = 5000

// clusterIP is the address of a service of the large dump.
func clusterIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) }

// largeDump is what kube-proxy would leave on a node with that many services of two
// endpoints each: about ten rules for each.
func largeDump(t testing.TB) string {
	t.Helper()
	var services []*decision.ServicePort
	for i := range largeServices {
		s := &decision.ServicePort{
			Name:   decision.ServicePortName{Namespace: "default", Name: fmt.Sprintf("service-%d", i)},
			Family: decision.IPv4, Protocol: decision.TCP,
			ClusterIP: clusterIP(i), Port: 80, NodePort: uint16(30000 + i),
			HasEndpoints: true,
		}
		for k := range 2 {
			endpoint := netip.AddrFrom4([4]byte{10, 244, byte(i >> 7), byte(2*i + k)})
			s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.AddrPortFrom(endpoint, 8080)})
		}
		s.Usable[decision.Cluster] = []uint32{0, 1}
		services = append(services, s)
	}
	node := decision.Node{
		Addresses:      []netip.Addr{netip.MustParseAddr("172.20.0.2")},
		Detector:       decision.Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		MasqueradeMark: 0x4000,
	}
	table := decision.NewTable(1, time.Time{}, node, services)
	var b bytes.Buffer
	if err := kubesave.Render(&b, kubechains.Rules(table, decision.IPv4, kubechains.Kernel{})); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// toLast requests the service whose rules come last.
func toLast(m *Machine) ([]Way, float64) {
	p := packet(protoTCP, "10.244.1.2:40000", netip.AddrPortFrom(clusterIP(largeServices-1), 80).String(), "veth1")
	return m.Explore(p, nil, 100)
}

func TestLargeDump(t *testing.T) {
	d, err := iptables.Parse(strings.NewReader(largeDump(t)), iptables.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rules := 0
	for _, table := range d.Tables {
		rules += len(table.Rules)
	}
	if rules < 50000 {
		t.Errorf("the dump has %d rules, want at least 50,000", rules)
	}
	m, err := New([]*iptables.Dump{d}, nil, worker(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	ways, rest := toLast(m)
	if len(ways) != 2 || rest != 0 {
		t.Fatalf("%d ways, and the rest has probability %v; want the 2 endpoints", len(ways), rest)
	}
	for _, w := range ways {
		if w.Probability < 0.499 || w.Probability > 0.501 || w.Packet.Destination.Port() != 8080 {
			t.Errorf("to %s with probability %v, want an endpoint's port 8080 with 0.5", w.Packet.Destination, w.Probability)
		}
	}
}

// BenchmarkLoad reads a dump of 50,000 rules and makes a machine of it.
func BenchmarkLoad(b *testing.B) {
	text := largeDump(b)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		d, err := iptables.Parse(strings.NewReader(text), iptables.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := New([]*iptables.Dump{d}, nil, worker(), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExplore follows both ways of a packet through it.
func BenchmarkExplore(b *testing.B) {
	d, err := iptables.Parse(strings.NewReader(largeDump(b)), iptables.Options{})
	if err != nil {
		b.Fatal(err)
	}
	m, err := New([]*iptables.Dump{d}, nil, worker(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if ways, _ := toLast(m); len(ways) != 2 {
			b.Fatalf("%d ways, want 2", len(ways))
		}
	}
}
