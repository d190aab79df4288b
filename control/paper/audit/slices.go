package audit

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Placeholder stands for an address that rules do not show, as that of an endpoint on another node, or of the host (see
// netfilter.GuessHost): one for documentation (RFC 5737, RFC 3849).
func Placeholder(f decision.Family) netip.Addr {
	if f == decision.IPv6 {
		return netip.MustParseAddr("2001:db8::1")
	}
	return netip.MustParseAddr("192.0.2.1")
}

// member is an endpoint of a slice.
type member struct {
	addr  netip.Addr
	local bool
	// hinted: some endpoints of the service port are not for this node under policy Cluster; here
	// reports whether this one is.
	hinted, here bool
}

// group are the endpoints of a service port that have the same port number.
type group struct {
	number  uint16
	members []member
}

// slices makes the EndpointSlices of a Service. Ports share one if they have the same
// endpoints.
func (m *objectBuilder) slices(name decision.ServiceName, ports []*Service) {
	bySet := make(map[string]*discoveryv1.EndpointSlice)
	inSlice := make(map[*discoveryv1.EndpointSlice]map[string]bool)
	count := make(map[decision.Family]int)
	for _, s := range ports {
		for _, g := range m.groups(s) {
			key := fmt.Sprint(s.Family, g.members)
			slice := bySet[key]
			// A slice cannot have two ports of one name.
			if slice == nil || inSlice[slice][s.Name.Port] {
				count[s.Family]++
				slice = m.slice(name, s.Family, count[s.Family], g.members)
				bySet[key], inSlice[slice] = slice, make(map[string]bool)
			}
			inSlice[slice][s.Name.Port] = true
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
				Name: new(s.Name.Port), Protocol: new(corev1.Protocol(s.Protocol.String())), Port: new(int32(g.number)),
			})
		}
	}
}

// groups returns the endpoints of a service port by their port numbers, in the order of the first
// endpoint.
func (m *objectBuilder) groups(s *Service) []*group {
	var groups []*group
	byNumber := make(map[uint16]*group)
	add := func(number uint16, e member) {
		g := byNumber[number]
		if g == nil {
			g = &group{number: number}
			groups, byNumber[number] = append(groups, g), g
		}
		g.members = append(g.members, e)
	}
	hinted := false
	if s.balanced[decision.Cluster] != nil {
		for _, e := range s.Endpoints {
			hinted = hinted || e.Share == 0 && e.LocalShare > 0
		}
	}
	for _, e := range s.Endpoints {
		a := e.AddrPort.Addr()
		switch {
		case !a.IsValid():
			m.note("%s: endpoint %s is left out: the file does not have its address", s.Title(), e.Chain)
			continue
		case !kubeaddr.CanBeHost(a):
			m.note("%s: endpoint %s is left out: an EndpointSlice cannot have such an address", s.Title(), e.AddrPort)
			continue
		}
		add(e.AddrPort.Port(), member{a, e.Locality == OnThisNode, hinted, e.Share > 0})
	}
	if s.Dropped && len(groups) == 0 {
		a := Placeholder(s.Family)
		m.note("%s has endpoints on other nodes only, which no rule names: %s stands for them", s.Title(), a)
		add(s.Port, member{addr: a})
	}
	return groups
}

func (m *objectBuilder) slice(name decision.ServiceName, f decision.Family, number int, members []member) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: name.Namespace, Name: fmt.Sprintf("%s-%s-%d", name.Name, strings.ToLower(f.String()), number),
			Labels: map[string]string{discoveryv1.LabelServiceName: name.Name},
		},
		AddressType: discoveryv1.AddressType(f.String()),
	}
	for _, e := range members {
		endpoint := discoveryv1.Endpoint{Addresses: []string{e.addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}
		if e.local {
			endpoint.NodeName = new(m.nodeName)
		}
		if e.hinted {
			node := m.nodeName
			if !e.here {
				node = "not-" + m.nodeName
			}
			endpoint.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: node}}}
		}
		o.Endpoints = append(o.Endpoints, endpoint)
	}
	m.objects.EndpointSlices = append(m.objects.EndpointSlices, o)
	return o
}
