//go:build linux

package netfilter

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/bench/cluster/kubeproxytest"
	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
)

// TestKernelAgreesAboutKubeProxy has the real kube-proxy write its tables of mode nftables for generated clusters, and sends packets to
// the services through these. A disagreement is found again by -kernel.seed with its number.
func TestKernelAgreesAboutKubeProxy(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	netnstest.RequireTool(t, "nft")
	clustertest.RequireProgram(t, cluster.KubeProxy)
	seen := make(tally)
	n := newKernelNode(t, newHost(variant{}))
	clusters, packets := uint64(netnstest.Cases(40, 2)), netnstest.Cases(200, 80)
	for seed := *firstSeed; seed < *firstSeed+clusters; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := newProxied(seed)
			rules := p.rules(t, n.host)
			for _, is4 := range []bool{true, false} {
				w := newWorld(n.host, is4)
				w.services, w.destinations = p.targets(is4)
				tr := n.loadNative(t, tracking+rules, seed%2 == 0 == is4, is4, seen)
				n.send(t, tr, seed, packets, &w.traffic)
			}
		})
	}
	seen.log(t)
	if t.Failed() {
		return
	}
	for _, what := range []string{"entry DNAT", "entry SNAT", "verdict rejected", "verdict dropped", "direction reply"} {
		seen.atLeast(t, 2, what)
	}
}

// proxied is a generated cluster, seen from the node of newHost.
type proxied struct {
	*rand.Rand
	objects *kube.Objects
	node    servicetable.NodeConfig
}

// prefixesOf are those of the families: of addresses of services, and of pods.
var (
	servicePrefixes = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/64")}
	podPrefixes     = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00::/61")}
)

// podsOf are the pods that endpoints have, by family: the first three are on the node.
var podsOf = [][]string{{"10.244.1.2", "10.244.1.3", "10.244.3.2", "10.244.2.7", "203.0.113.11"}, {"fd00:1::2", "fd00:1::3", "fd00:3::2", "fd00:2::7", "2001:db8:113::11"}}

func newProxied(seed uint64) *proxied {
	p := &proxied{Rand: rand.New(rand.NewPCG(seed, 0)), objects: &kube.Objects{}, node: servicetable.NodeConfig{Name: "node-a"}}
	switch p.IntN(5) {
	case 0: // local traffic is not told from other
	case 1:
		p.node.Mode, p.node.Bridge = servicetable.BridgeInterface, "cni0"
	case 2:
		p.node.Mode, p.node.InterfacePrefix = servicetable.InterfaceNamePrefix, "veth"
	default:
		p.node.ClusterCIDRs = podPrefixes
	}
	p.node.MasqueradeAll, p.node.PrimaryNodePorts = p.coin(6), p.coin(3)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	for _, a := range []string{"192.0.2.1", "2001:db8:2::1"} {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	p.objects.Nodes = []*corev1.Node{node}
	ranges := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	for _, r := range servicePrefixes {
		ranges.Spec.CIDRs = append(ranges.Spec.CIDRs, r.String())
	}
	p.objects.Context.ServiceCIDRs = []*networkingv1.ServiceCIDR{ranges}
	for i := range 8 {
		p.service(i)
	}
	return p
}

func (p *proxied) coin(oneIn int) bool { return p.IntN(oneIn) == 0 }

// service makes a Service of one of the kinds, in one family or both. The number sees to it that all kinds come up.
func (p *proxied) service(i int) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("s", i), UID: types.UID(fmt.Sprint("s", i))}}
	spec := &s.Spec
	spec.Type = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer}[i%4]
	families := [][]int{{0, 1}, {0, 1}, {0}, {1}}[p.IntN(4)]
	spec.InternalTrafficPolicy, spec.ExternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster), corev1.ServiceExternalTrafficPolicyCluster
	if p.coin(5) {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if p.coin(2) {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if p.coin(3) {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10800))}}
	}
	for n, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}[:1+p.IntN(3)] {
		port := corev1.ServicePort{Name: fmt.Sprint("p", n), Port: int32(80 + n), Protocol: protocol}
		if spec.Type != corev1.ServiceTypeClusterIP {
			port.NodePort = int32(30000 + 10*i + n)
		}
		spec.Ports = append(spec.Ports, port)
	}
	for _, f := range families {
		spec.IPFamilies = append(spec.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}[f])
		spec.ClusterIPs = append(spec.ClusterIPs, []string{fmt.Sprint("10.96.0.", 10+i), fmt.Sprint("fd00:96::1", i)}[f])
		if p.coin(4) {
			spec.ExternalIPs = append(spec.ExternalIPs, []string{fmt.Sprint("192.0.2.9", i), fmt.Sprint("2001:db8:2::9", i)}[f])
		}
		if spec.Type == corev1.ServiceTypeLoadBalancer {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: []string{fmt.Sprint("192.0.2.8", i), fmt.Sprint("2001:db8:2::8", i)}[f]})
			if p.coin(2) {
				spec.LoadBalancerSourceRanges = append(spec.LoadBalancerSourceRanges, []string{"203.0.113.0/28", "2001:db8:113::/64"}[f], []string{"192.0.2.0/26", "fd00:1::/64"}[f])
			}
		}
		if i != 5 { // this one has no endpoints
			p.slice(s, f)
		}
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	p.objects.Services = append(p.objects.Services, s)
}

// slice gives a Service endpoints in a family: ready ones, and some that end or are not ready yet.
func (p *proxied) slice(s *corev1.Service, family int) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: s.Namespace, Name: fmt.Sprint(s.Name, "-", family), Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
		AddressType: discoveryv1.AddressType([]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}[family]),
	}
	for _, port := range s.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name, Protocol: &port.Protocol, Port: new(8000 + port.Port)})
	}
	ending := p.coin(4) // none is ready: those that end serve
	for i, a := range podsOf[family] {
		if p.coin(2) {
			continue
		}
		ready, serving, terminating := true, true, false
		if ending || p.coin(5) {
			ready, serving, terminating = false, !p.coin(3), !p.coin(4)
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, NodeName: new(map[bool]string{true: "node-a", false: "node-b"}[i < 3]),
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		})
	}
	p.objects.EndpointSlices = append(p.objects.EndpointSlices, slice)
}

// rules are the tables that kube-proxy writes on the host.
func (p *proxied) rules(t testing.TB, h *Host) string {
	t.Helper()
	var addresses []netip.Prefix
	for _, i := range h.Interfaces {
		for _, a := range i.Addresses {
			if !a.Prefix.Addr().IsLoopback() {
				addresses = append(addresses, a.Prefix)
			}
		}
	}
	table, _ := servicetable.Table(p.objects, p.node)
	var want strings.Builder
	_, err := nftproxy.Tables(table, nftproxy.Options{ServiceCIDRs: servicePrefixes}, decision.IPv4, decision.IPv6).WriteTo(&want)
	check(t, err)
	sorted := func(text string) string { return strings.Join(slices.Sorted(strings.Lines(text)), "") }
	complete := sorted(want.String())
	rules := kubeproxytest.NFTables(t, p.objects, &p.node, addresses, func(listing string) bool { return sorted(listing) == complete })
	if !strings.Contains(rules, "table ip6 kube-proxy") {
		t.Fatalf("kube-proxy wrote\n%s", rules)
	}
	return rules
}

// targets are where packets go: the services' addresses and node ports, and others of theirs.
func (p *proxied) targets(is4 bool) (services []service, destinations []netip.Addr) {
	own := map[bool][]string{true: {"192.0.2.1", "192.0.2.2", "172.17.0.1"}, false: {"2001:db8:2::1", "2001:db8:2::2", "fd00:17::1"}}[is4]
	for _, s := range p.objects.Services {
		at := slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs)
		for _, i := range s.Status.LoadBalancer.Ingress {
			at = append(at, i.IP)
		}
		at = slices.DeleteFunc(at, func(a string) bool { return netip.MustParseAddr(a).Is4() != is4 })
		destinations = append(destinations, addrs(at...)...)
		for _, port := range s.Spec.Ports {
			protocol := map[corev1.Protocol]uint8{corev1.ProtocolTCP: protoTCP, corev1.ProtocolUDP: protoUDP, corev1.ProtocolSCTP: protoSCTP}[port.Protocol]
			for _, a := range at {
				services = append(services, service{protocol, netip.AddrPortFrom(netip.MustParseAddr(a), uint16(port.Port)).String()})
			}
			if port.NodePort != 0 {
				services = append(services, service{protocol, netip.AddrPortFrom(netip.MustParseAddr(own[p.IntN(len(own))]), uint16(port.NodePort)).String()})
			}
		}
	}
	return services, slices.Concat(destinations, addrs(own...), addrs(map[bool][]string{
		true: {"10.96.0.99", "127.0.0.1", "10.244.1.2", "10.244.2.7", "203.0.113.10"}, false: {"fd00:96::99", "::1", "fd00:1::2", "fd00:2::7", "2001:db8:113::10"},
	}[is4]...))
}
