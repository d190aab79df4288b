package kubechains

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
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
	targets []netip.Addr // of packets besides the services' own addresses: node addresses
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

// loopback is a loopback address. IPv6 has only one.
func (w *world) loopback(i byte) netip.Addr {
	if w.family == decision.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, i})
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
		Addresses:          []netip.Addr{w.addr(netNode, 9), w.addr(netNode, 1), w.addr(netNode, 7), w.addr(netVIP, 1)},
		LocalhostNodePorts: w.coin(2),
		MasqueradeAll:      w.coin(6),
		// By the seed, so that each back end of iptables meets it.
		NoHairpinMasquerade: seed%5 == 4,
	}
	if w.coin(3) {
		node.MasqueradeMark = 1 << w.IntN(32)
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
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if family == decision.IPv6 {
		loopback = netip.MustParsePrefix("::1/128")
	}
	switch w.IntN(5) {
	case 0:
		node.NodePortAddresses = []netip.Prefix{netip.PrefixFrom(w.addr(netNode, 1), w.addr(netNode, 1).BitLen())}
	case 1:
		node.NodePortAddresses = []netip.Prefix{w.prefix(netOutside, 0)}
	case 2:
		node.NodePortAddresses = []netip.Prefix{loopback, w.prefix(netVIP, 0)}
	}
	var services []*decision.ServicePort
	for i := range 8 {
		services = append(services, w.service(i))
	}
	// A ClusterIP may be an address of the node, on which node ports count as well.
	if w.coin(4) {
		node.Addresses = append(node.Addresses, w.addr(netService, 1))
	}
	w.table = decision.NewTable(1, time.Time{}, node, services)
	w.targets = []netip.Addr{w.addr(netNode, 1), w.addr(netNode, 7), w.addr(netVIP, 1), w.addr(netNode, 2)}
	w.sources = []netip.Addr{
		w.addr(netPod, 1), w.addr(netPod, 2), w.addr(netPod, 300), w.addr(netOutside, 1), w.addr(netOutside, 2),
		w.addr(netNode, 1), w.addr(netNode, 7), w.addr(netNode, 2), w.addr(netVIP, 1), w.loopback(1),
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
	hints := w.coin(3) // some endpoints are for other zones, but not under policy Local
	for k, e := range s.Endpoints {
		if s.UsesCluster() && (k == 0 || !hints || w.coin(2)) {
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
	return w.packetTo(s, w.sources[w.IntN(len(w.sources))])
}

// packetTo makes a packet from the source that is likely to be about the service.
func (w *world) packetTo(s *decision.ServicePort, src netip.Addr) *decision.Packet {
	p := &decision.Packet{Protocol: s.Protocol}
	p.Local = w.table.IsLocal(src)
	if p.Local && w.coin(4) && !src.IsLoopback() {
		p.Local = false // looped back by a load balancer
	}
	if !p.Local {
		p.InInterface = []string{"cni0", "veth1", "eth0"}[w.IntN(3)]
	}
	p.Source = netip.AddrPortFrom(src, uint16(1024+w.IntN(60000)))
	dst := slices.Concat([]netip.Addr{s.ClusterIP, s.ClusterIP}, w.targets, s.ExternalIPs, s.LoadBalancerIPs)
	if p.Local {
		dst = append(dst, w.loopback(1), w.loopback(5))
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
