package servicetable

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
)

func TestWarnings(t *testing.T) {
	nodePort := func(ports ...int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeNodePort, nil
			for i, p := range ports {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 80 + int32(i), Protocol: corev1.ProtocolTCP, NodePort: p})
			}
		}
	}
	const noClusterIP = "service default/web has no clusterIP: no API server assigned one, so it is left out; set spec.clusterIP"
	tests := []struct {
		name  string
		svc   *corev1.Service
		nodes []*corev1.Node
		node  NodeConfig
		want  []string
	}{
		{name: "all is well", svc: service()},
		{name: "no clusterIP", svc: service(withIPs()), want: []string{noClusterIP}},
		{name: "no clusterIP, so node ports are not the trouble", svc: service(withIPs(), nodePort(0)), want: []string{noClusterIP}},
		{name: "headless", svc: service(withIPs("None"))},
		{name: "ExternalName", svc: service(withIPs(), withType(corev1.ServiceTypeExternalName))},
		{name: "another proxy's", svc: service(withIPs(), withLabel(labelProxyName, ""))},
		{name: "NodePort without nodePort", svc: service(nodePort(30080, 0)), want: []string{
			"service default/web of type NodePort has no nodePort for port 81/TCP: no API server assigned one; set spec.ports[1].nodePort"}},
		{name: "LoadBalancer without nodePort", svc: service(withType(corev1.ServiceTypeLoadBalancer))},
		{name: "node among the nodes", svc: service(), nodes: []*corev1.Node{node("a"), node("b")}, node: NodeConfig{Name: "b"}},
		{name: "node name not known", svc: service(), nodes: []*corev1.Node{node("a")}},
		{name: "no nodes", svc: service(), node: NodeConfig{Name: "b"}},
		{name: "node none of the nodes", svc: service(), nodes: []*corev1.Node{node("b"), node("a")}, node: NodeConfig{Name: "B"},
			want: []string{`node "B" is not one of the cluster's nodes (a, b): its zone and addresses are not known, and only endpoints on a node of exactly that name are local`}},
		{name: "node none of many nodes", svc: service(), nodes: []*corev1.Node{node("a"), node("b"), node("c"), node("d"), node("e"), node("f")}, node: NodeConfig{Name: "x"},
			want: []string{`node "x" is not one of the cluster's nodes (a, b, c, d, e, ...): its zone and addresses are not known, and only endpoints on a node of exactly that name are local`}},

		{name: "NodeCIDR", svc: service(), nodes: []*corev1.Node{withPodCIDRs("10.244.1.0/24")}, node: NodeConfig{Name: "a", Mode: NodeCIDR}},
		{name: "NodeCIDR without podCIDRs", svc: service(), nodes: []*corev1.Node{node("a")}, node: NodeConfig{Name: "a", Mode: NodeCIDR},
			want: []string{`mode NodeCIDR: node "a" has no podCIDRs: no source is detected as a pod`}},
		{name: "NodeCIDR without Node objects", svc: service(), node: NodeConfig{Name: "a", Mode: NodeCIDR},
			want: []string{`mode NodeCIDR: Node object "a" not found: no source is detected as a pod`}},
		{name: "NodeCIDR without a name", svc: service(), nodes: []*corev1.Node{node("a")}, node: NodeConfig{Mode: NodeCIDR},
			want: []string{`mode NodeCIDR: Node object "" not found: no source is detected as a pod`}},
		{name: "NodeCIDR of a node none of the nodes", svc: service(), nodes: []*corev1.Node{node("a")}, node: NodeConfig{Name: "b", Mode: NodeCIDR},
			want: []string{
				`node "b" is not one of the cluster's nodes (a): its zone and addresses are not known, and only endpoints on a node of exactly that name are local`,
				`mode NodeCIDR: Node object "b" not found: no source is detected as a pod`}},
		{name: "other modes do without podCIDRs", svc: service(), nodes: []*corev1.Node{node("a")}, node: NodeConfig{Name: "a", Mode: BridgeInterface, Bridge: "cbr0"}},

		{name: "external addresses of the families of the clusterIPs", svc: service(withIPs("10.96.0.20", "fd00::20"),
			withExternalIPs("192.0.2.1", "2001:db8::1"), withIngress("192.0.2.2", "2001:db8::2"))},
		{name: "external addresses of a family without a clusterIP", svc: service(
			withExternalIPs("192.0.2.1", "2001:db8::1"), withIngress("192.0.2.2", "2001:db8::2", "2001:db8::1")),
			want: []string{"service default/web has no IPv6 clusterIP, so these external addresses of it are left out: 2001:db8::1, 2001:db8::2"}},
		{name: "external addresses of IPv4, with an IPv6 clusterIP only", svc: service(withIPs("fd00::20"), withExternalIPs("192.0.2.1")),
			want: []string{"service default/web has no IPv4 clusterIP, so these external addresses of it are left out: 192.0.2.1"}},
		{name: "clusterIP alone, of an old API server", svc: service(withExternalIPs("192.0.2.1"), func(s *corev1.Service) { s.Spec.ClusterIPs = nil })},
		{name: "ingress of mode Proxy", svc: service(func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "2001:db8::2", IPMode: new(corev1.LoadBalancerIPModeProxy)}}
		})},
		{name: "external addresses without any clusterIP", svc: service(withIPs(), withExternalIPs("192.0.2.1")), want: []string{noClusterIP}},
		{name: "external addresses and no node port", svc: service(nodePort(0), withExternalIPs("2001:db8::1")), want: []string{
			"service default/web of type NodePort has no nodePort for port 80/TCP: no API server assigned one; set spec.ports[0].nodePort",
			"service default/web has no IPv6 clusterIP, so these external addresses of it are left out: 2001:db8::1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, got := Build(&kube.Objects{Services: []*corev1.Service{tt.svc}, Nodes: tt.nodes}, tt.node)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
