package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
)

// Objects are Kubernetes objects for which kube-proxy, with the configuration of [Config], would
// write the same rules.
type Objects struct {
	// Node is the node that the rules are of; nil if nothing depends on it.
	Node           *corev1.Node
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	// ServiceCIDR has the ranges of cluster IPs; nil if the rules do not show them.
	ServiceCIDR *networkingv1.ServiceCIDR
	// Notes are the parts that were left out or invented, one sentence each.
	Notes []string
}

// defaultNodeName is the name of the node where none is given.
const defaultNodeName = "node"

// NewObjects makes objects from the rules of one node, of one family or both. nodeName may be
// empty.
func NewObjects(nodeName string, nodes ...*Node) *Objects {
	m := &objectBuilder{objects: &Objects{}, nodeName: cmp.Or(nodeName, defaultNodeName), within: make(map[int]map[netip.Prefix]bool)}
	m.node(nodeName != "", nodes)
	m.serviceCIDR(nodes)
	ports := make(map[decision.ServiceName][]*Service)
	var names []decision.ServiceName
	for _, n := range nodes {
		for _, s := range n.Services {
			s, ok := m.settle(s)
			if !ok {
				continue
			}
			name := s.Name.Service()
			if ports[name] == nil {
				names = append(names, name)
			}
			ports[name] = append(ports[name], s)
		}
	}
	slices.SortFunc(names, decision.ServiceName.Compare)
	for _, name := range names {
		m.service(name, ports[name])
		m.slices(name, ports[name])
	}
	return m.objects
}

// Config is the configuration of the node that the rules were read from. The detection of pods is
// as the rules show it: a prefix is assumed to be the whole cluster's.
func Config(nodeName string, nodes ...*Node) servicetable.NodeConfig {
	c := servicetable.NodeConfig{Name: cmp.Or(nodeName, defaultNodeName), LocalhostNodePorts: true}
	for _, n := range nodes {
		p := n.Proxy
		switch {
		case p.PodCIDR.IsValid():
			c.ClusterCIDRs = append(c.ClusterCIDRs, p.PodCIDR)
		case p.Bridge != "":
			c.Mode, c.Bridge = servicetable.BridgeInterface, p.Bridge
		case p.InterfacePrefix != "":
			c.Mode, c.InterfacePrefix = servicetable.InterfaceNamePrefix, p.InterfacePrefix
		}
		// If node ports are restricted, their addresses show it.
		c.LocalhostNodePorts = c.LocalhostNodePorts && (p.LocalhostNodePorts || len(p.NodePortAddresses) > 0)
		c.MasqueradeAll = c.MasqueradeAll || p.MasqueradeAll
		c.MasqueradeMark = cmp.Or(p.MasqueradeMark, c.MasqueradeMark)
		for _, a := range p.NodePortAddresses {
			c.NodePortAddresses = append(c.NodePortAddresses, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return c
}

// Kernel is the kernel of the node that the rules were read from.
func Kernel(nodes ...*Node) (k kubechains.Kernel) {
	for _, n := range nodes {
		k.NFAcct = k.NFAcct || n.Proxy.NFAcct
		k.TCPLiberal = k.TCPLiberal || n.Proxy.PassesInvalid
	}
	return k
}

// objectBuilder is the state of NewObjects.
type objectBuilder struct {
	objects   *Objects
	nodeName  string
	addresses []netip.Addr                  // known addresses of the node
	within    map[int]map[netip.Prefix]bool // see networks
}

func (m *objectBuilder) note(format string, args ...any) {
	m.objects.Notes = append(m.objects.Notes, fmt.Sprintf(format, args...))
}

// node makes the Node object, if it was requested or if something depends on it.
func (m *objectBuilder) node(named bool, nodes []*Node) {
	o := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: m.nodeName}}
	needed := named
	for _, n := range nodes {
		if p := n.Proxy.NodePodCIDR; p.IsValid() {
			o.Spec.PodCIDRs = append(o.Spec.PodCIDRs, p.String())
			needed = true
		}
		for _, a := range n.Proxy.NodePortAddresses {
			if !a.IsLoopback() {
				m.addresses = append(m.addresses, a)
				o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
			}
			needed = true
		}
		for _, s := range n.Services {
			needed = needed || s.NodePort != 0 || s.Dropped
			for _, e := range s.Endpoints {
				needed = needed || e.Locality == OnThisNode
			}
		}
	}
	if len(o.Spec.PodCIDRs) > 0 {
		o.Spec.PodCIDR = o.Spec.PodCIDRs[0]
	}
	if needed {
		m.objects.Node = o
	}
}

// serviceCIDR makes the object with the ranges of cluster IPs, with the name that the API server gives its own.
func (m *objectBuilder) serviceCIDR(nodes []*Node) {
	var cidrs []string
	for _, n := range nodes {
		cidrs = append(cidrs, texts(n.Proxy.ServiceCIDRs)...)
	}
	if len(cidrs) > 0 {
		m.objects.ServiceCIDR = &networkingv1.ServiceCIDR{
			TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
			ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
		}
	}
}

// settle sets the names that an object needs, or leaves the service port out.
func (m *objectBuilder) settle(s *Service) (*Service, bool) {
	if !s.ClusterIP.IsValid() || s.Port == 0 {
		m.note("%s is left out: no rule has its cluster IP", s.Title())
		return nil, false
	}
	if s.Name != (decision.ServicePortName{}) {
		return s, true
	}
	named := *s
	named.Name = decision.ServicePortName{
		Namespace: "default",
		Name:      "service-" + strings.NewReplacer(".", "-", ":", "-").Replace(s.ClusterIP.StringExpanded()),
		Port:      fmt.Sprintf("%s-%d", s.Protocol.Lower(), s.Port),
	}
	m.note("%s (%s) has no name in its comments and is named %s: its chains get other names", s.Title(), s.Protocol, named.Name)
	return &named, true
}

// service makes the Service of some service ports, of either family.
func (m *objectBuilder) service(name decision.ServiceName, ports []*Service) {
	o := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			SessionAffinity:       corev1.ServiceAffinityNone,
		},
	}
	spec := &o.Spec
	var external, lb unique[netip.Addr]
	var ranges unique[netip.Prefix]
	there := make(map[portKey]int)
	for _, s := range ports {
		m.port(spec, there, s)
		m.clusterIP(spec, s)
		external.add(s.ExternalIPs...)
		lb.add(s.LoadBalancerIPs...)
		ranges.add(s.SourceRanges...)
		if s.InternalPolicy == decision.Local {
			spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}
		if s.AffinitySeconds > 0 {
			spec.SessionAffinity = corev1.ServiceAffinityClientIP
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(s.AffinitySeconds))}}
		}
		spec.HealthCheckNodePort = max(spec.HealthCheckNodePort, int32(s.HealthCheckNodePort))
		spec.Type = laterType(spec.Type, corev1.ServiceType(s.Type()))
	}
	for _, s := range ports {
		if s.External() || s.HealthCheckNodePort != 0 {
			spec.ExternalTrafficPolicy = cmp.Or(spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
			if s.ExternalPolicy == decision.Local {
				spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
		}
		if s.NodeAllowed && !m.nodeWithin(s) { // this does the same
			for _, ip := range s.LoadBalancerIPs {
				ranges.add(netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	spec.ExternalIPs, spec.LoadBalancerSourceRanges = texts(external.values), texts(ranges.values)
	for _, ip := range lb.values {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip.String()})
	}
	m.objects.Services = append(m.objects.Services, o)
}

// nodeWithin reports whether the node's address is known to be within the source ranges.
func (m *objectBuilder) nodeWithin(s *Service) bool {
	return slices.ContainsFunc(s.SourceRanges, func(p netip.Prefix) bool { return m.networks(p.Bits())[p.Masked()] })
}

// networks are those with prefixes of that length that the node's addresses are in.
func (m *objectBuilder) networks(bits int) map[netip.Prefix]bool {
	of := m.within[bits]
	if of == nil {
		of = make(map[netip.Prefix]bool)
		for _, a := range m.addresses {
			if p, err := a.Prefix(bits); err == nil {
				of[p] = true
			}
		}
		m.within[bits] = of
	}
	return of
}

// laterType is the later type in the order ClusterIP, NodePort, LoadBalancer.
func laterType(a, b corev1.ServiceType) corev1.ServiceType {
	order := []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer}
	return order[max(slices.Index(order, a), slices.Index(order, b))]
}

// portKey identifies a port of a Service.
type portKey struct {
	name     string
	protocol corev1.Protocol
}

// port adds a port of one family, which may exist from the other.
func (m *objectBuilder) port(spec *corev1.ServiceSpec, there map[portKey]int, s *Service) {
	p := corev1.ServicePort{Name: s.Name.Port, Protocol: corev1.Protocol(s.Protocol.String()), Port: int32(s.Port), NodePort: int32(s.NodePort), TargetPort: intstr.FromInt32(int32(s.Port))}
	if len(s.Endpoints) > 0 && s.Endpoints[0].AddrPort.IsValid() {
		p.TargetPort = intstr.FromInt32(int32(s.Endpoints[0].AddrPort.Port()))
	}
	key := portKey{p.Name, p.Protocol}
	if i, known := there[key]; known {
		have := &spec.Ports[i]
		if have.Port != p.Port || have.NodePort != 0 && p.NodePort != 0 && have.NodePort != p.NodePort {
			m.note("%s has a different port in %s than in the other family: that port is left out", s.Title(), s.Family)
		}
		have.NodePort = cmp.Or(have.NodePort, p.NodePort)
		return
	}
	there[key] = len(spec.Ports)
	spec.Ports = append(spec.Ports, p)
}

// clusterIP adds the cluster IP of a family.
func (m *objectBuilder) clusterIP(spec *corev1.ServiceSpec, s *Service) {
	for _, have := range spec.ClusterIPs {
		switch a := netip.MustParseAddr(have); {
		case a == s.ClusterIP:
			return
		case decision.FamilyOf(a) == s.Family:
			m.note("%s: its ports have several cluster IPs; %s is left out", s.Title(), s.ClusterIP)
			return
		}
	}
	spec.ClusterIPs = append(spec.ClusterIPs, s.ClusterIP.String())
	spec.ClusterIP = spec.ClusterIPs[0]
	family, policy := corev1.IPv4Protocol, corev1.IPFamilyPolicySingleStack
	if s.Family == decision.IPv6 {
		family = corev1.IPv6Protocol
	}
	spec.IPFamilies = append(spec.IPFamilies, family)
	if len(spec.IPFamilies) > 1 {
		policy = corev1.IPFamilyPolicyPreferDualStack
	}
	spec.IPFamilyPolicy = &policy
}
