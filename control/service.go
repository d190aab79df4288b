package control

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Labels that take a Service or an EndpointSlice out of the proxy's hands.
const (
	// labelProxyName names another proxy that is to serve the Service
	// (apis.LabelServiceProxyName of kube-proxy). Its presence counts.
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	// labelHeadless is what the endpoint controller puts on the slices of
	// headless Services.
	labelHeadless = corev1.IsHeadlessService
)

// ignored says whether a Service has nothing in the table by intention.
func ignored(svc *corev1.Service) bool {
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return true
	}
	_, other := svc.Labels[labelProxyName]
	_, headless := svc.Labels[labelHeadless]
	return other || headless
}

// hasNodePorts says whether the type of the Service gives it node ports.
func hasNodePorts(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// clusterIPs gives the cluster IPs of a Service, at most one of each family, in
// the order of the Service.
func clusterIPs(svc *corev1.Service) []netip.Addr {
	texts := svc.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{svc.Spec.ClusterIP} // of an API server before dual-stack
	}
	var ips []netip.Addr
	seen := make(map[decision.Family]bool)
	for _, s := range texts {
		a, err := netip.ParseAddr(s)
		if err != nil || seen[decision.FamilyOf(a)] {
			continue // None, none, or what no API server would have let pass
		}
		a = a.Unmap()
		seen[decision.FamilyOf(a)] = true
		ips = append(ips, a)
	}
	return ips
}

// servicePorts makes the part of the table that is about one Service: one entry
// for each of its ports and each family of its cluster IPs. It depends on the
// Service and its slices only, those labelled with its name, given in the order
// of their names. It does not change or keep them.
func servicePorts(svc *corev1.Service, slices []*discoveryv1.EndpointSlice) []*decision.ServicePort {
	if ignored(svc) {
		return nil
	}
	var ports []*decision.ServicePort
	ips := clusterIPs(svc)
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		protocol, err := decision.ParseProtocol(string(p.Protocol))
		if err != nil || p.Port < 1 || p.Port > 65535 {
			continue // the sources validate; a table must not lie even so
		}
		for _, ip := range ips {
			sp := &decision.ServicePort{
				Name:      decision.ServicePortName{Namespace: svc.Namespace, Name: svc.Name, Port: p.Name},
				Protocol:  protocol,
				Family:    decision.FamilyOf(ip),
				ClusterIP: ip,
				Port:      uint16(p.Port),
			}
			if hasNodePorts(svc) && p.NodePort > 0 && p.NodePort <= 65535 {
				sp.NodePort = uint16(p.NodePort)
			}
			sp.Endpoints, sp.Excluded = endpoints(sp, slices)
			ports = append(ports, sp)
		}
	}
	return ports
}
