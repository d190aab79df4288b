package servicetable

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// EndpointSlice has the fields of a Kubernetes EndpointSlice that the service table depends on.
// Endpoints are by far the most of what a node has to hold of its cluster; this form
// takes a quarter of the memory. It is immutable.
type EndpointSlice struct {
	Meta
	service   string // name of its Service, from its label; empty: none
	trigger   int64  // time of its last change, in nanoseconds since 1970; 0: not known
	ports     []slicePort
	endpoints []sliceEndpoint
	hints     []sliceHints    // of endpoints, at the same places; nil: none has any
	warnings  []string        // about the weight and the spelling of addresses; mostly none
	family    decision.Family // of its addresses; 0: they are no addresses
	weight    uint16          // of its endpoints
}

// slicePort is a port that all endpoints of a slice have.
type slicePort struct {
	name     string
	protocol decision.Protocol
	number   uint16
}

// sliceEndpoint is an endpoint of a slice.
type sliceEndpoint struct {
	addr [16]byte              // IPv4 in its IPv4-mapped form
	node unique.Handle[string] // there are many endpoints, but few nodes; empty: not known
	pod  string                // namespace/name; empty: it is none
	conditions
}

// sliceHints are the zones and nodes for which an endpoint is; the zero value: it has no hints.
type sliceHints struct{ zones, nodes []string }

func (h sliceHints) any() bool { return len(h.zones)+len(h.nodes) > 0 }

// hintsOf returns those of the i-th endpoint.
func (s *EndpointSlice) hintsOf(i int) (h sliceHints) {
	if s.hints != nil {
		h = s.hints[i]
	}
	return h
}

// NewEndpointSlice keeps of a slice what matters, and nothing of its memory but strings.
// Parts that the table cannot use are left out: ports without a number, addresses that
// are not of the slice's family, and all of a headless Service's slices.
func NewEndpointSlice(s *discoveryv1.EndpointSlice) *EndpointSlice {
	c := &EndpointSlice{
		Meta:    metaOf(&s.ObjectMeta),
		service: s.Labels[discoveryv1.LabelServiceName],
		family:  familyOf(s.AddressType),
	}
	if strings.HasPrefix(c.Name, c.service) {
		c.service = c.Name[:len(c.service)] // as of most: one string for both
	}
	about := fmt.Sprintf("endpointslice %s/%s", s.Namespace, s.Name)
	var wrong string
	if c.weight, _, wrong = weightOf(about, s.Annotations); wrong != "" {
		c.warnings = append(c.warnings, wrong)
	}
	if t, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		c.trigger = t.UnixNano()
	}
	if _, headless := s.Labels[labelHeadless]; headless || c.family == 0 {
		return c
	}
	for i := range s.Ports {
		if p, ok := newSlicePort(&s.Ports[i]); ok {
			c.ports = append(c.ports, p)
		}
	}
	if w := sliceSpellings(s).Warning(about); w != "" {
		c.warnings = append(c.warnings, w)
	}
	c.endpoints = make([]sliceEndpoint, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if a, ok := addressOf(e, c.family); ok {
			if h := newSliceHints(e.Hints); h.any() {
				if c.hints == nil {
					c.hints = make([]sliceHints, len(s.Endpoints))
				}
				c.hints[len(c.endpoints)] = h
			}
			c.endpoints = append(c.endpoints, sliceEndpoint{a.As16(), unique.Make(ptr.Deref(e.NodeName, "")), podOf(e, s.Namespace), conditionsOf(e.Conditions)})
		}
	}
	return c
}

// triggered is the time of the last change; zero: not known.
func (s *EndpointSlice) triggered() time.Time {
	if s.trigger == 0 {
		return time.Time{}
	}
	return time.Unix(0, s.trigger).UTC()
}

// owner is the name of the slice's Service.
func (s *EndpointSlice) owner() decision.ServiceName {
	return decision.ServiceName{Namespace: s.Namespace, Name: s.service}
}

// Object is an EndpointSlice for which NewEndpointSlice returns the same.
func (s *EndpointSlice) Object() *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, ResourceVersion: s.ResourceVersion},
		AddressType: discoveryv1.AddressTypeFQDN,
	}
	if s.service != "" {
		o.Labels = map[string]string{discoveryv1.LabelServiceName: s.service}
	}
	if t := s.triggered(); !t.IsZero() {
		set(&o.Annotations, corev1.EndpointsLastChangeTriggerTime, t.Format(time.RFC3339Nano))
	}
	if s.weight != defaultWeight {
		set(&o.Annotations, AnnotationWeight, strconv.Itoa(int(s.weight)))
	}
	if s.family != 0 {
		o.AddressType = discoveryv1.AddressType(s.family.String())
	}
	for _, p := range s.ports {
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{
			Name: new(p.name), Protocol: new(corev1.Protocol(p.protocol.String())), Port: new(int32(p.number)),
		})
	}
	for i := range s.endpoints {
		o.Endpoints = append(o.Endpoints, s.endpoints[i].object(s.hintsOf(i)))
	}
	return o
}

// address is that of the endpoint.
func (e *sliceEndpoint) address() netip.Addr { return netip.AddrFrom16(e.addr).Unmap() }

func (e *sliceEndpoint) object(hints sliceHints) discoveryv1.Endpoint {
	o := discoveryv1.Endpoint{
		Addresses:  []string{e.address().String()},
		Conditions: discoveryv1.EndpointConditions{Ready: new(e.ready), Serving: new(e.serving), Terminating: new(e.terminating)},
	}
	if node := e.node.Value(); node != "" {
		o.NodeName = &node
	}
	if namespace, name, ok := strings.Cut(e.pod, "/"); ok {
		o.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: name}
	}
	if hints.any() {
		o.Hints = new(discoveryv1.EndpointHints)
		for _, z := range hints.zones {
			o.Hints.ForZones = append(o.Hints.ForZones, discoveryv1.ForZone{Name: z})
		}
		for _, n := range hints.nodes {
			o.Hints.ForNodes = append(o.Hints.ForNodes, discoveryv1.ForNode{Name: n})
		}
	}
	return o
}

// familyOf returns the family of a slice's addresses; 0 if they are no addresses.
func familyOf(t discoveryv1.AddressType) decision.Family {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return decision.IPv4
	case discoveryv1.AddressTypeIPv6:
		return decision.IPv6
	}
	return 0
}

func newSlicePort(p *discoveryv1.EndpointPort) (slicePort, bool) {
	protocol, err := decision.ParseProtocol(string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)))
	if err != nil || p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
		return slicePort{}, false
	}
	return slicePort{unique.Make(ptr.Deref(p.Name, "")).Value(), protocol, uint16(*p.Port)}, true
}

// addressOf returns the address of an endpoint. Others than the first have never
// had a meaning.
func addressOf(e *discoveryv1.Endpoint, family decision.Family) (netip.Addr, bool) {
	if len(e.Addresses) == 0 {
		return netip.Addr{}, false
	}
	a, err := kubeaddr.Parse(e.Addresses[0])
	if err != nil || decision.FamilyOf(a) != family {
		return netip.Addr{}, false
	}
	return a, true
}

// podOf names the pod an endpoint stands for, if it is one.
func podOf(e *discoveryv1.Endpoint, namespace string) string {
	ref := e.TargetRef
	if ref == nil || ref.Kind != "Pod" || ref.Name == "" {
		return ""
	}
	if ref.Namespace != "" {
		namespace = ref.Namespace
	}
	return namespace + "/" + ref.Name
}

func newSliceHints(of *discoveryv1.EndpointHints) (h sliceHints) {
	if of == nil {
		return h
	}
	for _, z := range of.ForZones {
		h.zones = append(h.zones, z.Name)
	}
	for _, n := range of.ForNodes {
		h.nodes = append(h.nodes, n.Name)
	}
	return h
}
