package chains

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// bindings is an Affinity with a fixed content.
type bindings map[string]bool

func bindingKey(s *decision.ServicePort, ep netip.AddrPort, client netip.Addr) string {
	return fmt.Sprint(s.Name, s.Protocol, ep, client)
}

func (b bindings) Bound(s *decision.ServicePort, ep netip.AddrPort, client netip.Addr) bool {
	return b[bindingKey(s, ep, client)]
}

// world is a generated cluster with addresses worth sending to and from. The same
// seed gives the same world in both families, address for address.
type world struct {
	*rand.Rand
	family  decision.Family
	table   *decision.Table
	sources []netip.Addr
	bound   bindings
	nextEP  int
}

// addr gives address i of a net: both families number theirs alike.
func (w *world) addr(net, i int) netip.Addr {
	if w.family == decision.IPv4 {
		return netip.AddrFrom4([4]byte{10, byte(net), byte(i >> 8), byte(i)})
	}
	return netip.AddrFrom16([16]byte{0xfd, byte(net), 14: byte(i >> 8), 15: byte(i)})
}

// The nets of a world.
const (
	netService = 96
	netPod     = 244
	netNode    = 20
	netOutside = 99
	netVIP     = 50
)

func (w *world) prefix(net, bits int) netip.Prefix {
	base := 16 // of the net
	return netip.PrefixFrom(w.addr(net, 0), base+bits).Masked()
}

// coin is true once in n.
func (w *world) coin(n int) bool { return w.IntN(n) == 0 }

// pick picks some of the values, in order.
func pick[T any](w *world, oneIn int, values ...T) []T {
	var picked []T
	for _, v := range values {
		if w.coin(oneIn) {
			picked = append(picked, v)
		}
	}
	return picked
}

// newWorld generates a cluster with services of all kinds.
func newWorld(seed uint64, family decision.Family) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), family: family, bound: bindings{}}
	node := decision.Node{
		Name:               "node-1",
		IPs:                []netip.Addr{w.addr(netNode, 1)},
		Addresses:          []netip.Addr{w.addr(netNode, 1), w.addr(netNode, 7), w.addr(netVIP, 1)},
		LocalhostNodePorts: w.coin(2),
		MasqueradeAll:      w.coin(6),
	}
	switch w.IntN(5) {
	case 0: // no detector
	case 1:
		node.Detector.Bridge = "cni0"
	case 2:
		node.Detector.InterfacePrefix = "veth"
	default:
		node.Detector.CIDRs = []netip.Prefix{w.prefix(netPod, 0)}
	}
	switch w.IntN(4) {
	case 0:
		node.NodePortAddresses = []netip.Prefix{netip.PrefixFrom(w.addr(netNode, 1), w.addr(netNode, 1).BitLen())}
	case 1:
		node.NodePortAddresses = []netip.Prefix{w.prefix(netOutside, 0)}
	}
	var services []*decision.ServicePort
	for i := range 8 {
		services = append(services, w.service(i))
	}
	w.table, _ = decision.NewTable(1, time.Time{}, node, services)
	loopback := netip.MustParseAddr("127.0.0.1")
	if family == decision.IPv6 {
		loopback = netip.IPv6Loopback()
	}
	w.sources = []netip.Addr{
		w.addr(netPod, 1), w.addr(netPod, 2), w.addr(netPod, 300), w.addr(netOutside, 1), w.addr(netOutside, 2),
		w.addr(netNode, 1), w.addr(netNode, 7), w.addr(netNode, 2), w.addr(netVIP, 1), loopback,
	}
	for _, s := range services {
		for _, e := range s.Endpoints {
			for _, client := range w.sources {
				if w.coin(4) {
					w.bound[bindingKey(s, e.AddrPort, client)] = true
				}
			}
		}
	}
	return w
}

func (w *world) service(i int) *decision.ServicePort {
	s := &decision.ServicePort{
		Name:      decision.ServicePortName{Namespace: "default", Name: fmt.Sprint("s", i), Port: []string{"", "p"}[w.IntN(2)]},
		Protocol:  []decision.Protocol{decision.TCP, decision.UDP, decision.SCTP}[w.IntN(3)],
		Family:    w.family,
		ClusterIP: w.addr(netService, i+1),
		Port:      uint16(80 + w.IntN(2)),
	}
	if w.coin(2) {
		s.NodePort = uint16(30000 + i)
	}
	if w.coin(12) {
		s.NodePort = s.Port // so that a node's address and port can be two things
	}
	s.ExternalIPs = pick(w, 4, w.addr(netVIP, 10+i), w.addr(netNode, 7))
	s.LoadBalancerIPs = pick(w, 3, w.addr(netVIP, 20+i), w.addr(netVIP, 1))
	s.SourceRanges = pick(w, 4, w.prefix(netOutside, 0), w.prefix(netNode, 0), netip.PrefixFrom(w.addr(netPod, 1), w.addr(netPod, 1).BitLen()))
	s.InternalPolicy = decision.Policy(w.IntN(4) / 3)
	s.ExternalPolicy = decision.Policy(w.IntN(2))
	if w.coin(3) {
		s.AffinitySeconds = 10800
	}
	n := w.IntN(5)
	for range n {
		w.nextEP++
		addr := w.addr(netPod, 1+w.IntN(3))
		if w.coin(6) {
			addr = w.addr(netNode, 1) // host network
		}
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.AddrPortFrom(addr, uint16(8000+w.nextEP)), Local: w.coin(2)})
	}
	for k, e := range s.Endpoints {
		if s.UsesCluster() {
			s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(k))
			s.HasEndpoints = true
		}
		if s.UsesLocal() {
			s.HasEndpoints = true
			if e.Local {
				s.Usable[decision.Local] = append(s.Usable[decision.Local], uint32(k))
			}
		}
	}
	return s
}

// packet makes a packet that is likely to be about some service.
func (w *world) packet() *decision.Packet {
	s := w.table.Services()[w.IntN(len(w.table.Services()))]
	p := &decision.Packet{Protocol: s.Protocol}
	src := w.sources[w.IntN(len(w.sources))]
	p.Local = w.table.IsLocal(src)
	if p.Local && w.coin(4) && !src.IsLoopback() {
		p.Local = false // looped back by a load balancer
	}
	if !p.Local {
		p.InInterface = []string{"cni0", "veth1", "eth0"}[w.IntN(3)]
	}
	p.Source = netip.AddrPortFrom(src, uint16(1024+w.IntN(60000)))
	dst := []netip.Addr{s.ClusterIP, s.ClusterIP, w.addr(netNode, 1), w.addr(netNode, 7), w.addr(netVIP, 1), w.addr(netNode, 2)}
	dst = append(append(dst, s.ExternalIPs...), s.LoadBalancerIPs...)
	if p.Local {
		dst = append(dst, w.sources[len(w.sources)-1]) // loopback
	}
	port := s.Port
	if s.NodePort != 0 && w.coin(2) {
		port = s.NodePort
	}
	if w.coin(20) {
		port++
	}
	p.Destination = netip.AddrPortFrom(dst[w.IntN(len(dst))], port)
	return p
}

// drawn is a Rand that remembers what it gave.
type drawn struct {
	*rand.Rand
	n int
}

func (d *drawn) Float64() float64 { d.n++; return d.Rand.Float64() }

// TestWalkAgreesWithDecide leads many packets through many clusters both ways:
// decision.Decide, and the rules themselves.
func TestWalkAgreesWithDecide(t *testing.T) {
	worlds := 1000
	if testing.Short() {
		worlds = 200
	}
	seen := make(map[string]int)
	for seed := range uint64(worlds) {
		for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
			w := newWorld(seed, f)
			for range 25 {
				p := w.packet()
				r := &drawn{Rand: w.Rand}
				d := decision.Decide(w.table, p, r, w.bound)
				walk := newWalker(w.table, p, &d, w.bound)
				walk.walk()
				if told := Walk(w.table, p, &d); text(told) != text(walk.steps) {
					t.Fatalf("seed %d: Walk tells\n%sthe affinity of then gives\n%s", seed, text(told), text(walk.steps))
				}
				want := fmt.Sprintf("%s dnat=%v to %v snat=%v", walk.verdict, walk.dnat, walk.dst, walk.snat)
				dst := p.Destination
				if d.Verdict == decision.DNAT {
					dst = d.Endpoint()
				}
				got := fmt.Sprintf("%s dnat=%v to %v snat=%v", d.Verdict, d.Verdict == decision.DNAT, dst, d.Masquerade)
				if got != want || r.n > 1 || d.Drawn != (r.n == 1) {
					t.Fatalf("seed %d %s, packet %+v: decided %s (%s, %s, %s; %d draws), the rules say %s\n%s", seed, f, *p, got, d.Reason, d.Entry, d.Mark, r.n, want, text(walk.steps))
				}
				seen[fmt.Sprintf("%s/%s", d.Verdict, d.Reason)]++
				seen["entry "+d.Entry.String()]++
				seen["branch "+d.Branch.String()]++
				seen["mark "+d.Mark.String()]++
			}
		}
	}
	// The generator has to bring everything up, or agreeing means little.
	for _, what := range []string{
		"accept/not-a-service", "dnat/balanced", "dnat/affinity", "reject/no-endpoints", "drop/no-local-endpoints", "drop/source-not-allowed", "drop/foreign-localnet", "accept/not-filtered",
		"entry cluster-ip", "entry external-ip", "entry load-balancer-ip", "entry node-port",
		"branch internal-policy", "branch external-policy", "branch pod-short-circuit", "branch node-short-circuit",
		"mark masquerade-all", "mark source-outside-cluster", "mark external", "mark local-source", "mark hairpin",
	} {
		if seen[what] < worlds/50 {
			t.Errorf("%s came up only %d times", what, seen[what])
		}
	}
}

func text(steps []Step) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%s: %s -A %s %s\n    %s\n", s.Outcome, s.Table, s.Chain, s.Rule, s.Text)
	}
	return b.String()
}

// TestFamiliesMirrorEachOther: the same cluster and packet in the other family give
// the same decision, loopback aside.
func TestFamiliesMirrorEachOther(t *testing.T) {
	for seed := range uint64(500) {
		w4, w6 := newWorld(seed, decision.IPv4), newWorld(seed, decision.IPv6)
		for range 20 {
			p4, p6 := w4.packet(), w6.packet()
			d4 := decision.Decide(w4.table, p4, w4.Rand, w4.bound)
			d6 := decision.Decide(w6.table, p6, w6.Rand, w6.bound)
			if p4.Source.Addr().IsLoopback() || p4.Destination.Addr().IsLoopback() {
				w6 = newWorld(seed, decision.IPv6) // their randomness has gone apart
				w4 = newWorld(seed, decision.IPv4)
				break
			}
			tell := func(d *decision.Decision) string {
				s := fmt.Sprint(d.Verdict, d.Reason, d.Entry, d.Branch, d.Policy, d.Mark, d.Masquerade, d.Draw)
				if d.Verdict == decision.DNAT {
					s += fmt.Sprint(d.ServicePort.Name, d.Index)
				}
				return s
			}
			if tell(&d4) != tell(&d6) {
				t.Fatalf("seed %d: %+v gives %s, %+v gives %s", seed, *p4, tell(&d4), *p6, tell(&d6))
			}
		}
	}
}

// TestSentences: every step has a rule and a sentence without a slip of fmt.
func TestSentences(t *testing.T) {
	for seed := range uint64(300) {
		w := newWorld(seed, decision.IPv4)
		for range 20 {
			p := w.packet()
			d := decision.Decide(w.table, p, w.Rand, w.bound)
			steps := Walk(w.table, p, &d)
			if len(steps) == 0 {
				t.Fatalf("no steps for %+v", *p)
			}
			for _, s := range steps {
				if s.Text == "" || strings.Contains(s.Text, "%!") || strings.Contains(s.Rule, "%!") {
					t.Fatalf("step %+v", s)
				}
			}
			if slices.ContainsFunc(steps, func(s Step) bool { return s.Outcome == Applied && strings.Contains(s.Rule, "-j DNAT") }) != (d.Verdict == decision.DNAT) {
				t.Fatalf("verdict %s, steps\n%s", d.Verdict, text(steps))
			}
		}
	}
}
