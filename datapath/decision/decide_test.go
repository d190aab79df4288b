package decision

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
)

// fixed is a Rand that always draws the same number.
type fixed float64

func (f fixed) Float64() float64 { return float64(f) }

func TestDecide(t *testing.T) {
	dns := port("kube-system/dns:dns", UDP, "10.96.0.10:53", 0, "10.244.0.2:53", "10.244.0.3:53")
	web := port("default/web", TCP, "10.96.118.136:80", 30080, "10.244.1.2:8080")
	empty := port("default/empty", TCP, "10.96.0.99:80", 30099)
	host := port("default/host", SCTP, "10.96.0.7:7", 30007, "172.20.0.2:7000")
	web6 := port("default/web", TCP, "[fd96::1]:80", 30080, "[fd44::2]:8080")
	tb := table(t, cluster(), dns, web, empty, host, web6)

	local := func(p *Packet) *Packet { p.Local = true; return p }
	tests := []struct {
		name   string
		packet *Packet
		draw   fixed
		want   string // verdict reason entry [endpoint mark masquerade]
	}{
		{"pod to ClusterIP, low draw", packet(UDP, "10.244.1.9:1000", "10.96.0.10:53"), 0.4999, "dnat balanced cluster-ip 10.244.0.2:53"},
		{"pod to ClusterIP, high draw", packet(UDP, "10.244.1.9:1000", "10.96.0.10:53"), 0.5, "dnat balanced cluster-ip 10.244.0.3:53"},
		{"largest draw there is", packet(UDP, "10.244.1.9:1000", "10.96.0.10:53"), 0x1.fffffffffffffp-1, "dnat balanced cluster-ip 10.244.0.3:53"},
		{"other protocol of a ClusterIP port", packet(TCP, "10.244.1.9:1000", "10.96.0.10:53"), 0, "accept not-a-service none"},
		{"undefined port of a ClusterIP", packet(UDP, "10.244.1.9:1000", "10.96.0.10:54"), 0, "accept not-a-service none"},
		{"pod to pod", packet(TCP, "10.244.1.9:1000", "10.244.1.2:8080"), 0, "accept not-a-service none"},
		{"outside the cluster to ClusterIP", packet(TCP, "172.20.0.9:1000", "10.96.118.136:80"), 0, "dnat balanced cluster-ip 10.244.1.2:8080 source-outside-cluster snat"},
		{"node to ClusterIP", local(packet(TCP, "172.20.0.2:1000", "10.96.118.136:80")), 0, "dnat balanced cluster-ip 10.244.1.2:8080 source-outside-cluster snat"},
		{"hairpin by ClusterIP", packet(TCP, "10.244.1.2:1000", "10.96.118.136:80"), 0, "dnat balanced cluster-ip 10.244.1.2:8080 hairpin snat"},
		{"outside to node port", packet(TCP, "172.20.0.9:1000", "172.20.0.2:30080"), 0, "dnat balanced node-port 10.244.1.2:8080 external snat"},
		{"pod to node port", packet(TCP, "10.244.1.9:1000", "172.20.0.2:30080"), 0, "dnat balanced node-port 10.244.1.2:8080 external snat"},
		{"hairpin by node port", packet(TCP, "10.244.1.2:1000", "172.20.0.2:30080"), 0, "dnat balanced node-port 10.244.1.2:8080 external snat"},
		{"node port on another node's address", packet(TCP, "10.244.1.9:1000", "172.20.0.3:30080"), 0, "accept not-a-service none"},
		{"other protocol of a node port", packet(UDP, "172.20.0.9:1000", "172.20.0.2:30080"), 0, "accept not-a-service none"},
		{"no endpoints by ClusterIP", packet(TCP, "10.244.1.9:1000", "10.96.0.99:80"), 0, "reject no-endpoints cluster-ip"},
		{"no endpoints by node port", packet(TCP, "172.20.0.9:1000", "172.20.0.2:30099"), 0, "reject no-endpoints node-port"},
		{"endpoint on the node itself, from outside", packet(SCTP, "172.20.0.9:1000", "172.20.0.2:30007"), 0, "dnat balanced node-port 172.20.0.2:7000 external"},
		{"endpoint on the node itself, from the node", local(packet(SCTP, "172.20.0.2:1000", "10.96.0.7:7")), 0, "dnat balanced cluster-ip 172.20.0.2:7000 source-outside-cluster snat"},
		{"IPv6 pod to ClusterIP", packet(TCP, "[fd44::9]:1000", "[fd96::1]:80"), 0, "dnat balanced cluster-ip [fd44::2]:8080"},
		{"IPv6 hairpin", packet(TCP, "[fd44::2]:1000", "[fd96::1]:80"), 0, "dnat balanced cluster-ip [fd44::2]:8080 hairpin snat"},
		{"IPv6 outside to node port", packet(TCP, "[fd20::9]:1000", "[fd20::2]:30080"), 0, "dnat balanced node-port [fd44::2]:8080 external snat"},
		{"IPv4 node port does not lead to IPv6", packet(TCP, "[fd20::9]:1000", "[fd20::2]:30099"), 0, "accept not-a-service none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := Decide(tb, tt.packet, tt.draw, nil, nil)
			got := fmt.Sprintf("%s %s %s", d.Verdict, d.Reason, d.Entry)
			if d.Verdict == DNAT {
				got += " " + d.Endpoint().String()
				if d.Mark != NotMarked {
					got += " " + d.Mark.String()
				}
				if d.Masquerade {
					got += " snat"
				}
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestMasqueradeAll(t *testing.T) {
	node := cluster()
	node.MasqueradeAll = true
	tb := table(t, node, port("default/web", TCP, "10.96.0.1:80", 0, "10.244.1.2:80"))
	if d := Decide(tb, packet(TCP, "10.244.1.9:1", "10.96.0.1:80"), nil, nil, nil); d.Mark != MarkAll || !d.Masquerade {
		t.Errorf("mark %q, want masquerade-all", d.Mark)
	}
}

func TestNoHairpinMasquerade(t *testing.T) {
	for _, off := range []bool{false, true} {
		node := cluster()
		node.NoHairpinMasquerade = off
		tb := table(t, node, port("default/web", TCP, "10.96.0.1:80", 30080, "10.244.1.2:80"))
		d := Decide(tb, packet(TCP, "10.244.1.2:1", "10.96.0.1:80"), nil, nil, nil)
		if d.Verdict != DNAT || d.Masquerade == off || (d.Mark == MarkHairpin) == off {
			t.Errorf("NoHairpinMasquerade %t: %s, mark %q, masquerade %t", off, d.Verdict, d.Mark, d.Masquerade)
		}
		// Other reasons to masquerade stay.
		if d := Decide(tb, packet(TCP, "10.244.1.2:1", "172.20.0.2:30080"), nil, nil, nil); d.Mark != MarkExternal || !d.Masquerade {
			t.Errorf("NoHairpinMasquerade %t, by the node port: mark %q, masquerade %t", off, d.Mark, d.Masquerade)
		}
	}
}

func TestNoLocalDetectorNotMarked(t *testing.T) {
	node := cluster()
	node.Detector.CIDRs = node.Detector.CIDRs[:1] // IPv4 only
	tb := table(t, node,
		port("default/web", TCP, "10.96.0.1:80", 0, "10.244.1.2:80"),
		port("default/web", TCP, "[fd96::1]:80", 0, "[fd44::2]:80"))
	if d := Decide(tb, packet(TCP, "172.20.0.9:1", "10.96.0.1:80"), nil, nil, nil); d.Mark != MarkOutside {
		t.Errorf("IPv4: mark %q, want source-outside-cluster", d.Mark)
	}
	if d := Decide(tb, packet(TCP, "[fd20::9]:1", "[fd96::1]:80"), nil, nil, nil); d.Mark != NotMarked {
		t.Errorf("IPv6 has no cluster CIDR: mark %q, want none", d.Mark)
	}
}

// TestBalance draws often and holds the counts against a uniform distribution.
func TestBalance(t *testing.T) {
	const n, draws = 7, 70000
	var endpoints []string
	for i := range n {
		endpoints = append(endpoints, fmt.Sprintf("10.244.0.%d:80", i+1))
	}
	tb := table(t, cluster(), port("default/web", TCP, "10.96.0.1:80", 0, endpoints...))
	r := rand.New(rand.NewPCG(1, 2))
	var counts [n]float64
	for range draws {
		d := Decide(tb, packet(TCP, "10.244.1.9:1", "10.96.0.1:80"), r, nil, nil)
		counts[d.Index]++
	}
	chi2 := 0.0
	for _, c := range counts {
		chi2 += (c - draws/n) * (c - draws/n) / (draws / n)
	}
	const limit = 22.46 // 6 degrees of freedom, p = 0.001
	if chi2 > limit {
		t.Errorf("chi-square %.1f > %.2f for counts %v", chi2, limit, counts)
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	tb := table(t, cluster(), port("default/web", TCP, "10.96.0.1:80", 30080, "10.244.0.1:80", "10.244.0.2:80"))
	r := rand.New(rand.NewPCG(1, 2))
	for _, dst := range []string{"10.96.0.1:80", "172.20.0.2:30080", "10.96.0.1:81"} {
		p := packet(TCP, "10.244.1.9:1", dst)
		if n := testing.AllocsPerRun(100, func() { Decide(tb, p, r, nil, nil) }); n != 0 {
			t.Errorf("to %s: %v allocations per decision", dst, n)
		}
	}
}

func TestDecisionNamesItsTable(t *testing.T) {
	tb := NewTable(42, time.Time{}, cluster(), nil)
	if d := Decide(tb, packet(TCP, "10.244.1.9:1", "10.96.0.1:80"), nil, nil, nil); d.Generation != 42 {
		t.Errorf("generation %d, want 42", d.Generation)
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			services := make([]*ServicePort, n)
			for i := range services {
				ip := netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})
				services[i] = port(fmt.Sprintf("default/s%d", i), TCP, netip.AddrPortFrom(ip, 80).String(), 0,
					"10.244.0.1:80", "10.244.0.2:80", "10.244.0.3:80")
			}
			tb := table(b, cluster(), services...)
			r := rand.New(rand.NewPCG(1, 2))
			// Packets to all services, so that caches show.
			packets := make([]*Packet, n)
			for i, k := range r.Perm(n) {
				s := services[k]
				packets[i] = packet(TCP, "10.244.1.9:1000", netip.AddrPortFrom(s.ClusterIP, s.Port).String())
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				Decide(tb, packets[i%len(packets)], r, nil, nil)
			}
		})
	}
}
