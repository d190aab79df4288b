package audit_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/paper/audit"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/kubesave"
)

var families = []decision.Family{decision.IPv4, decision.IPv6}

// cluster is a generated cluster, and how one of its nodes is configured.
type cluster struct {
	*rand.Rand
	objects *kube.Objects
	config  servicetable.NodeConfig
	kernel  kubechains.Kernel
}

// addr gives address i of a net, in either family.
func addr(f decision.Family, net, i int) string {
	if f == decision.IPv4 {
		return fmt.Sprintf("10.%d.%d.%d", net, i>>8, i&255)
	}
	return fmt.Sprintf("fd00:%d::%x", net, i)
}

// The nets of a cluster.
const (
	serviceNet  = 96
	podNet      = 244
	nodeNet     = 20
	externalNet = 50
	balancerNet = 51
	clientNet   = 99
)

// What several services may claim.
const (
	sharedAddress  = 250
	sharedNodePort = 29999
)

func prefix(f decision.Family, net int) netip.Prefix {
	bits := 16
	if f == decision.IPv6 {
		bits = 32
	}
	return netip.PrefixFrom(netip.MustParseAddr(addr(f, net, 0)), bits).Masked()
}

func (c *cluster) coin(oneIn int) bool { return c.IntN(oneIn) == 0 }

// newCluster generates Services of all kinds, seen from node-1.
func newCluster(seed uint64) *cluster {
	c := &cluster{Rand: rand.New(rand.NewPCG(seed, 0)), objects: &kube.Objects{}}
	c.config = servicetable.NodeConfig{Name: "node-1", LocalhostNodePorts: !c.coin(4), MasqueradeAll: c.coin(8)}
	if c.coin(4) {
		c.config.MasqueradeMark = 1 << c.IntN(32)
	}
	switch c.IntN(8) {
	case 0: // no detector
	case 1:
		c.config.Mode, c.config.Bridge = servicetable.BridgeInterface, "cni0"
	case 2:
		c.config.Mode, c.config.InterfacePrefix = servicetable.InterfaceNamePrefix, "veth"
	default:
		c.config.ClusterCIDRs = []netip.Prefix{prefix(decision.IPv4, podNet), prefix(decision.IPv6, podNet)}
	}
	c.config.PrimaryNodePorts = c.coin(4)
	c.kernel = kubechains.Kernel{NFAcct: c.coin(2), TCPLiberal: c.coin(4)}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	for _, f := range families {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr(f, nodeNet, 1)})
	}
	c.objects.Nodes = []*corev1.Node{node}
	for i := range 1 + c.IntN(5) {
		c.service(i)
	}
	return c
}

func (c *cluster) service(i int) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("s", i)}}
	spec := &s.Spec
	spec.Type = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer}[c.IntN(3)]
	of := [][]decision.Family{families, families[:1], families[1:]}[c.IntN(3)]
	for _, f := range of {
		spec.ClusterIPs = append(spec.ClusterIPs, addr(f, serviceNet, i+1))
		if c.coin(4) {
			spec.ExternalIPs = append(spec.ExternalIPs, addr(f, externalNet, i+1), addr(f, externalNet, i+100))
		}
		if c.coin(4) {
			spec.ExternalIPs = append(spec.ExternalIPs, addr(f, externalNet, sharedAddress))
		}
		if spec.Type == corev1.ServiceTypeLoadBalancer && !c.coin(4) {
			for n := range 1 + c.IntN(2) {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: addr(f, balancerNet, i+1+100*n)})
			}
			if c.coin(2) {
				spec.LoadBalancerSourceRanges = append(spec.LoadBalancerSourceRanges, prefix(f, clientNet).String())
			}
			if c.coin(3) {
				spec.LoadBalancerSourceRanges = append(spec.LoadBalancerSourceRanges, prefix(f, nodeNet).String())
			}
		}
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	if c.coin(4) {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	if c.coin(2) {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		if spec.Type == corev1.ServiceTypeLoadBalancer && c.coin(2) {
			spec.HealthCheckNodePort = int32(32000 + i)
		}
	}
	if c.coin(3) {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(600 + i))}}
	}
	ports := 1 + c.IntN(3)
	for n := range ports {
		p := corev1.ServicePort{Port: int32(80 + n), Protocol: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}[c.IntN(3)]}
		if ports > 1 || c.coin(2) {
			p.Name = fmt.Sprint("p", n)
		}
		if spec.Type != corev1.ServiceTypeClusterIP && !c.coin(5) {
			p.NodePort = int32(30000 + 10*i + n)
			if n == 0 && c.coin(4) {
				p.NodePort = sharedNodePort
			}
		}
		spec.Ports = append(spec.Ports, p)
	}
	c.objects.Services = append(c.objects.Services, s)
	for _, f := range of {
		for range c.IntN(3) {
			c.slice(s, f)
		}
	}
}

// slice makes an EndpointSlice with some of the Service's ports. The pod of an address is
// always on the same node.
func (c *cluster) slice(s *corev1.Service, f decision.Family) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: fmt.Sprint(s.Name, "-", len(c.objects.EndpointSlices)),
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
		},
		AddressType: discoveryv1.AddressType(f.String()),
	}
	for _, p := range s.Spec.Ports {
		if !c.coin(4) {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: new(8000 + p.Port + int32(c.IntN(2)))})
		}
	}
	hints := c.coin(3)
	for range 1 + c.IntN(4) {
		i := 1 + c.IntN(6)
		e := discoveryv1.Endpoint{Addresses: []string{addr(f, podNet, i)}, NodeName: new(fmt.Sprint("node-", 1+i%2))}
		if hints {
			e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: fmt.Sprint("node-", 1+c.IntN(2))}}}
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	c.objects.EndpointSlices = append(c.objects.EndpointSlices, slice)
}

// render gives the rules of the table as iptables-save prints them.
func render(t testing.TB, table *decision.Table, f decision.Family) string {
	t.Helper()
	return renderFor(t, table, f, kubechains.Kernel{})
}

func renderFor(t testing.TB, table *decision.Table, f decision.Family, k kubechains.Kernel) string {
	t.Helper()
	var b bytes.Buffer
	if err := kubesave.Render(&b, kubechains.Rules(table, f, k)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func parse(t testing.TB, text string, f decision.Family) *iptables.Dump {
	t.Helper()
	family := iptables.IPv4
	if f == decision.IPv6 {
		family = iptables.IPv6
	}
	d, err := iptables.Parse(strings.NewReader(text), iptables.Options{Family: family})
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return d
}

// shown is what the rules show of a service port. here reports for addresses on this node, or
// another, whether some rule shows it.
func shown(s *decision.ServicePort, siblings []*decision.ServicePort, nodeIP netip.Addr, where map[netip.Addr]audit.Locality) *audit.Service {
	d := &audit.Service{
		Name: s.Name, Protocol: s.Protocol, Family: s.Family, ClusterIP: s.ClusterIP, Port: s.Port, NodePort: s.NodePort,
		ExternalIPs: slices.Clone(s.ExternalIPs), HealthCheckNodePort: s.HealthCheckNodePort, Refused: !s.HasEndpoints,
	}
	if s.HealthCheckNodePort != 0 {
		d.ExternalPolicy = s.ExternalPolicy
	}
	// All ports of a Service have its load balancer IPs, which a port shows if it has endpoints.
	if slices.ContainsFunc(siblings, func(s *decision.ServicePort) bool { return s.HasEndpoints }) {
		d.LoadBalancerIPs = s.LoadBalancerIPs
	} else {
		d.ExternalIPs = append(d.ExternalIPs, s.LoadBalancerIPs...)
	}
	if !s.HasEndpoints {
		return d
	}
	if len(s.LoadBalancerIPs) > 0 {
		d.SourceRanges = s.SourceRanges
		d.NodeAllowed = s.Allows(nodeIP)
	}
	d.InternalPolicy = s.InternalPolicy
	if s.External() {
		d.ExternalPolicy = s.ExternalPolicy
	}
	d.Dropped = s.UsesLocal() && len(s.Usable[decision.Local]) == 0
	if len(s.Usable[decision.Local])+len(s.Usable[decision.Cluster]) > 0 {
		d.AffinitySeconds = s.AffinitySeconds
	}
	for i, e := range s.Endpoints {
		shares := [2]float64{}
		for policy, usable := range s.Usable {
			if slices.Contains(usable, uint32(i)) {
				shares[policy] = 1 / float64(len(usable))
			}
		}
		if shares != [2]float64{} {
			d.Endpoints = append(d.Endpoints, audit.Endpoint{
				Chain: s.EndpointChain(e.AddrPort), AddrPort: e.AddrPort,
				Share: shares[decision.Cluster], LocalShare: shares[decision.Local], Locality: where[e.AddrPort.Addr()],
			})
		}
	}
	return d
}

// localities are what services of policy Local show of where endpoints are.
func localities(services []*decision.ServicePort, f decision.Family) map[netip.Addr]audit.Locality {
	where := make(map[netip.Addr]audit.Locality)
	for _, s := range services {
		if s.Family != f || !s.UsesLocal() {
			continue
		}
		for _, usable := range s.Usable {
			for _, i := range usable {
				where[s.Endpoints[i].AddrPort.Addr()] = audit.OnAnotherNode
				if s.Endpoints[i].Local {
					where[s.Endpoints[i].AddrPort.Addr()] = audit.OnThisNode
				}
			}
		}
	}
	return where
}
