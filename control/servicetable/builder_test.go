package servicetable

import (
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func of(namespace, service string, s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.Namespace, s.Name, s.Labels = namespace, s.Name+"-"+service, map[string]string{discoveryv1.LabelServiceName: service}
	return s
}

func TestBuildSortsServicesByNamespaceAndName(t *testing.T) {
	ports, _ := Build(&kube.Objects{Services: []*corev1.Service{
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
	objects := &kube.Objects{
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
	a := slice("a", discoveryv1.AddressTypeIPv4, 80, on("one", ready("10.0.0.1")))
	b := slice("b", discoveryv1.AddressTypeIPv4, 80, on("two", ready("10.0.0.1"))) // the same endpoint elsewhere
	one, _ := Build(&kube.Objects{Services: []*corev1.Service{service()}, EndpointSlices: []*discoveryv1.EndpointSlice{a, b}}, NodeConfig{})
	two, _ := Build(&kube.Objects{Services: []*corev1.Service{service()}, EndpointSlices: []*discoveryv1.EndpointSlice{b, a}}, NodeConfig{})
	if !reflect.DeepEqual(one, two) {
		t.Errorf("%+v\nand %+v", describe(one), describe(two))
	}
	if got := one[0].Endpoints[0].NodeName; got != "one" {
		t.Errorf("node %q, want that of the first slice by name", got)
	}
}

func TestBuildDoesNotChangeItsInput(t *testing.T) {
	objects := func() *kube.Objects {
		return &kube.Objects{
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

func TestBuildSeesTheClusterFromTheNode(t *testing.T) {
	hinted := func(zone string, e discoveryv1.Endpoint) discoveryv1.Endpoint {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		return e
	}
	labelled := node("worker")
	labelled.Labels = map[string]string{corev1.LabelTopologyZone: "a"}
	objects := &kube.Objects{
		Services: []*corev1.Service{service(func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) }),
			service(named("default", "api"))},
		EndpointSlices: []*discoveryv1.EndpointSlice{
			v4(80, on("other", ready("10.0.0.1")), on("worker", ready("10.0.0.2"))),
			of("default", "api", v4(80, hinted("a", ready("10.0.0.1")), hinted("b", ready("10.0.0.2")))),
		},
		Nodes: []*corev1.Node{node("other"), labelled},
	}
	tests := []struct {
		name     string
		node     NodeConfig
		web, api []uint32 // usable: web's by policy Local, api's by policy Cluster
	}{
		{"by name, and by the zone of its label", NodeConfig{Name: "worker"}, []uint32{1}, []uint32{0}},
		{"by the configured zone rather than the label", NodeConfig{Name: "worker", Zone: "b"}, []uint32{1}, []uint32{1}},
		{"a node without a label has no zone", NodeConfig{Name: "other"}, []uint32{0}, []uint32{0, 1}},
		{"a node without an object has no zone", NodeConfig{Name: "gone"}, nil, []uint32{0, 1}},
		{"a node that is not known may have a zone", NodeConfig{Zone: "a"}, nil, []uint32{0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ports, _ := Build(objects, tt.node) // api, web
			if got := ports[1].Usable[decision.Local]; !slices.Equal(got, tt.web) {
				t.Errorf("local ones %v, want %v", got, tt.web)
			}
			if got := ports[0].Usable[decision.Cluster]; !slices.Equal(got, tt.api) {
				t.Errorf("near ones %v, want %v", got, tt.api)
			}
		})
	}
}
