package servicetable

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Objects returns objects from which [Table] makes the same service ports, for the table's node with the same
// configuration: the Services with their EndpointSlices, and the Node. They have what the table depends on, and not,
// for example, selectors. A table does not keep for which zones or nodes other endpoints are: the hints of those
// that the node does not use name [elsewhere]. The Node has the addresses of those families of which the node has
// an own address. With names the objects are these Services, their EndpointSlices and the Node.
func Objects(t *decision.Table, names ...decision.ServiceName) *kube.Objects {
	o := new(kube.Objects)
	if len(names) == 0 {
		for _, s := range t.Services() {
			names = append(names, s.Name.Service())
		}
		names = slices.Compact(names)
	}
	for _, name := range names {
		if ports := t.Service(name); len(ports) > 0 {
			o.Services = append(o.Services, serviceObject(ports))
			o.EndpointSlices = append(o.EndpointSlices, sliceObjects(ports, t.Node())...)
		}
	}
	if n := tableNode(t.Node()); n != nil {
		o.Nodes = []*corev1.Node{n}
	}
	return o
}

// elsewhere is the zone or node of endpoints that are for others.
const elsewhere = "elsewhere"

func tableNode(n *decision.Node) *corev1.Node {
	if n.Name == "" {
		return nil
	}
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	if n.Zone != "" {
		o.Labels = map[string]string{corev1.LabelTopologyZone: n.Zone}
	}
	add := func(a netip.Addr) {
		if n.IP(decision.FamilyOf(a)).IsValid() && !a.IsLinkLocalUnicast() {
			o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
	}
	for _, a := range n.IPs {
		add(a)
	}
	for _, a := range n.Addresses {
		if !slices.Contains(n.IPs, a) {
			add(a)
		}
	}
	return o
}

// serviceObject is the Service of service ports, which are all of it.
func serviceObject(ports []*decision.ServicePort) *corev1.Service {
	first := ports[0]
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: first.Name.Namespace, Name: first.Name.Name}}
	spec := &svc.Spec
	for i, s := range ports {
		if !slices.ContainsFunc(ports[:i], func(o *decision.ServicePort) bool { return o.Family == s.Family }) {
			spec.ClusterIPs = append(spec.ClusterIPs, s.ClusterIP.String())
			spec.IPFamilies = append(spec.IPFamilies, corev1.IPFamily(s.Family.String()))
			for _, a := range s.ExternalIPs {
				spec.ExternalIPs = append(spec.ExternalIPs, a.String())
			}
			for _, a := range s.LoadBalancerIPs {
				svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)})
			}
			for _, p := range s.SourceRanges {
				spec.LoadBalancerSourceRanges = append(spec.LoadBalancerSourceRanges, p.String())
			}
		}
		if !slices.ContainsFunc(ports[:i], func(o *decision.ServicePort) bool { return o.Name == s.Name && o.Protocol == s.Protocol }) {
			spec.Ports = append(spec.Ports, corev1.ServicePort{
				Name: s.Name.Port, Protocol: corev1.Protocol(s.Protocol.String()), Port: int32(s.Port), NodePort: int32(s.NodePort),
			})
		}
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	if len(spec.IPFamilies) > 1 {
		spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}
	nodePorts := slices.ContainsFunc(spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 })
	switch {
	case len(svc.Status.LoadBalancer.Ingress)+len(spec.LoadBalancerSourceRanges) > 0, first.HealthCheckNodePort != 0,
		first.ExternalPolicy == decision.Local && !nodePorts && len(spec.ExternalIPs) == 0:
		spec.Type = corev1.ServiceTypeLoadBalancer
		spec.HealthCheckNodePort = int32(first.HealthCheckNodePort)
		spec.AllocateLoadBalancerNodePorts = new(nodePorts)
	case nodePorts:
		spec.Type = corev1.ServiceTypeNodePort
	default:
		spec.Type = corev1.ServiceTypeClusterIP
	}
	if first.InternalPolicy == decision.Local {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if first.ExternalPolicy == decision.Local {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if first.AffinitySeconds > 0 {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(first.AffinitySeconds))}}
	}
	switch n := first.QueueOneIn; n {
	case 0:
	case decision.NotQueued:
		set(&svc.Annotations, AnnotationDecide, "kernel")
	default:
		set(&svc.Annotations, AnnotationDecide, "queue/"+strconv.Itoa(int(n)))
	}
	if first.Balance != "" {
		set(&svc.Annotations, AnnotationBalance, first.Balance)
	}
	return svc
}

// sliceObjects are the EndpointSlices of a Service's ports. All endpoints of a slice have the same ports and weight,
// and hints may differ between ports: each port has slices of its own.
func sliceObjects(ports []*decision.ServicePort, n *decision.Node) (list []*discoveryv1.EndpointSlice) {
	name := ports[0].Name.Service()
	for _, s := range ports {
		slicesOf := make(map[sliceKey]*discoveryv1.EndpointSlice)
		hint, terminating := hintsFor(s, n), terminatingOf(s)
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			family := decision.FamilyOf(e.AddrPort.Addr())
			if family != s.Family && hasFamily(ports, s, family) {
				continue // it is among the endpoints of the service port of that family
			}
			k := sliceKey{family, e.AddrPort.Port(), e.Weight}
			o := slicesOf[k]
			if o == nil {
				o = &discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: name.Namespace, Name: fmt.Sprintf("%s-%d", name.Name, len(list)+1),
						Labels: map[string]string{discoveryv1.LabelServiceName: name.Name},
					},
					AddressType: discoveryv1.AddressType(family.String()),
					Ports:       []discoveryv1.EndpointPort{{Name: new(s.Name.Port), Protocol: new(corev1.Protocol(s.Protocol.String())), Port: new(int32(k.port))}},
				}
				if k.weight != defaultWeight {
					set(&o.Annotations, AnnotationWeight, strconv.Itoa(int(k.weight)))
				}
				slicesOf[k] = o
				list = append(list, o)
			}
			from := sliceEndpoint{addr: e.AddrPort.Addr().As16(), node: unique.Make(e.NodeName), pod: e.Pod, conditions: conditions{e.Ready, e.Serving, terminating(e)}}
			var hints sliceHints
			if family == s.Family && e.Ready {
				hints = hint(e)
			}
			o.Endpoints = append(o.Endpoints, from.object(hints))
		}
	}
	return list
}

// sliceKey is what all endpoints of an EndpointSlice of a service port have in common.
type sliceKey struct {
	family decision.Family
	port   uint16
	weight uint16
}

// hasFamily reports whether there is the same service port of another family.
func hasFamily(ports []*decision.ServicePort, s *decision.ServicePort, f decision.Family) bool {
	return slices.ContainsFunc(ports, func(o *decision.ServicePort) bool {
		return o.Name == s.Name && o.Protocol == s.Protocol && o.Family == f
	})
}

// hintsFor returns the hints of ready endpoints: none, unless hints exclude some.
func hintsFor(s *decision.ServicePort, n *decision.Node) func(*decision.Endpoint) sliceHints {
	excludes := func(why decision.Exclusion) bool {
		return slices.ContainsFunc(s.Endpoints, func(e decision.Endpoint) bool { return e.Exclusions[decision.Cluster] == why })
	}
	used := func(e *decision.Endpoint, here string) []string {
		if e.Exclusions[decision.Cluster] == 0 {
			return []string{here}
		}
		return []string{elsewhere}
	}
	switch {
	case excludes(decision.OtherNode):
		return func(e *decision.Endpoint) sliceHints { return sliceHints{nodes: used(e, n.Name)} }
	case excludes(decision.OtherZone):
		return func(e *decision.Endpoint) sliceHints { return sliceHints{zones: used(e, n.Zone)} }
	}
	return func(*decision.Endpoint) sliceHints { return sliceHints{} }
}

// terminatingOf returns which endpoints terminate, as far as it makes a difference. Of an endpoint that traffic
// of this node cannot use anyway the table does not keep it, but only whether there is an endpoint at all.
func terminatingOf(s *decision.ServicePort) func(*decision.Endpoint) bool {
	state := func(e *decision.Endpoint) (terminates, known bool) {
		for _, why := range e.Exclusions {
			switch {
			case why == decision.Terminating, why == decision.NotServing, why == 0 && !e.Ready:
				return true, true
			case why == decision.NotReady:
				return false, true
			}
		}
		return false, false
	}
	unexplained := s.HasEndpoints
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if terminates, _ := state(e); decision.FamilyOf(e.AddrPort.Addr()) == s.Family && (e.Ready || terminates && e.Serving) {
			unexplained = false
		}
	}
	return func(e *decision.Endpoint) bool {
		terminates, known := state(e)
		return terminates || !known && unexplained && !e.Ready
	}
}
