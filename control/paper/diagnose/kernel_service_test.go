//go:build linux

package diagnose_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// cluster is generated services, as a node of a network sees them.
type cluster struct {
	*rand.Rand
	*plan
	node     decision.Node
	services []*decision.ServicePort
	table    *decision.Table
}

// coin is true once in n.
func (c *cluster) coin(n int) bool { return c.IntN(n) == 0 }

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// names are of Services: none is part of another.
var names = []decision.ServicePortName{
	{Namespace: "shop", Name: "cart", Port: "http"}, {Namespace: "default", Name: "web"}, {Namespace: "kube-system", Name: "kube-dns", Port: "dns"},
	{Namespace: "monitoring", Name: "prometheus-server", Port: "metrics"}, {Namespace: "db", Name: "postgres-ro"}, {Namespace: "ingress", Name: "nginx-controller", Port: "https"},
}

// newCluster generates between one and six service ports. Every one has endpoints.
func newCluster(r *rand.Rand, p *plan) *cluster {
	c := &cluster{Rand: r, plan: p}
	c.node = decision.Node{
		Name: "node-1", IPs: []netip.Addr{p.node}, Addresses: []netip.Addr{p.node},
		LocalhostNodePorts: c.coin(2), MasqueradeAll: c.coin(10),
	}
	if p.bridge != "" {
		c.node.Addresses = append(c.node.Addresses, p.gateway)
	}
	switch {
	case c.coin(8): // no detector
	case c.coin(8) && p.bridge != "":
		c.node.Detector.Bridge = p.bridge
	case c.coin(8):
		c.node.Detector.InterfacePrefix = p.podDevice(0)[:4]
	case c.coin(3):
		c.node.Detector.CIDRs = []netip.Prefix{p.here}
	default:
		c.node.Detector.CIDRs = []netip.Prefix{p.cluster}
	}
	if c.coin(6) {
		c.node.NodePortAddresses = []netip.Prefix{netip.PrefixFrom(p.node, 24).Masked()}
		c.node.LocalhostNodePorts = false
	}
	order := r.Perm(len(names))
	for i := range 1 + c.IntN(len(names)) {
		c.services = append(c.services, c.service(i, names[order[i]]))
	}
	c.update()
	return c
}

// update makes the table anew, when services have changed.
func (c *cluster) update() {
	c.table = decision.NewTable(1, time.Time{}, c.node, c.services)
}

func (c *cluster) service(i int, name decision.ServicePortName) *decision.ServicePort {
	s := &decision.ServicePort{
		Name: name, Protocol: pick(c.Rand, decision.TCP, decision.TCP, decision.UDP), Family: decision.IPv4,
		ClusterIP: c.clusterIP(i), Port: pick(c.Rand, uint16(80), 443, 53, 8080), InternalPolicy: decision.Policy(c.IntN(8) / 7),
	}
	if c.coin(2) {
		s.NodePort = uint16(30000 + 400*i + c.IntN(400))
		s.ExternalPolicy = decision.Policy(c.IntN(2))
	}
	if s.NodePort != 0 && c.coin(2) {
		s.LoadBalancerIPs = vips[i : i+1]
		if c.coin(3) {
			s.SourceRanges = []netip.Prefix{pick(c.Rand, netip.PrefixFrom(outsider, 24).Masked(), prefix("198.18.0.0/15"), c.cluster)}
		}
		if s.ExternalPolicy == decision.Local {
			s.HealthCheckNodePort = uint16(32000 + i)
		}
	}
	if c.coin(6) {
		s.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(120 + i)})}
	}
	if c.coin(6) {
		s.AffinitySeconds = 10800
	}
	c.endpoints(s)
	return s
}

func (c *cluster) clusterIP(i int) netip.Addr {
	a := c.plan.services.Masked().Addr().As4()
	a[2], a[3] = byte(c.IntN(200)), byte(1+40*i+c.IntN(40))
	return netip.AddrFrom4(a)
}

// endpoints gives a service port between one and four endpoints, here and elsewhere.
func (c *cluster) endpoints(s *decision.ServicePort) {
	all := []netip.Addr{c.plan.pods[0], c.plan.pods[1], c.remotePods[0], c.remotePods[1]}
	if c.coin(5) {
		all = []netip.Addr{c.plan.node, c.otherNode} // their Pods use the network of the node
	}
	port := pick(c.Rand, endpointPorts...)
	for _, i := range c.Perm(len(all))[:1+c.IntN(len(all))] {
		here := slices.Contains(append(c.plan.pods[:], c.plan.node), all[i])
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.AddrPortFrom(all[i], port), Local: here, Ready: true, Serving: true})
	}
	slices.SortFunc(s.Endpoints, func(a, b decision.Endpoint) int { return a.AddrPort.Compare(b.AddrPort) })
	s.HasEndpoints = true
	for k, e := range s.Endpoints {
		if s.UsesCluster() {
			s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(k))
		}
		if s.UsesLocal() && e.Local {
			s.Usable[decision.Local] = append(s.Usable[decision.Local], uint32(k))
		}
	}
}

// flows are those that clients could begin: pods of this node, the node itself, and clients outside of the cluster to what
// is open for them. There are several of each, as the rules draw endpoints.
func (c *cluster) flows() (flows []*flow) {
	for _, s := range c.services {
		external := slices.Concat(s.ExternalIPs, s.LoadBalancerIPs)
		for o := range origins {
			var to []netip.AddrPort
			if o != fromOutside {
				to = append(to, netip.AddrPortFrom(s.ClusterIP, s.Port))
			}
			for _, a := range external {
				to = append(to, netip.AddrPortFrom(a, s.Port))
			}
			if s.NodePort != 0 {
				to = append(to, netip.AddrPortFrom(c.plan.node, s.NodePort))
				if o == fromNode && c.node.LocalhostNodePorts {
					to = append(to, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), s.NodePort))
				}
			}
			for _, a := range to {
				f := c.flow(s, o, a)
				for range max(1, 2*len(s.Endpoints)-1) {
					another := f
					flows = append(flows, &another)
				}
			}
		}
	}
	return flows
}

// flow is one to a service port, with what kube-proxy's decision about it is.
func (c *cluster) flow(s *decision.ServicePort, o origin, to netip.AddrPort) flow {
	f := flow{service: s, origin: o, to: to, fd: -1}
	p := decision.Packet{Protocol: s.Protocol, Destination: to}
	switch o {
	case fromPod, fromOtherPod:
		p.Source, p.InInterface = netip.AddrPortFrom(c.plan.pods[o-fromPod], 40000), c.podDevice(int(o-fromPod))
	case fromNode:
		p.Source, p.Local = netip.AddrPortFrom(c.plan.node, 40000), true
		if to.Addr().IsLoopback() {
			p.Source = netip.AddrPortFrom(to.Addr(), 40000)
		}
	case fromOutside:
		p.Source, p.InInterface = netip.AddrPortFrom(outsider, 40000), c.external
		f.source = netip.AddrPortFrom(outsider, 0)
	}
	d := decision.Decide(c.table, &p, c.Rand, unbound{}, nil)
	f.want, f.why = d.Verdict == decision.DNAT, fmt.Sprintf("%s, %s", d.Verdict, d.Reason)
	return f
}

// unbound is session affinity of clients that come for the first time.
type unbound struct{}

func (unbound) Bound(*decision.ServicePort, netip.AddrPort, netip.Addr) bool { return false }
