package servicetable

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Labels that exclude an object from the proxy if they are present, with any value.
const (
	// labelProxyName, on a Service, names another proxy that is to serve it
	// (apis.LabelServiceProxyName of kube-proxy).
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	// labelHeadless is what the endpoint controller puts on the slices of
	// headless Services. On a Service it means nothing.
	labelHeadless = corev1.IsHeadlessService
)

// ignored returns why a Service has nothing in the table by intention; empty: it is to have something.
func ignored(svc *corev1.Service) string {
	_, other := svc.Labels[labelProxyName]
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return "type ExternalName: DNS resolves it to another name, without a service proxy"
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		return "headless (clusterIP: None): DNS resolves it to the addresses of its pods, without a service proxy; use one of its pods, pod/" + svc.Namespace + "/NAME:PORT"
	case other:
		return fmt.Sprintf("its label %s assigns it to another proxy", labelProxyName)
	}
	return ""
}

// Unserved returns why a Service has no service ports in the table, and what to do. It is empty for
// a Service that has some.
func Unserved(svc *corev1.Service) string {
	why := ignored(svc)
	if why == "" && len(clusterIPs(svc)) == 0 {
		why = "no clusterIP: no API server assigned one; set spec.clusterIP"
	}
	return why
}

// hasNodePorts reports whether the type of the Service gives it node ports.
func hasNodePorts(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// clusterIPs returns the cluster IPs of a Service, at most one of each family, in
// the order of the Service.
func clusterIPs(svc *corev1.Service) []netip.Addr {
	texts := svc.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{svc.Spec.ClusterIP} // of an API server before dual-stack
	}
	var ips []netip.Addr
	for _, s := range texts {
		a, err := kubeaddr.Parse(s)
		if err != nil {
			continue // None, none, or what no API server would have let pass
		}
		if _, twice := decision.AddressOf(ips, decision.FamilyOf(a)); !twice {
			ips = append(ips, a)
		}
	}
	return ips
}

// servicePorts makes the part of the table that is about one Service: one entry
// for each of its ports and each family of its cluster IPs, as seen from a node. It
// depends on its arguments only: the slices are those labelled with the Service's
// name, in the order of their names. It does not change or keep them.
func servicePorts(svc *corev1.Service, from []*EndpointSlice, of weights, at location) []*decision.ServicePort {
	if ignored(svc) != "" {
		return nil
	}
	var ports []*decision.ServicePort
	ips := clusterIPs(svc)
	internal, external := policies(svc)
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		protocol, err := decision.ParseProtocol(string(p.Protocol))
		if err != nil || p.Port < 1 || p.Port > 65535 {
			continue // the sources validate; a table must not lie even so
		}
		for _, ip := range ips {
			family := decision.FamilyOf(ip)
			sp := &decision.ServicePort{
				Name:            decision.ServicePortName{Namespace: svc.Namespace, Name: svc.Name, Port: unique.Make(p.Name).Value()},
				Protocol:        protocol,
				Family:          family,
				ClusterIP:       ip,
				Port:            uint16(p.Port),
				ExternalIPs:     addressesOf(family, svc.Spec.ExternalIPs),
				LoadBalancerIPs: addressesOf(family, loadBalancerIPs(svc)),
				SourceRanges:    rangesOf(family, svc.Spec.LoadBalancerSourceRanges),
				InternalPolicy:  internal,
				ExternalPolicy:  external,
				AffinitySeconds: affinitySeconds(svc),
				QueueOneIn:      queueOneIn(svc, at),
				Balance:         balanceOf(svc, at),
			}
			if at.ignoreExternalIPs {
				sp.ExternalIPs = nil
			}
			if n := svc.Spec.HealthCheckNodePort; svc.Spec.Type == corev1.ServiceTypeLoadBalancer && external == decision.Local && n > 0 && n <= 65535 {
				sp.HealthCheckNodePort = uint16(n)
			}
			if hasNodePorts(svc) && p.NodePort > 0 && p.NodePort <= 65535 {
				sp.NodePort = uint16(p.NodePort)
			}
			setEndpoints(sp, from, of, at)
			ports = append(ports, sp)
		}
	}
	return ports
}

// policies returns the traffic policies of a Service. The external one has a meaning
// only where there is external traffic (apis/core ExternalPolicyLocal).
func policies(svc *corev1.Service) (internal, external decision.Policy) {
	if ptr.Deref(svc.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal {
		internal = decision.Local
	}
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && (hasNodePorts(svc) || len(svc.Spec.ExternalIPs) > 0) {
		external = decision.Local
	}
	return internal, external
}

// affinitySeconds is how long clients stay with their endpoint; 0: not at all.
func affinitySeconds(svc *corev1.Service) uint32 {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && *c.ClientIP.TimeoutSeconds > 0 {
		return uint32(*c.ClientIP.TimeoutSeconds)
	}
	return uint32(corev1.DefaultClientIPServiceAffinitySeconds)
}

// loadBalancerIPs are the ingress addresses of mode VIP, which is the default.
// Packets to others never reach a node under that address.
func loadBalancerIPs(svc *corev1.Service) []string {
	var ips []string
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IP != "" && ptr.Deref(in.IPMode, corev1.LoadBalancerIPModeVIP) == corev1.LoadBalancerIPModeVIP {
			ips = append(ips, in.IP)
		}
	}
	return ips
}

// addressesOf returns the addresses of a family, each once.
func addressesOf(f decision.Family, texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range texts {
		a, err := kubeaddr.Parse(s)
		if err == nil && decision.FamilyOf(a) == f && !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// rangesOf returns the prefixes of a family; none, if one of them is everything. White
// space around them is let pass, as the API server does.
func rangesOf(f decision.Family, texts []string) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, s := range texts {
		p, err := kubeaddr.ParsePrefix(strings.TrimSpace(s))
		if err != nil || decision.FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		prefixes = append(prefixes, p)
	}
	return prefixes
}
