package control

import (
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func of(namespace, service string, s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.Namespace, s.Labels = namespace, map[string]string{discoveryv1.LabelServiceName: service}
	return s
}

func TestBuildSortsServicesByNamespaceAndName(t *testing.T) {
	ports, _ := Build(&manifest.Objects{Services: []*corev1.Service{
		service(named("shop", "a")), service(named("default", "zoo")), service(named("default", "web")),
	}}, NodeConfig{})
	var got []string
	for _, p := range ports {
		got = append(got, p.Name.String())
	}
	if want := []string{"default/web", "default/zoo", "shop/a"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func TestSlicesBelongToServicesByLabelAndNamespace(t *testing.T) {
	unlabelled := v4(80, ready("10.0.0.5"))
	unlabelled.Labels = nil
	objects := &manifest.Objects{
		Services: []*corev1.Service{service(), service(named("shop", "web")), service(named("default", "api"))},
		EndpointSlices: []*discoveryv1.EndpointSlice{
			of("default", "web", slice("api-x", discoveryv1.AddressTypeIPv4, 80, ready("10.0.0.1"))), // the name means nothing
			of("shop", "web", v4(80, ready("10.0.0.2"))),
			of("default", "web", v4(80, ready("10.0.0.3"))),
			of("default", "gone", v4(80, ready("10.0.0.4"))),
			unlabelled,
		},
	}
	ports, warnings := Build(objects, NodeConfig{})
	got := make(map[string][]decision.Endpoint)
	for _, p := range ports {
		got[p.Name.String()] = p.Endpoints
	}
	want := map[string][]decision.Endpoint{
		"default/web": {at("10.0.0.1:80"), at("10.0.0.3:80")},
		"shop/web":    {at("10.0.0.2:80")},
		"default/api": nil,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if len(warnings) != 0 {
		t.Errorf("warnings %q", warnings)
	}
}

func TestBuildDoesNotDependOnTheOrderOfObjects(t *testing.T) {
	from := func(node string) discoveryv1.Endpoint {
		e := ready("10.0.0.1")
		e.NodeName = &node
		return e
	}
	a := slice("a", discoveryv1.AddressTypeIPv4, 80, from("one"))
	b := slice("b", discoveryv1.AddressTypeIPv4, 80, from("two")) // the same endpoint elsewhere
	one, _ := Build(&manifest.Objects{Services: []*corev1.Service{service()}, EndpointSlices: []*discoveryv1.EndpointSlice{a, b}}, NodeConfig{})
	two, _ := Build(&manifest.Objects{Services: []*corev1.Service{service()}, EndpointSlices: []*discoveryv1.EndpointSlice{b, a}}, NodeConfig{})
	if !reflect.DeepEqual(one, two) {
		t.Errorf("%+v\nand %+v", describe(one), describe(two))
	}
	if got := one[0].Endpoints[0].NodeName; got != "one" {
		t.Errorf("node %q, want that of the first slice by name", got)
	}
}

func TestBuildDoesNotChangeItsInput(t *testing.T) {
	objects := func() *manifest.Objects {
		return &manifest.Objects{
			Services:       []*corev1.Service{service(named("shop", "web")), service()},
			EndpointSlices: []*discoveryv1.EndpointSlice{slice("b", discoveryv1.AddressTypeIPv4, 80), slice("a", discoveryv1.AddressTypeIPv4, 80)},
			Nodes:          []*corev1.Node{node("b"), node("a")},
		}
	}
	o := objects()
	Build(o, NodeConfig{Name: "c"})
	if !reflect.DeepEqual(o, objects()) {
		t.Error("the objects are not as before")
	}
}

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

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
		node  string
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
		{name: "node among the nodes", svc: service(), nodes: []*corev1.Node{node("a"), node("b")}, node: "b"},
		{name: "node name not known", svc: service(), nodes: []*corev1.Node{node("a")}},
		{name: "no nodes", svc: service(), node: "b"},
		{name: "node none of the nodes", svc: service(), nodes: []*corev1.Node{node("b"), node("a")}, node: "B",
			want: []string{`node "B" is none of the cluster's nodes (a, b): no endpoint counts as local`}},
		{name: "node none of many nodes", svc: service(), nodes: []*corev1.Node{node("a"), node("b"), node("c"), node("d"), node("e"), node("f")}, node: "x",
			want: []string{`node "x" is none of the cluster's nodes (a, b, c, d, e, ...): no endpoint counts as local`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, got := Build(&manifest.Objects{Services: []*corev1.Service{tt.svc}, Nodes: tt.nodes}, NodeConfig{Name: tt.node})
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
