package kubechains_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// nftablesConfigurations are of mode nftables. Node ports on all addresses are not its default.
var nftablesConfigurations = func() []configuration {
	pods := prefixes("10.244.0.0/16", "fd00:10:244::/48")
	const all, cidrs = "--nodeport-addresses=0.0.0.0/0,::/0", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"
	return []configuration{
		{name: "all addresses", flags: []string{all, cidrs}, config: servicetable.NodeConfig{ClusterCIDRs: pods}},
		{name: "primary addresses", flags: []string{cidrs}, config: servicetable.NodeConfig{ClusterCIDRs: pods, PrimaryNodePorts: true}},
		{name: "masquerade all", flags: []string{all, cidrs, "--masquerade-all"}, config: servicetable.NodeConfig{ClusterCIDRs: pods, MasqueradeAll: true}},
		{name: "no detection", flags: []string{all}},
		{
			name: "detect by bridge", flags: []string{all, "--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"},
			config: servicetable.NodeConfig{Mode: servicetable.BridgeInterface, Bridge: "cni0"},
		},
		{
			name: "detect by interface prefix", flags: []string{all, "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"},
			config: servicetable.NodeConfig{Mode: servicetable.InterfaceNamePrefix, InterfacePrefix: "veth"},
		},
	}
}()

// compareNFTables has the real kube-proxy write services of all kinds into the kernel in mode nftables,
// and sends packets through its rules.
func (r *real) compareNFTables(t *testing.T) {
	objects := variety()
	r.create(t, objects)
	recorded := recorded(t)
	objects.Services = append(objects.Services, recorded.Services...)
	objects.EndpointSlices = append(objects.EndpointSlices, recorded.EndpointSlices...)
	objects.Nodes = recorded.Nodes
	seen := make(map[string]int)
	for _, c := range nftablesConfigurations {
		if !netnstest.Selected(c.name, "all addresses", "primary addresses", "masquerade all") {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			c.config.Name = "node-a"
			table, _ := servicetable.Table(objects, c.config)
			rules := r.nftablesRules(t, table, c.flags)
			given := &kubechains.Given{Table: table.Next(time.Time{}, nodeOf(table)), ServiceCIDRs: prefixes("10.96.0.0/16", "fd00:10:96::/108")}
			for _, a := range []string{
				"10.244.1.2", "10.244.1.7", "10.244.2.3", "192.0.2.9", "198.18.0.1", "172.20.0.2", "172.20.0.9", "203.0.113.3", "127.0.0.1",
				"fd00:10:244:1::2", "fd00:10:244:1::7", "fd00:10:244:2::3", "fd00:99::1", "2001:db8:9::1", "fd00:172:20::2", "fd00:172:20::9", "2001:db8:5::3", "::1",
			} {
				given.Sources = append(given.Sources, netip.MustParseAddr(a))
			}
			for _, a := range []string{
				"172.20.0.2", "172.20.0.9", "203.0.113.3", "172.20.0.3", "10.96.200.1",
				"fd00:172:20::2", "fd00:172:20::9", "2001:db8:5::3", "fd00:172:20::3", "fd00:10:96::9999",
			} {
				given.Targets = append(given.Targets, netip.MustParseAddr(a))
			}
			for what, n := range kubechains.CompareNFTables(t, given, rules) {
				seen[what] += n
			}
		})
	}
	for _, what := range []string{
		"dnat entry cluster-ip", "dnat entry external-ip", "dnat entry load-balancer-ip", "dnat entry node-port",
		"dnat branch pod-short-circuit", "dnat branch node-short-circuit", "dnat TCP", "dnat UDP", "dnat SCTP",
		"dnat node port restricted true", "dnat to the node itself", "masqueraded mark hairpin", "masqueraded mark local-source",
		"drop entry cluster-ip", "drop entry node-port", "reject entry cluster-ip", "reject entry load-balancer-ip", "reject entry node-port",
		"IPv4 drop/source-not-allowed", "IPv6 drop/source-not-allowed", "bound to one of several, entry load-balancer-ip",
		"bound to one of several, entry cluster-ip", "bound to one of several, entry node-port", "different",
	} {
		if seen[what] < 10 {
			t.Errorf("%q came up %d times, want at least 10; all: %v", what, seen[what], seen)
		}
	}
}

// nodeOf is the table's node with more addresses: one is a load balancer's.
func nodeOf(table *decision.Table) decision.Node {
	node := *table.Node()
	for _, a := range []string{"172.20.0.9", "203.0.113.3", "fd00:172:20::9", "2001:db8:5::3"} {
		node.Addresses = append(node.Addresses, netip.MustParseAddr(a))
	}
	return node
}

// nftablesRules are the tables that kube-proxy writes, as nft lists them.
func (r *real) nftablesRules(t *testing.T, table *decision.Table, flags []string) []string {
	t.Helper()
	n := r.kubeProxy(t, "nftables", flags...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		rules, err := listing(n)
		if err != nil {
			t.Fatal(err)
		}
		missing := ""
		// kube-proxy writes each family in one transaction.
		for _, s := range table.Services() {
			if !strings.Contains(strings.Join(rules, ""), fmt.Sprintf("%s . %s . %d ", s.ClusterIP, strings.ToLower(s.Protocol.String()), s.Port)) {
				missing = s.Name.String()
			}
		}
		if missing == "" {
			return rules
		}
		select {
		case <-ctx.Done():
			t.Fatalf("kube-proxy does not write service port %s; its rules:\n%s", missing, rules)
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// listing lists kube-proxy's tables in the form that nft reads.
func listing(n *netns.Namespace) (rules []string, err error) {
	for _, family := range []string{"ip", "ip6"} {
		text, err := n.Run("", "nft", "list", "table", family, "kube-proxy")
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			continue // not there yet
		}
		if err != nil {
			return nil, err
		}
		rules = append(rules, text)
	}
	return rules, nil
}

// variety are services of all kinds that mode nftables distinguishes, in both families, with a fixed seed.
func variety() *kube.Objects {
	r := rand.New(rand.NewPCG(7, 7))
	coin := func(n int) bool { return r.IntN(n) == 0 }
	objects := &kube.Objects{}
	protocols := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	for i := range 40 {
		name := fmt.Sprint("various-", i)
		v4, v6 := fmt.Sprint("10.96.1.", i+1), fmt.Sprintf("fd00:10:96::1:%x", i+1)
		both := corev1.IPFamilyPolicyRequireDualStack
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: v4, ClusterIPs: []string{v4, v6}, IPFamilyPolicy: &both,
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, SessionAffinity: corev1.ServiceAffinityNone,
				Ports: []corev1.ServicePort{{Port: 80, Protocol: protocols[i%3]}},
			},
		}
		cluster, local := corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &cluster
		if coin(4) {
			s.Spec.InternalTrafficPolicy = &local
		}
		if coin(3) {
			seconds := int32(10800)
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}
		if coin(3) {
			s.Spec.ExternalIPs = []string{fmt.Sprint("198.51.100.", 100+i), fmt.Sprintf("2001:db8:6::%x", 1+i)}
		}
		if i%4 > 0 {
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Spec.Ports[0].NodePort = int32(30001 + i) // the API server allocates no health check port below 30086
		}
		if i%4 > 1 {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			for _, ip := range []string{fmt.Sprint("203.0.113.", 1+i), fmt.Sprintf("2001:db8:5::%x", 1+i)} {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
			}
			if coin(2) {
				s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "fd00:99::/32"}
				if coin(2) {
					s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, "172.20.0.0/16", "fd00:172:20::/64")
				}
			}
		}
		if i%4 > 0 || len(s.Spec.ExternalIPs) > 0 {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
			if coin(2) {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
		}
		objects.Services = append(objects.Services, s)
		objects.EndpointSlices = append(objects.EndpointSlices, slicesOf(name, s.Spec.Ports[0].Protocol, r.IntN(6), i)...)
	}
	return objects
}

// slicesOf are the endpoint slices of a service, one of each family.
func slicesOf(service string, protocol corev1.Protocol, kind, i int) (objects []*discoveryv1.EndpointSlice) {
	port := int32(8000 + i)
	for _, f := range []struct {
		family            discoveryv1.AddressType
		here, there, host string
	}{
		{discoveryv1.AddressTypeIPv4, "10.244.1.%d", "10.244.2.%d", "172.20.0.2"},
		{discoveryv1.AddressTypeIPv6, "fd00:10:244:1::%x", "fd00:10:244:2::%x", "fd00:172:20::2"},
	} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: service + "-" + strings.ToLower(string(f.family)), Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: f.family, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}},
		}
		add := func(address, node string, ready bool) {
			serving, terminating := true, !ready
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{address}, NodeName: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
			})
		}
		switch kind {
		case 0: // no endpoints
		case 1: // on another node
			add(fmt.Sprintf(f.there, 3), "node-b", true)
		case 2: // only terminating ones
			add(fmt.Sprintf(f.here, 2), "node-a", false)
			add(fmt.Sprintf(f.there, 3), "node-b", false)
		case 3: // the node itself
			add(f.host, "node-a", true)
		default:
			for k := range 1 + i%4 {
				add(fmt.Sprintf(f.here, 2+k), "node-a", true)
				add(fmt.Sprintf(f.there, 2+k), "node-b", true)
			}
		}
		objects = append(objects, slice)
	}
	return objects
}
