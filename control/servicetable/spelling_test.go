package servicetable

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// oldSpelling is a cluster whose addresses are written as kube-proxy's ParseIPSloppy still
// reads them.
func oldSpelling() *kube.Objects {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: meta("web-1"), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.001.002"}}, {Addresses: []string{"::ffff:10.244.1.3"}}, {Addresses: []string{"10.244.1.4"}},
		},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	return &kube.Objects{
		Services: []*corev1.Service{{
			ObjectMeta: meta("web"),
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "172.30.0.041", ClusterIPs: []string{"172.30.0.041"},
				ExternalIPs: []string{"192.0.2.01", "::ffff:192.0.2.2"}, LoadBalancerSourceRanges: []string{" 203.0.113.000/025"},
				Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
			},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.003"}}}},
		}},
		EndpointSlices: []*discoveryv1.EndpointSlice{slice},
		Nodes: []*corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.244.001.000/024"}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.20.0.02"}, {Type: corev1.NodeHostName, Address: "010.0.0.1"}}},
		}},
		Pods: []*corev1.Pod{{ObjectMeta: meta("web-x"), Status: corev1.PodStatus{PodIP: "10.244.1.02", PodIPs: []corev1.PodIP{{IP: "10.244.1.02"}}}}},
	}
}

func TestOldSpellings(t *testing.T) {
	table, warnings := Table(oldSpelling(), NodeConfig{Name: "a", Mode: NodeCIDR})
	sp := table.Services()[0]
	if want := netip.MustParseAddr("172.30.0.41"); sp.ClusterIP != want {
		t.Errorf("cluster IP %s, want %s", sp.ClusterIP, want)
	}
	for _, tt := range []struct {
		what      string
		got, want []netip.Addr
	}{
		{"external IPs", sp.ExternalIPs, addrs("192.0.2.1", "192.0.2.2")},
		{"load balancer IPs", sp.LoadBalancerIPs, addrs("192.0.2.3")},
		{"node's addresses", table.Node().Addresses, addrs("172.20.0.2")},
		{"node's IPs", table.Node().IPs, addrs("172.20.0.2")},
	} {
		if !slices.Equal(tt.got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, tt.got, tt.want)
		}
	}
	if want := []netip.Prefix{netip.MustParsePrefix("203.0.113.0/25")}; !slices.Equal(sp.SourceRanges, want) {
		t.Errorf("source ranges %v, want %v", sp.SourceRanges, want)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}; !slices.Equal(table.Node().Detector.CIDRs, want) {
		t.Errorf("pod CIDRs %v, want %v", table.Node().Detector.CIDRs, want)
	}
	var endpoints []string
	for _, e := range sp.UsableEndpoints(decision.Cluster) {
		endpoints = append(endpoints, e.AddrPort.String())
	}
	if want := []string{"10.244.1.2:8080", "10.244.1.3:8080", "10.244.1.4:8080"}; !slices.Equal(endpoints, want) {
		t.Errorf("endpoints %v, want %v", endpoints, want)
	}
	for _, want := range []string{
		`service default/web: old spelling of addresses: spec.clusterIPs[0] "172.30.0.041" is read as 172.30.0.41, `,
		`endpointslice default/web-1: old spelling of addresses: endpoints[0].addresses[0] "10.244.001.002" is read as 10.244.1.2, endpoints[1].`,
		`node a: old spelling of addresses: spec.podCIDRs[0] "10.244.001.000/024" is read as 10.244.1.0/24, status.addresses[0]`,
		`pod default/web-x: old spelling of addresses: status.podIPs[0].ip "10.244.1.02" is read as 10.244.1.2`,
	} {
		n := 0
		for _, w := range warnings {
			if strings.HasPrefix(w, want) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d warnings begin with %q, in:\n%s", n, want, strings.Join(warnings, "\n"))
		}
	}
}

// TestOldSpellingsAreWarnedOfOnce changes what has nothing to do with the spelling.
func TestOldSpellingsAreWarnedOfOnce(t *testing.T) {
	b := newBuilder(NodeConfig{Name: "a"})
	objects := oldSpelling()
	b.apply(fullUpdate(objects))
	if _, warnings := b.build(); len(warnings) != 2 {
		t.Errorf("at first: %v", warnings)
	}
	svc := objects.Services[0].DeepCopy()
	svc.Annotations = map[string]string{"a": "b"}
	b.apply(Update{Services: map[types.NamespacedName]*Service{{Namespace: "default", Name: "web"}: NewService(svc)}})
	if _, warnings := b.build(); len(warnings) != 0 {
		t.Errorf("again: %v", warnings)
	}
	if got := len(b.nodeWarnings()); got != 2 {
		t.Errorf("%d warnings about nodes and pods: %v", got, b.nodeWarnings())
	}
	b.apply(Update{Pods: map[types.NamespacedName]*corev1.Pod{{Namespace: "default", Name: "web-x"}: nil}, Nodes: map[string]*corev1.Node{"a": nil}})
	if got := b.nodeWarnings(); len(got) != 0 {
		t.Errorf("of objects that are gone: %v", got)
	}
}

func TestOwnersReadOldSpellings(t *testing.T) {
	var o Owners
	o.update(fullUpdate(oldSpelling()))
	if pod := o.Owner(netip.MustParseAddr("10.244.1.2")).Pod; pod != "default/web-x" {
		t.Errorf("pod %q", pod)
	}
	if node := o.Owner(netip.MustParseAddr("172.20.0.2")).Node; node != "a" {
		t.Errorf("node %q", node)
	}
}
