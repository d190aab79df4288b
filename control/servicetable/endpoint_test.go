package servicetable

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// slice makes an EndpointSlice of default/web with one unnamed TCP port.
func slice(name string, t discoveryv1.AddressType, port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: t,
		Endpoints:   endpoints,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: &port}},
	}
}

// compact gives slices the form they are kept in.
func compact(from ...*discoveryv1.EndpointSlice) []*EndpointSlice {
	kept := make([]*EndpointSlice, len(from))
	for i := range from {
		kept[i] = NewEndpointSlice(from[i])
	}
	return kept
}

func v4(port int32, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return slice("web", discoveryv1.AddressTypeIPv4, port, endpoints...)
}

// endpoint makes an endpoint with ready, serving and terminating set.
func endpoint(address string, ready, serving, terminating bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
	}
}

func ready(address string) discoveryv1.Endpoint    { return endpoint(address, true, true, false) }
func notReady(address string) discoveryv1.Endpoint { return endpoint(address, false, false, false) }
func stopping(address string) discoveryv1.Endpoint { return endpoint(address, false, true, true) }
func stopped(address string) discoveryv1.Endpoint  { return endpoint(address, false, false, true) }

// on puts an endpoint on a node.
func on(node string, e discoveryv1.Endpoint) discoveryv1.Endpoint {
	e.NodeName = &node
	return e
}

// at is an endpoint that is used under policy Cluster, of a service port that does
// not use policy Local.
func at(addrPort string) decision.Endpoint {
	e := decision.Endpoint{AddrPort: netip.MustParseAddrPort(addrPort), Ready: true, Serving: true, Weight: 1}
	e.Exclusions[decision.Local] = decision.Unused
	return e
}

// without is an endpoint that is not used under policy Cluster.
func without(addrPort string, why decision.Exclusion) decision.Endpoint {
	e := at(addrPort)
	e.Exclusions[decision.Cluster] = why
	e.Serving = why != decision.NotServing && why != decision.NotReady // as the tests' ones are
	e.Ready = why != decision.NotReady && why != decision.NotServing && why != decision.Terminating
	return e
}

// other is an endpoint of the other family.
func other(addrPort string) decision.Endpoint {
	e := without(addrPort, decision.OtherFamily)
	e.Exclusions[decision.Local] = decision.OtherFamily
	return e
}

func TestEndpoints(t *testing.T) {
	change := func(s *discoveryv1.EndpointSlice, f func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		f(s)
		return s
	}
	port := func(f func(*discoveryv1.EndpointPort)) *discoveryv1.EndpointSlice {
		return change(v4(80, ready("10.0.0.1")), func(s *discoveryv1.EndpointSlice) { f(&s.Ports[0]) })
	}
	type (
		from = []*discoveryv1.EndpointSlice
		list = []decision.Endpoint
	)
	tests := []struct {
		name   string
		port   string // the service port's name
		slices from
		want   list
	}{
		{"none", "", nil, nil},
		{"sorted by their text, not by number", "", from{
			v4(90, ready("10.0.0.2"), ready("10.0.0.10"), ready("10.0.0.1")), v4(8080, ready("10.0.0.2"), ready("9.0.0.1"))},
			list{at("10.0.0.10:90"), at("10.0.0.1:90"), at("10.0.0.2:8080"), at("10.0.0.2:90"), at("9.0.0.1:8080")}},
		{"the slice's port number counts, and may differ between slices", "", from{v4(8080, ready("10.0.0.1")), v4(9090, ready("10.0.0.2"))},
			list{at("10.0.0.1:8080"), at("10.0.0.2:9090")}},
		{"the same address with another port is another endpoint", "", from{v4(80, ready("10.0.0.1")), v4(81, notReady("10.0.0.1"))},
			list{at("10.0.0.1:80"), without("10.0.0.1:81", decision.NotReady)}},
		{"only the first address counts", "", from{
			v4(80, discoveryv1.Endpoint{Addresses: []string{"10.0.0.1", "10.0.0.2"}})}, list{at("10.0.0.1:80")}},
		{"an endpoint without address", "", from{v4(80, discoveryv1.Endpoint{}, ready("10.0.0.1"))},
			list{at("10.0.0.1:80")}},
		{"an address that is none", "", from{v4(80, ready("10.0.0.300"), ready("fd00::1"), ready("10.0.0.1"))},
			list{at("10.0.0.1:80")}},

		{"port of another name", "http", from{port(func(p *discoveryv1.EndpointPort) { p.Name = new("https") })}, nil},
		{"port of the name", "http", from{port(func(p *discoveryv1.EndpointPort) { p.Name = new("http") })}, list{at("10.0.0.1:80")}},
		{"port of the name, but another protocol", "http", from{port(func(p *discoveryv1.EndpointPort) { p.Name, p.Protocol = new("http"), new(corev1.ProtocolUDP) })}, nil},
		{"unset name and protocol are the empty name and TCP", "", from{port(func(p *discoveryv1.EndpointPort) { p.Name, p.Protocol = nil, nil })}, list{at("10.0.0.1:80")}},
		{"port without a number", "", from{port(func(p *discoveryv1.EndpointPort) { p.Port = nil })}, nil},
		{"port 0", "", from{port(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(0)) })}, nil},
		{"port beyond 16 bits", "", from{port(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(65616)) })}, nil},
		{"no ports", "", from{change(v4(80, ready("10.0.0.1")), func(s *discoveryv1.EndpointSlice) { s.Ports = nil })}, nil},

		{"those of the other family are listed, but not used", "", from{slice("a", discoveryv1.AddressTypeIPv6, 80, ready("fd00::1"), ready("fd00::2")), v4(80, ready("10.0.0.1"))},
			list{at("10.0.0.1:80"), other("[fd00::1]:80"), other("[fd00::2]:80")}},
		{"slice of the other family, though its addresses are of this", "", from{slice("a", discoveryv1.AddressTypeIPv6, 80, ready("10.0.0.1"))}, nil},
		{"slice of host names", "", from{slice("a", discoveryv1.AddressTypeFQDN, 80, ready("10.0.0.1"))}, nil},
		{"headless label hides the slice by being there, and only this one", "", from{
			change(v4(80, ready("10.0.0.1")), func(s *discoveryv1.EndpointSlice) { s.Labels["service.kubernetes.io/headless"] = "" }),
			v4(80, ready("10.0.0.2"))}, list{at("10.0.0.2:80")}},
		{"label of another proxy on a slice means nothing", "", from{
			change(v4(80, ready("10.0.0.1")), func(s *discoveryv1.EndpointSlice) {
				s.Labels["service.kubernetes.io/service-proxy-name"] = "cilium"
			})}, list{at("10.0.0.1:80")}},

		{"pod is kept", "", from{v4(80, discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-0"}})},
			list{ofPod("default/web-0", at("10.0.0.1:80"))}},
		{"a target without namespace is in the slice's", "", from{v4(80, discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-0"}})},
			list{ofPod("default/web-0", at("10.0.0.1:80"))}},
		{"a target that is no pod", "", from{v4(80, discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "VirtualMachine", Name: "web-0"}})},
			list{at("10.0.0.1:80")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sp := entry("10.96.0.20", entryPort(tt.port, decision.TCP, 80, 0))
			setEndpoints(sp, compact(tt.slices...), nil, location{})
			if !slices.Equal(sp.Endpoints, tt.want) {
				t.Errorf("endpoints %v, want %v", sp.Endpoints, tt.want)
			}
		})
	}
}

func ofPod(pod string, e decision.Endpoint) decision.Endpoint {
	e.Pod = pod
	return e
}

func TestConditionsThatAreUnset(t *testing.T) {
	yes, no := new(true), new(false)
	tests := []struct {
		name string
		in   discoveryv1.EndpointConditions
		want conditions
	}{
		{"all: ready and serving", discoveryv1.EndpointConditions{}, conditions{ready: true, serving: true}},
		{"ready: true", discoveryv1.EndpointConditions{Serving: no, Terminating: yes}, conditions{ready: true, terminating: true}},
		{"serving: true, though not ready", discoveryv1.EndpointConditions{Ready: no, Terminating: yes}, conditions{serving: true, terminating: true}},
		{"terminating: false", discoveryv1.EndpointConditions{Ready: no, Serving: no}, conditions{}},
		{"none, all false", discoveryv1.EndpointConditions{Ready: no, Serving: no, Terminating: no}, conditions{}},
		{"none, all true", discoveryv1.EndpointConditions{Ready: yes, Serving: yes, Terminating: yes}, conditions{ready: true, serving: true, terminating: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := conditionsOf(tt.in); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestEndpointsAreLocalByTheExactNameOfTheNode(t *testing.T) {
	tests := []struct {
		name string
		node string // of the table
		e    discoveryv1.Endpoint
		want bool
	}{
		{"the same", "worker", on("worker", ready("10.0.0.1")), true},
		{"another", "worker", on("worker2", ready("10.0.0.1")), false},
		{"in another case", "worker", on("Worker", ready("10.0.0.1")), false},
		{"with its domain", "worker", on("worker.example.org", ready("10.0.0.1")), false},
		{"missing", "worker", ready("10.0.0.1"), false},
		{"empty", "worker", on("", ready("10.0.0.1")), false},
		{"missing, and the table's is not known", "", ready("10.0.0.1"), false},
		{"empty, and the table's is not known", "", on("", ready("10.0.0.1")), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sp := entry("10.96.0.20")
			setEndpoints(sp, compact(v4(80, tt.e)), nil, location{node: tt.node})
			if got := sp.Endpoints[0]; got.Local != tt.want || got.NodeName != ptr.Deref(tt.e.NodeName, "") {
				t.Errorf("local %t, node %q", got.Local, got.NodeName)
			}
		})
	}
}

// Beside the endpoint there is another that is ready, so that no fallback hides
// its result.
func TestDuplicatesMerge(t *testing.T) {
	const a = "10.0.0.1"
	tests := []struct {
		name string
		x, y discoveryv1.Endpoint
		want decision.Exclusion
	}{
		{"ready beats not ready", ready(a), notReady(a), 0},
		{"ready beats terminating", ready(a), stopping(a), 0},
		{"not ready beats terminating", notReady(a), stopping(a), decision.NotReady},
		{"the one that is not terminating counts, even if the other is ready", notReady(a), endpoint(a, true, true, true), decision.NotReady},
		{"two that are ready", ready(a), ready(a), 0},
		{"two that are terminating", stopping(a), stopping(a), decision.Terminating},
		{"two that serve no more", stopped(a), stopped(a), decision.NotServing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := []decision.Endpoint{without(a+":80", tt.want), at("10.0.0.2:80")}
			for order, from := range map[string][]*discoveryv1.EndpointSlice{
				"in one slice":                 {v4(80, tt.x, tt.y)},
				"in one slice, the other way":  {v4(80, tt.y, tt.x)},
				"in two slices":                {v4(80, tt.x), v4(80, tt.y)},
				"in two slices, the other way": {v4(80, tt.y), v4(80, tt.x)},
			} {
				sp := entry("10.96.0.20")
				setEndpoints(sp, compact(append(from, v4(80, ready("10.0.0.2")))...), nil, location{})
				if !slices.Equal(sp.Endpoints, want) {
					t.Errorf("%s: %v, want %v", order, sp.Endpoints, want)
				}
			}
		})
	}
}
