package controllers

import (
	"fmt"
	"hash/fnv"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

// The API server's default of --service-node-port-range.
const (
	firstNodePort = 30000
	nodePorts     = 2768
)

// Allocate fills in what the API server allocates for Services that lack it: ClusterIPs of the prefixes, by the
// Service's ipFamilyPolicy and ipFamilies, node ports, and target ports. It changes the Services. What it allocates
// follows from the Services' names, if no other Service has it, so that a Service keeps its address when others come
// and go. An error names a Service that cannot have one.
func Allocate(services []*corev1.Service, prefixes []netip.Prefix) error {
	a := allocator{prefixes: prefixes, addresses: make(map[netip.Addr]bool), ports: make(map[int32]bool)}
	for _, s := range services {
		for _, ip := range s.Spec.ClusterIPs {
			if address, err := kubeaddr.Parse(ip); err == nil {
				a.addresses[address] = true
			}
		}
		for _, p := range s.Spec.Ports {
			a.ports[p.NodePort] = true
		}
		a.ports[s.Spec.HealthCheckNodePort] = true
	}
	for _, s := range services {
		if err := a.allocate(s); err != nil {
			return fmt.Errorf("allocate for Service %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	return nil
}

// Unique returns an error if two Services have the same ClusterIP or node port. The API server refuses the second one; Allocate does
// not, because files that were written for a cluster may have both.
func Unique(services []*corev1.Service) error {
	type nodePort struct {
		port     int32
		protocol corev1.Protocol
	}
	addresses, ports := make(map[netip.Addr]*corev1.Service), make(map[nodePort]*corev1.Service)
	for _, s := range services {
		for _, ip := range s.Spec.ClusterIPs {
			address, err := kubeaddr.Parse(ip)
			if err != nil { // None, or ExternalName's
				continue
			}
			if other := addresses[address]; other != nil && other != s {
				return fmt.Errorf("two Services have the ClusterIP %s, %s/%s and %s/%s: leave it out of one of them to have a free one allocated", address, other.Namespace, other.Name, s.Namespace, s.Name)
			}
			addresses[address] = s
		}
		for _, p := range s.Spec.Ports {
			key := nodePort{p.NodePort, p.Protocol}
			if p.NodePort == 0 {
				continue
			}
			if other := ports[key]; other != nil && other != s {
				return fmt.Errorf("two Services have the node port %d/%s, %s/%s and %s/%s: leave it out of one of them to have a free one allocated", p.NodePort, p.Protocol, other.Namespace, other.Name, s.Namespace, s.Name)
			}
			ports[key] = s
		}
	}
	return nil
}

type allocator struct {
	prefixes  []netip.Prefix
	addresses map[netip.Addr]bool
	ports     map[int32]bool
}

func (a *allocator) allocate(s *corev1.Service) error {
	spec := &s.Spec
	for i := range spec.Ports {
		if spec.Ports[i].TargetPort == (intstr.IntOrString{}) {
			spec.Ports[i].TargetPort = intstr.FromInt32(spec.Ports[i].Port)
		}
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if err := a.clusterIPs(s); err != nil {
		return err
	}
	if spec.Type != corev1.ServiceTypeNodePort && (spec.Type != corev1.ServiceTypeLoadBalancer || spec.AllocateLoadBalancerNodePorts != nil && !*spec.AllocateLoadBalancerNodePorts) {
		return nil
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.NodePort != 0 {
			continue
		}
		// A port may be used once for each protocol. One for all is simpler.
		port, ok := a.port(fmt.Sprint(s.Namespace, "/", s.Name, ":", p.Name, "/", p.Protocol))
		if !ok {
			return fmt.Errorf("spec.ports[%d].nodePort: all %d node ports are in use", i, nodePorts)
		}
		p.NodePort = port
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && spec.HealthCheckNodePort == 0 {
		spec.HealthCheckNodePort, _ = a.port(s.Namespace + "/" + s.Name + " health check") // without a port there is no health check
	}
	return nil
}

// clusterIPs gives a Service an address of each family that it wants.
func (a *allocator) clusterIPs(s *corev1.Service) error {
	spec := &s.Spec
	if spec.ClusterIP == corev1.ClusterIPNone {
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = a.families(spec)
		}
		return nil
	}
	if len(spec.ClusterIPs) == 0 {
		families := spec.IPFamilies
		if len(families) == 0 {
			families = a.families(spec)
		}
		for _, f := range families {
			address, err := a.address(s.Namespace+"/"+s.Name, f)
			if err != nil {
				return err
			}
			spec.ClusterIPs = append(spec.ClusterIPs, address.String())
		}
		if len(families) == 0 {
			return fmt.Errorf("spec.clusterIP: missing, and there are no service CIDRs to allocate one of")
		}
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	if len(spec.IPFamilies) == 0 {
		for _, ip := range spec.ClusterIPs {
			if address, err := kubeaddr.Parse(ip); err == nil {
				spec.IPFamilies = append(spec.IPFamilies, familyOf(address))
			}
		}
	}
	return nil
}

// families are those of a Service without ipFamilies: the first one of the cluster, or all if it wants both.
func (a *allocator) families(spec *corev1.ServiceSpec) (all []corev1.IPFamily) {
	for _, p := range a.prefixes {
		all = append(all, familyOf(p.Addr()))
	}
	if spec.IPFamilyPolicy == nil || *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack {
		return all[:min(1, len(all))]
	}
	return all
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// address returns a free address of a family: the one that a name leads to, or the next one. As the API server
// does, it leaves the lowest addresses to Services that name theirs (KEP-3070).
func (a *allocator) address(name string, f corev1.IPFamily) (netip.Addr, error) {
	for _, p := range a.prefixes {
		if familyOf(p.Addr()) != f {
			continue
		}
		size := uint32(1) << min(p.Addr().BitLen()-p.Bits(), 16)
		low := max(size/16, 2)
		if size <= low+1 {
			continue
		}
		count := size - low - 1 // without the last one
		for i, start := uint32(0), hash(name); i < count; i++ {
			address := offset(p.Addr(), low+(start+i)%count)
			if !a.addresses[address] {
				a.addresses[address] = true
				return address, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("spec.clusterIP: missing, and the service CIDRs have no free %s address", f)
}

func (a *allocator) port(name string) (int32, bool) {
	for i, start := uint32(0), hash(name); i < nodePorts; i++ {
		port := int32(firstNodePort + (start+i)%nodePorts)
		if !a.ports[port] {
			a.ports[port] = true
			return port, true
		}
	}
	return 0, false
}

func hash(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // never an error
	return h.Sum32() & 0x7fffffff
}

// offset is the address at a distance of another; the distance must be in the prefix.
func offset(a netip.Addr, n uint32) netip.Addr {
	b := a.As16()
	for i := len(b) - 1; n > 0; i-- {
		sum := uint32(b[i]) + n&0xff
		b[i] = byte(sum)
		n = n>>8 + sum>>8
	}
	r := netip.AddrFrom16(b)
	if a.Is4() {
		return r.Unmap()
	}
	return r
}
