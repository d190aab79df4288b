package manifest

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
)

// defaultService fills in what the API server would (pkg/apis/core/v1/defaults.go
// of Kubernetes), but for what it allocates: cluster IPs and node ports.
func defaultService(s *corev1.Service) {
	spec := &s.Spec
	setDefault(&spec.Type, corev1.ServiceTypeClusterIP)
	setDefault(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		c := cmp.Or(spec.SessionAffinityConfig, new(corev1.SessionAffinityConfig))
		c.ClientIP = cmp.Or(c.ClientIP, new(corev1.ClientIPConfig))
		c.ClientIP.TimeoutSeconds = cmp.Or(c.ClientIP.TimeoutSeconds, new(corev1.DefaultClientIPServiceAffinitySeconds))
		spec.SessionAffinityConfig = c
	}
	if spec.InternalTrafficPolicy == nil && spec.Type != corev1.ServiceTypeExternalName {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if hasNodePorts(spec) || len(spec.ExternalIPs) > 0 {
		setDefault(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	for i := range spec.Ports {
		setDefault(&spec.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	switch {
	case len(spec.ClusterIPs) == 0 && spec.ClusterIP != "":
		spec.ClusterIPs = []string{spec.ClusterIP}
	case len(spec.ClusterIPs) > 0 && spec.ClusterIP == "":
		spec.ClusterIP = spec.ClusterIPs[0]
	}
}

func setDefault[T ~string](field *T, value T) {
	*field = cmp.Or(*field, value)
}

func hasNodePorts(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
}

func validateService(s *corev1.Service, v *validation) {
	spec := &s.Spec
	if strings.Contains(s.Name, ".") {
		v.syntax("metadata.name", s.Name, apivalidation.IsDNS1123Label)
	}
	oneOf(v, "spec.type", spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)
	oneOf(v, "spec.sessionAffinity", spec.SessionAffinity, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if t := *c.ClientIP.TimeoutSeconds; t < 1 || t > 86400 {
			v.fail("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not within 1 to 86400", t)
		}
	}
	if spec.InternalTrafficPolicy != nil {
		oneOf(v, "spec.internalTrafficPolicy", *spec.InternalTrafficPolicy,
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	}
	if spec.ExternalTrafficPolicy != "" {
		oneOf(v, "spec.externalTrafficPolicy", spec.ExternalTrafficPolicy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
		if !hasNodePorts(spec) && len(spec.ExternalIPs) == 0 && !fromCluster(s) {
			v.fail("spec.externalTrafficPolicy", "the API server rejects it: a Service of type %s without externalIPs has no external traffic", spec.Type)
		}
	}
	if p := spec.TrafficDistribution; p != nil {
		oneOf(v, "spec.trafficDistribution", *p, corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode)
	}
	if p := spec.IPFamilyPolicy; p != nil {
		oneOf(v, "spec.ipFamilyPolicy", *p, corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)
	}
	if spec.HealthCheckNodePort != 0 {
		v.port("spec.healthCheckNodePort", spec.HealthCheckNodePort)
	}
	validateClusterIPs(spec, v)
	validateServicePorts(spec, v)
	for i, ip := range spec.ExternalIPs {
		v.address(fmt.Sprintf("spec.externalIPs[%d]", i), ip)
	}
	for i, p := range spec.LoadBalancerSourceRanges {
		v.prefix(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), strings.TrimSpace(p))
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" { // empty: named by a host name
			v.address(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP)
		}
	}
}

// validateClusterIPs checks that there is at most one of each family, or None,
// and that redundant fields agree.
func validateClusterIPs(spec *corev1.ServiceSpec, v *validation) {
	for i, f := range spec.IPFamilies {
		oneOf(v, fmt.Sprintf("spec.ipFamilies[%d]", i), f, corev1.IPv4Protocol, corev1.IPv6Protocol)
	}
	if spec.Type == corev1.ServiceTypeExternalName || len(spec.ClusterIPs) == 0 {
		return
	}
	if spec.ClusterIP != spec.ClusterIPs[0] && !sameAddress(spec.ClusterIP, spec.ClusterIPs[0]) {
		v.fail("spec.clusterIPs[0]", "%q contradicts spec.clusterIP %q", spec.ClusterIPs[0], spec.ClusterIP)
		return
	}
	if spec.ClusterIP == corev1.ClusterIPNone && len(spec.ClusterIPs) == 1 {
		return
	}
	seen := make(map[corev1.IPFamily]bool)
	for i, s := range spec.ClusterIPs {
		path := fmt.Sprintf("spec.clusterIPs[%d]", i)
		if i == 0 {
			path = "spec.clusterIP" // where most people write it
		}
		a, ok := v.address(path, s)
		if !ok {
			continue
		}
		family := familyOf(a)
		if seen[family] {
			v.fail(path, "%q is a second %s address", s, family)
		}
		seen[family] = true
		if i < len(spec.IPFamilies) && spec.IPFamilies[i] != family {
			v.fail(path, "%q is an %s address, but spec.ipFamilies[%d] is %s", s, family, i, spec.IPFamilies[i])
		}
	}
}

// sameAddress compares two addresses that need not be written in the same way.
func sameAddress(a, b string) bool {
	x, errX := kubeaddr.Parse(a)
	y, errY := kubeaddr.Parse(b)
	return errX == nil && errY == nil && x == y
}

func validateServicePorts(spec *corev1.ServiceSpec, v *validation) {
	headless := spec.ClusterIP == corev1.ClusterIPNone
	if len(spec.Ports) == 0 && !headless && spec.Type != corev1.ServiceTypeExternalName {
		v.fail("spec.ports", "missing")
	}
	type number struct {
		port     int32
		protocol corev1.Protocol
	}
	names, ports, nodePorts := make(map[string]int), make(map[number]int), make(map[number]int)
	for i, p := range spec.Ports {
		path := fmt.Sprintf("spec.ports[%d]", i)
		v.port(path+".port", p.Port)
		v.protocol(path+".protocol", p.Protocol)
		if target := p.TargetPort; target.Type == intstr.Int && target.IntVal != 0 {
			v.port(path+".targetPort", target.IntVal)
		} else if target.StrVal != "" && strings.Trim(target.StrVal, "0123456789") != "" { // a number in quotes has a finding
			v.syntax(path+".targetPort", target.StrVal, apivalidation.IsValidPortName)
		}

		switch {
		case p.Name != "":
			v.syntax(path+".name", p.Name, apivalidation.IsDNS1123Label)
		case len(spec.Ports) > 1:
			v.fail(path+".name", "missing: each of several ports needs a name")
		}
		if first, ok := claim(names, p.Name, i); !ok && p.Name != "" {
			v.fail(path+".name", "%q is the name of spec.ports[%d] already", p.Name, first)
		}
		if first, ok := claim(ports, number{p.Port, p.Protocol}, i); !ok {
			v.fail(path+".port", "%d/%s is spec.ports[%d] already", p.Port, p.Protocol, first)
		}

		if p.NodePort == 0 {
			continue
		}
		v.port(path+".nodePort", p.NodePort)
		if !hasNodePorts(spec) {
			v.fail(path+".nodePort", "a Service of type %s has no node ports", spec.Type)
		}
		if first, ok := claim(nodePorts, number{p.NodePort, p.Protocol}, i); !ok {
			v.fail(path+".nodePort", "%d/%s is the node port of spec.ports[%d] already", p.NodePort, p.Protocol, first)
		}
	}
}

// claim assigns a key to its first user, and returns that user to later ones.
func claim[K comparable](owners map[K]int, key K, i int) (int, bool) {
	if first, ok := owners[key]; ok {
		return first, false
	}
	owners[key] = i
	return i, true
}
