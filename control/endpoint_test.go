package control

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

func at(addrPort string) decision.Endpoint {
	return decision.Endpoint{AddrPort: netip.MustParseAddrPort(addrPort)}
}

func without(addrPort string, r decision.ExclusionReason) decision.ExcludedEndpoint {
	return decision.ExcludedEndpoint{Endpoint: at(addrPort), Reason: r}
}

func TestEndpoints(t *testing.T) {
	type (
		list = []decision.Endpoint
		excl = []decision.ExcludedEndpoint
	)
	change := func(s *discoveryv1.EndpointSlice, f func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		f(s)
		return s
	}
	port := func(f func(*discoveryv1.EndpointPort)) *discoveryv1.EndpointSlice {
		return change(v4(80, ready("10.0.0.1")), func(s *discoveryv1.EndpointSlice) { f(&s.Ports[0]) })
	}
	tests := []struct {
		name     string
		port     string // the service port's name
		slices   []*discoveryv1.EndpointSlice
		want     list
		excluded excl
	}{
		{"none", "", nil, nil, nil},
		{"sorted by address as a number, then port", "", []*discoveryv1.EndpointSlice{
			v4(90, ready("10.0.0.2"), ready("10.0.0.10")), v4(80, ready("10.0.0.10"), ready("9.0.0.1"))},
			list{at("9.0.0.1:80"), at("10.0.0.2:90"), at("10.0.0.10:80"), at("10.0.0.10:90")}, nil},
		{"the slice's port number counts, and may differ between slices", "", []*discoveryv1.EndpointSlice{v4(8080, ready("10.0.0.1")), v4(9090, ready("10.0.0.2"))},
			list{at("10.0.0.1:8080"), at("10.0.0.2:9090")}, nil},
		{"only the first address counts", "", []*discoveryv1.EndpointSlice{
			v4(80, discoveryv1.Endpoint{Addresses: []string{"10.0.0.1", "10.0.0.2"}})}, list{at("10.0.0.1:80")}, nil},
		{"an endpoint without address", "", []*discoveryv1.EndpointSlice{v4(80, discoveryv1.Endpoint{}, ready("10.0.0.1"))},
			list{at("10.0.0.1:80")}, nil},
		{"an address that is none", "", []*discoveryv1.EndpointSlice{v4(80, ready("10.0.0.300"), ready("fd00::1"), ready("10.0.0.1"))},
			list{at("10.0.0.1:80")}, nil},

		{"port of another name", "http", []*discoveryv1.EndpointSlice{port(func(p *discoveryv1.EndpointPort) { p.Name = new("https") })}, nil, nil},
		{"port of the name", "http", []*discoveryv1.EndpointSlice{port(func(p *discoveryv1.EndpointPort) { p.Name = new("http") })}, list{at("10.0.0.1:80")}, nil},
		{"port of the name, but another protocol", "http", []*discoveryv1.EndpointSlice{port(func(p *discoveryv1.EndpointPort) { p.Name, p.Protocol = new("http"), new(corev1.ProtocolUDP) })}, nil, nil},
		{"unset name and protocol are the empty name and TCP", "", []*discoveryv1.EndpointSlice{port(func(p *discoveryv1.EndpointPort) { p.Name, p.Protocol = nil, nil })}, list{at("10.0.0.1:80")}, nil},
		{"port without a number", "", []*discoveryv1.EndpointSlice{port(func(p *discoveryv1.EndpointPort) { p.Port = nil })}, nil, nil},
		{"port 0", "", []*discoveryv1.EndpointSlice{port(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(0)) })}, nil, nil},
		{"port beyond 16 bits", "", []*discoveryv1.EndpointSlice{port(func(p *discoveryv1.EndpointPort) { p.Port = new(int32(65616)) })}, nil, nil},
		{"no ports", "", []*discoveryv1.EndpointSlice{change(v4(80, ready("10.0.0.1")), func(s *discoveryv1.EndpointSlice) { s.Ports = nil })}, nil, nil},

		{"slice of the other family", "", []*discoveryv1.EndpointSlice{slice("a", discoveryv1.AddressTypeIPv6, 80, ready("fd00::1"))}, nil, nil},
		{"slice of the other family, though its addresses are of this", "", []*discoveryv1.EndpointSlice{slice("a", discoveryv1.AddressTypeIPv6, 80, ready("10.0.0.1"))}, nil, nil},
		{"slice of host names", "", []*discoveryv1.EndpointSlice{slice("a", discoveryv1.AddressTypeFQDN, 80, ready("10.0.0.1"))}, nil, nil},
		{"headless label hides the slice, and only this one", "", []*discoveryv1.EndpointSlice{
			change(v4(80, ready("10.0.0.1")), func(s *discoveryv1.EndpointSlice) { s.Labels["service.kubernetes.io/headless"] = "" }),
			v4(80, ready("10.0.0.2"))}, list{at("10.0.0.2:80")}, nil},

		{"not ready", "", []*discoveryv1.EndpointSlice{v4(80, notReady("10.0.0.2"), ready("10.0.0.3"), notReady("10.0.0.1"))},
			list{at("10.0.0.3:80")}, excl{without("10.0.0.1:80", decision.NotReady), without("10.0.0.2:80", decision.NotReady)}},
		{"terminating", "", []*discoveryv1.EndpointSlice{v4(80, stopping("10.0.0.1"), ready("10.0.0.2"))},
			list{at("10.0.0.2:80")}, excl{without("10.0.0.1:80", decision.Terminating)}},
		{"node and pod are kept", "", []*discoveryv1.EndpointSlice{v4(80, discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"}, NodeName: new("worker"), TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-0"}})},
			list{{AddrPort: netip.MustParseAddrPort("10.0.0.1:80"), NodeName: "worker", Pod: "default/web-0"}}, nil},
		{"a target without namespace is in the slice's", "", []*discoveryv1.EndpointSlice{v4(80, discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-0"}})},
			list{{AddrPort: netip.MustParseAddrPort("10.0.0.1:80"), Pod: "default/web-0"}}, nil},
		{"a target that is no pod", "", []*discoveryv1.EndpointSlice{v4(80, discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "VirtualMachine", Name: "web-0"}})},
			list{at("10.0.0.1:80")}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sp := entry("10.96.0.20", entryPort(tt.port, decision.TCP, 80, 0))
			got, excluded := endpoints(sp, tt.slices)
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("endpoints %v, want %v", got, tt.want)
			}
			if !reflect.DeepEqual(excluded, tt.excluded) {
				t.Errorf("excluded %v, want %v", excluded, tt.excluded)
			}
		})
	}
}

func TestConditions(t *testing.T) {
	yes, no := new(true), new(false)
	const usable = decision.ExclusionReason(0)
	tests := []struct {
		name string
		in   discoveryv1.EndpointConditions
		want decision.ExclusionReason
	}{
		{"all unset", discoveryv1.EndpointConditions{}, usable},
		{"ready", discoveryv1.EndpointConditions{Ready: yes}, usable},
		{"ready counts, serving does not", discoveryv1.EndpointConditions{Ready: yes, Serving: no}, usable},
		{"serving but neither ready nor terminating is never used", discoveryv1.EndpointConditions{Ready: no, Serving: yes}, decision.NotReady},
		{"not ready, the others unset", discoveryv1.EndpointConditions{Ready: no}, decision.NotReady},
		{"terminating and serving", discoveryv1.EndpointConditions{Ready: no, Serving: yes, Terminating: yes}, decision.Terminating},
		{"terminating and not serving", discoveryv1.EndpointConditions{Ready: no, Serving: no, Terminating: yes}, decision.Terminating},
		{"terminating but ready, as with publishNotReadyAddresses", discoveryv1.EndpointConditions{Ready: yes, Terminating: yes}, usable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := exclusion(conditionsOf(tt.in)); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestDuplicatesMerge(t *testing.T) {
	const a = "10.0.0.1"
	tests := []struct {
		name string
		x, y discoveryv1.Endpoint
		want decision.ExclusionReason
	}{
		{"ready beats not ready", ready(a), notReady(a), 0},
		{"ready beats terminating", ready(a), stopping(a), 0},
		{"not ready beats terminating", notReady(a), stopping(a), decision.NotReady},
		{"the one that is not terminating counts, even if the other is ready", notReady(a), endpoint(a, true, true, true), decision.NotReady},
		{"two that are ready", ready(a), ready(a), 0},
		{"two that are terminating", stopping(a), stopping(a), decision.Terminating},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for order, from := range map[string][]*discoveryv1.EndpointSlice{
				"in one slice":                 {v4(80, tt.x, tt.y)},
				"in one slice, the other way":  {v4(80, tt.y, tt.x)},
				"in two slices":                {v4(80, tt.x), v4(80, tt.y)},
				"in two slices, the other way": {v4(80, tt.y), v4(80, tt.x)},
			} {
				usable, excluded := endpoints(entry("10.96.0.20"), from)
				switch {
				case len(usable)+len(excluded) != 1:
					t.Errorf("%s: %v and %v, want one", order, usable, excluded)
				case tt.want == 0 && len(usable) != 1:
					t.Errorf("%s: excluded %v, want it usable", order, excluded)
				case tt.want != 0 && (len(excluded) != 1 || excluded[0].Reason != tt.want):
					t.Errorf("%s: usable %v, excluded %v, want reason %s", order, usable, excluded, tt.want)
				}
			}
		})
	}
}

func TestSameAddressWithAnotherPortIsNoDuplicate(t *testing.T) {
	usable, excluded := endpoints(entry("10.96.0.20"), []*discoveryv1.EndpointSlice{v4(80, ready("10.0.0.1")), v4(81, notReady("10.0.0.1"))})
	if !slices.Equal(usable, []decision.Endpoint{at("10.0.0.1:80")}) ||
		!slices.Equal(excluded, []decision.ExcludedEndpoint{without("10.0.0.1:81", decision.NotReady)}) {
		t.Errorf("usable %v, excluded %v", usable, excluded)
	}
}
