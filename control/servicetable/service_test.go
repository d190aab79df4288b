package servicetable

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

// service makes the Service default/web with port 80/TCP and cluster IP
// 10.96.0.20, changed by the given functions.
func service(changes ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "10.96.0.20",
			ClusterIPs: []string{"10.96.0.20"},
			Ports:      []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, c := range changes {
		c(s)
	}
	return s
}

func withIPs(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "", ips
		if len(ips) > 0 {
			s.Spec.ClusterIP = ips[0]
		}
	}
}

func withType(t corev1.ServiceType) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Type = t }
}

func withLabel(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Labels = map[string]string{key: value} }
}

func withPorts(ports ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = ports }
}

func withExternalIPs(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = ips }
}

func withIngress(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

// withPolicies leaves an empty one unset.
func withPolicies(internal corev1.ServiceInternalTrafficPolicy, external corev1.ServiceExternalTrafficPolicy) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = external
		if internal != "" {
			s.Spec.InternalTrafficPolicy = &internal
		}
	}
}

func named(namespace, name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Namespace, s.Name = namespace, name }
}

// entry makes what the table has for port 80/TCP of default/web.
func entry(clusterIP string, changes ...func(*decision.ServicePort)) *decision.ServicePort {
	ip := netip.MustParseAddr(clusterIP)
	sp := &decision.ServicePort{
		Name:      decision.ServicePortName{Namespace: "default", Name: "web"},
		Protocol:  decision.TCP,
		Family:    decision.FamilyOf(ip),
		ClusterIP: ip,
		Port:      80,
	}
	for _, c := range changes {
		c(sp)
	}
	return sp
}

func entryPort(name string, p decision.Protocol, port, nodePort uint16) func(*decision.ServicePort) {
	return func(sp *decision.ServicePort) {
		sp.Name.Port, sp.Protocol, sp.Port, sp.NodePort = name, p, port, nodePort
	}
}

// describe makes failures readable.
func describe(ports []*decision.ServicePort) (out []decision.ServicePort) {
	for _, p := range ports {
		out = append(out, *p)
	}
	return out
}

// dualStack makes the service ports of a Service of both families.
func dualStack(t *testing.T, changes ...func(*corev1.Service)) (v4, v6 *decision.ServicePort) {
	t.Helper()
	ports := servicePorts(service(append([]func(*corev1.Service){withIPs("10.96.0.20", "fd00::20")}, changes...)...), nil, nil, location{})
	if len(ports) != 2 || ports[0].Family != decision.IPv4 || ports[1].Family != decision.IPv6 {
		t.Fatalf("service ports %+v, want one of each family", describe(ports))
	}
	return ports[0], ports[1]
}

func TestServicePorts(t *testing.T) {
	tests := []struct {
		name string
		svc  *corev1.Service
		want []*decision.ServicePort
	}{
		{"one port, one family", service(), []*decision.ServicePort{entry("10.96.0.20")}},
		{"each port and each family", service(withIPs("10.96.0.20", "fd00::20"), withPorts(
			corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
			corev1.ServicePort{Name: "sctp", Port: 54, Protocol: corev1.ProtocolSCTP})),
			[]*decision.ServicePort{
				entry("10.96.0.20", entryPort("dns", decision.UDP, 53, 0)), entry("fd00::20", entryPort("dns", decision.UDP, 53, 0)),
				entry("10.96.0.20", entryPort("sctp", decision.SCTP, 54, 0)), entry("fd00::20", entryPort("sctp", decision.SCTP, 54, 0)),
			}},
		{"IPv6 only", service(withIPs("fd00::20")), []*decision.ServicePort{entry("fd00::20")}},
		{"IPv6 written at length", service(withIPs("FD00:0:0:0::20")), []*decision.ServicePort{entry("fd00::20")}},
		{"clusterIP alone, of an old API server", service(func(s *corev1.Service) { s.Spec.ClusterIPs = nil }),
			[]*decision.ServicePort{entry("10.96.0.20")}},
		{"the first of two addresses of a family counts", service(withIPs("10.96.0.20", "10.96.0.21")),
			[]*decision.ServicePort{entry("10.96.0.20")}},

		{"no cluster IP", service(withIPs()), nil},
		{"headless", service(withIPs("None")), nil},
		{"ExternalName", service(withType(corev1.ServiceTypeExternalName)), nil},
		{"label of another proxy", service(withLabel("service.kubernetes.io/service-proxy-name", "cilium")), nil},
		{"label of another proxy counts by being there", service(withLabel("service.kubernetes.io/service-proxy-name", "")), nil},
		{"headless label means nothing on a Service", service(withLabel("service.kubernetes.io/headless", "")), []*decision.ServicePort{entry("10.96.0.20")}},
		{"other labels do not matter", service(withLabel("app", "web")), []*decision.ServicePort{entry("10.96.0.20")}},

		{"node port of a NodePort service, in both families", service(withType(corev1.ServiceTypeNodePort), withIPs("10.96.0.20", "fd00::20"),
			withPorts(corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080})),
			[]*decision.ServicePort{
				entry("10.96.0.20", entryPort("", decision.TCP, 80, 30080)), entry("fd00::20", entryPort("", decision.TCP, 80, 30080)),
			}},
		{"node port of a LoadBalancer service", service(withType(corev1.ServiceTypeLoadBalancer),
			withPorts(corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080})),
			[]*decision.ServicePort{entry("10.96.0.20", entryPort("", decision.TCP, 80, 30080))}},
		{"node port that stayed behind when the type changed", service(
			withPorts(corev1.ServicePort{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080})),
			[]*decision.ServicePort{entry("10.96.0.20")}},

		{"ports that cannot be", service(withPorts(
			corev1.ServicePort{Name: "a", Port: 0, Protocol: corev1.ProtocolTCP},
			corev1.ServicePort{Name: "b", Port: 65616, Protocol: corev1.ProtocolTCP}, // 80 in 16 bits
			corev1.ServicePort{Name: "c", Port: 80, Protocol: "ICMP"},
			corev1.ServicePort{Name: "d", Port: 80, Protocol: corev1.ProtocolTCP})),
			[]*decision.ServicePort{entry("10.96.0.20", entryPort("d", decision.TCP, 80, 0))}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := servicePorts(tt.svc, nil, nil, location{}); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", describe(got), describe(tt.want))
			}
		})
	}
}

// TestIgnoreExternalIPs: they are left out, and nothing else is.
func TestIgnoreExternalIPs(t *testing.T) {
	svc := service(withExternalIPs("192.0.2.1"), withType(corev1.ServiceTypeLoadBalancer), func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.5"}}
	})
	for ignore, want := range map[bool][]netip.Addr{false: addrs("192.0.2.1"), true: nil} {
		config := NodeConfig{IgnoreExternalIPs: ignore}
		ports := servicePorts(svc, nil, nil, config.location(""))
		if len(ports) != 1 || !slices.Equal(ports[0].ExternalIPs, want) || !slices.Equal(ports[0].LoadBalancerIPs, addrs("203.0.113.5")) {
			t.Errorf("ignore %t: %+v", ignore, describe(ports))
		}
	}
}

func TestServicePortsHaveTheEndpointsOfTheirFamily(t *testing.T) {
	ports := servicePorts(service(withIPs("10.96.0.20", "fd00::20")), compact(
		slice("v4", discoveryv1.AddressTypeIPv4, 8080, ready("10.244.1.2")),
		slice("v6", discoveryv1.AddressTypeIPv6, 8081, ready("fd01::2")),
		slice("names", discoveryv1.AddressTypeFQDN, 8082, ready("example.org")),
	), nil, location{})
	want := []*decision.ServicePort{
		entry("10.96.0.20", func(sp *decision.ServicePort) {
			sp.Endpoints = []decision.Endpoint{at("10.244.1.2:8080"), other("[fd01::2]:8081")}
			sp.Usable[decision.Cluster] = []uint32{0}
			sp.HasEndpoints = true
		}),
		entry("fd00::20", func(sp *decision.ServicePort) {
			sp.Endpoints = []decision.Endpoint{other("10.244.1.2:8080"), at("[fd01::2]:8081")}
			sp.Usable[decision.Cluster] = []uint32{1}
			sp.HasEndpoints = true
		}),
	}
	if !reflect.DeepEqual(ports, want) {
		t.Errorf("got  %+v\nwant %+v", describe(ports), describe(want))
	}
}

func TestTrafficPolicies(t *testing.T) {
	const (
		cluster = corev1.ServiceExternalTrafficPolicyCluster
		local   = corev1.ServiceExternalTrafficPolicyLocal
	)
	tests := []struct {
		name               string
		change             func(*corev1.Service)
		kind               corev1.ServiceType
		internal, external decision.Policy
	}{
		{"Cluster where unset", withPolicies("", ""), corev1.ServiceTypeNodePort, decision.Cluster, decision.Cluster},
		{"Cluster", withPolicies("Cluster", cluster), corev1.ServiceTypeNodePort, decision.Cluster, decision.Cluster},
		{"internal Local", withPolicies("Local", cluster), corev1.ServiceTypeNodePort, decision.Local, decision.Cluster},
		{"external Local, NodePort", withPolicies("Cluster", local), corev1.ServiceTypeNodePort, decision.Cluster, decision.Local},
		{"external Local, LoadBalancer", withPolicies("Cluster", local), corev1.ServiceTypeLoadBalancer, decision.Cluster, decision.Local},
		{"external Local, ClusterIP with external IPs", func(s *corev1.Service) { withPolicies("", local)(s); withExternalIPs("192.0.2.1")(s) }, corev1.ServiceTypeClusterIP, decision.Cluster, decision.Local},
		{"external Local, but no external access", withPolicies("Local", local), corev1.ServiceTypeClusterIP, decision.Local, decision.Cluster},
		{"both", withPolicies("Local", local), corev1.ServiceTypeLoadBalancer, decision.Local, decision.Local},
		{"internal Local without external access", withPolicies("Local", ""), corev1.ServiceTypeClusterIP, decision.Local, decision.Cluster},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v4, v6 := dualStack(t, tt.change, withType(tt.kind))
			for _, sp := range []*decision.ServicePort{v4, v6} {
				if sp.InternalPolicy != tt.internal || sp.ExternalPolicy != tt.external {
					t.Errorf("%s: internal %s, external %s, want %s, %s", sp.Family, sp.InternalPolicy, sp.ExternalPolicy, tt.internal, tt.external)
				}
			}
		})
	}
}

func TestAffinitySeconds(t *testing.T) {
	withAffinity := func(a corev1.ServiceAffinity, c *corev1.SessionAffinityConfig) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = a, c }
	}
	config := func(seconds *int32) *corev1.SessionAffinityConfig {
		return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds}}
	}
	tests := []struct {
		name   string
		change func(*corev1.Service)
		want   uint32
	}{
		{"unset", withAffinity("", nil), 0},
		{"None", withAffinity(corev1.ServiceAffinityNone, nil), 0},
		{"None, though a time is configured", withAffinity(corev1.ServiceAffinityNone, config(new(int32(60)))), 0},
		{"ClientIP has a default", withAffinity(corev1.ServiceAffinityClientIP, nil), 10800},
		{"ClientIP with nothing in its configuration", withAffinity(corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{}), 10800},
		{"ClientIP without a time", withAffinity(corev1.ServiceAffinityClientIP, config(nil)), 10800},
		{"ClientIP with a time", withAffinity(corev1.ServiceAffinityClientIP, config(new(int32(60)))), 60},
		{"ClientIP with the longest time", withAffinity(corev1.ServiceAffinityClientIP, config(new(int32(86400)))), 86400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v4, v6 := dualStack(t, tt.change)
			if v4.AffinitySeconds != tt.want || v6.AffinitySeconds != tt.want {
				t.Errorf("%d and %d s, want %d", v4.AffinitySeconds, v6.AffinitySeconds, tt.want)
			}
		})
	}
}

func TestHealthCheckNodePort(t *testing.T) {
	const (
		cluster = corev1.ServiceExternalTrafficPolicyCluster
		local   = corev1.ServiceExternalTrafficPolicyLocal
	)
	tests := []struct {
		name   string
		kind   corev1.ServiceType
		policy corev1.ServiceExternalTrafficPolicy
		port   int32
		want   uint16
	}{
		{"LoadBalancer with Local", corev1.ServiceTypeLoadBalancer, local, 30999, 30999},
		{"LoadBalancer with Local, but none was assigned", corev1.ServiceTypeLoadBalancer, local, 0, 0},
		{"LoadBalancer with Cluster", corev1.ServiceTypeLoadBalancer, cluster, 30999, 0},
		{"NodePort with Local", corev1.ServiceTypeNodePort, local, 30999, 0},
		{"ClusterIP", corev1.ServiceTypeClusterIP, local, 30999, 0},
		{"no port number", corev1.ServiceTypeLoadBalancer, local, 65536 + 80, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v4, v6 := dualStack(t, withType(tt.kind), withPolicies("", tt.policy), withExternalIPs("192.0.2.1"),
				func(s *corev1.Service) { s.Spec.HealthCheckNodePort = tt.port })
			if v4.HealthCheckNodePort != tt.want || v6.HealthCheckNodePort != tt.want {
				t.Errorf("%d and %d, want %d", v4.HealthCheckNodePort, v6.HealthCheckNodePort, tt.want)
			}
		})
	}
}

func TestExternalAddresses(t *testing.T) {
	withStatus := func(ingress ...corev1.LoadBalancerIngress) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = ingress }
	}
	const (
		external = iota
		balancer
	)
	tests := []struct {
		name   string
		change func(*corev1.Service)
		kind   int
		v4, v6 []netip.Addr
	}{
		{"external IPs by family", withExternalIPs("192.0.2.1", "2001:db8::1", "192.0.2.2"), external, addrs("192.0.2.1", "192.0.2.2"), addrs("2001:db8::1")},
		{"external IPs of one family", withExternalIPs("192.0.2.1"), external, addrs("192.0.2.1"), nil},
		{"external IPs each once, in any writing", withExternalIPs("2001:db8::1", "192.0.2.1", "2001:DB8:0::1", "192.0.2.1", "::ffff:192.0.2.1"), external, addrs("192.0.2.1"), addrs("2001:db8::1")},
		{"external IPs that are none", withExternalIPs("", "example.org", "192.0.2.256", "192.0.2.1"), external, addrs("192.0.2.1"), nil},
		{"external IPs are no load balancer IPs", withExternalIPs("192.0.2.1"), balancer, nil, nil},

		{"load balancer IPs by family", withIngress("192.0.2.1", "2001:db8::1", "192.0.2.2"), balancer, addrs("192.0.2.1", "192.0.2.2"), addrs("2001:db8::1")},
		{"load balancer IPs each once", withIngress("192.0.2.1", "192.0.2.1"), balancer, addrs("192.0.2.1"), nil},
		{"load balancer IPs are no external IPs", withIngress("192.0.2.1"), external, nil, nil},
		{"ipMode VIP is the default", withStatus(corev1.LoadBalancerIngress{IP: "192.0.2.1", IPMode: new(corev1.LoadBalancerIPModeVIP)}, corev1.LoadBalancerIngress{IP: "192.0.2.2"}),
			balancer, addrs("192.0.2.1", "192.0.2.2"), nil},
		{"ipMode Proxy is ignored", withStatus(corev1.LoadBalancerIngress{IP: "192.0.2.1", IPMode: new(corev1.LoadBalancerIPModeProxy)}, corev1.LoadBalancerIngress{IP: "192.0.2.2"}),
			balancer, addrs("192.0.2.2"), nil},
		{"an ipMode that is not known is ignored", withStatus(corev1.LoadBalancerIngress{IP: "192.0.2.1", IPMode: new(corev1.LoadBalancerIPMode("Other"))}), balancer, nil, nil},
		{"ingress with a host name only is ignored", withStatus(corev1.LoadBalancerIngress{Hostname: "lb.example.org"}), balancer, nil, nil},
		{"a host name beside the IP does not matter", withStatus(corev1.LoadBalancerIngress{IP: "192.0.2.1", Hostname: "lb.example.org"}), balancer, addrs("192.0.2.1"), nil},
		{"the status counts whatever the type", func(s *corev1.Service) { withIngress("192.0.2.1")(s); s.Spec.Type = corev1.ServiceTypeNodePort }, balancer, addrs("192.0.2.1"), nil},
		{"spec.loadBalancerIP is ignored", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerIP = corev1.ServiceTypeLoadBalancer, "192.0.2.1"
		}, balancer, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v4, v6 := dualStack(t, tt.change)
			for _, side := range []struct {
				sp   *decision.ServicePort
				want []netip.Addr
			}{{v4, tt.v4}, {v6, tt.v6}} {
				got := [][]netip.Addr{external: side.sp.ExternalIPs, balancer: side.sp.LoadBalancerIPs}[tt.kind]
				if !slices.Equal(got, side.want) {
					t.Errorf("%s: got %v, want %v", side.sp.Family, got, side.want)
				}
			}
		})
	}
}

func TestSourceRanges(t *testing.T) {
	tests := []struct {
		name   string
		in     []string
		v4, v6 []netip.Prefix
	}{
		{"none", nil, nil, nil},
		{"by family", []string{"192.0.2.0/24", "2001:db8::/32", "198.51.100.7/32"}, prefixes("192.0.2.0/24", "198.51.100.7/32"), prefixes("2001:db8::/32")},
		{"of one family leave the other unrestricted", []string{"192.0.2.0/24"}, prefixes("192.0.2.0/24"), nil},
		{"white space around them", []string{" 192.0.2.0/24", "2001:db8::/32\t\n"}, prefixes("192.0.2.0/24"), prefixes("2001:db8::/32")},
		{"bits of the host do not count", []string{"192.0.2.77/24"}, prefixes("192.0.2.0/24"), nil},
		{"everything means unrestricted, whatever is beside it", []string{"192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32"}, nil, prefixes("2001:db8::/32")},
		{"everything of IPv6", []string{"192.0.2.0/24", "2001:db8::/32", "::/0"}, prefixes("192.0.2.0/24"), nil},
		{"everything, written oddly", []string{"192.0.2.0/0"}, nil, nil},
		{"IPv4 dressed as IPv6", []string{"::ffff:192.0.2.0/120"}, prefixes("192.0.2.0/24"), nil},
		{"all of IPv4 dressed as IPv6", []string{"::ffff:0.0.0.0/96", "192.0.2.0/24"}, nil, nil},
		{"those that are none", []string{"", "192.0.2.1", "192.0.2.0/33", "192.0.2.0/24"}, prefixes("192.0.2.0/24"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v4, v6 := dualStack(t, func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = tt.in })
			if !slices.Equal(v4.SourceRanges, tt.v4) {
				t.Errorf("IPv4: %v, want %v", v4.SourceRanges, tt.v4)
			}
			if !slices.Equal(v6.SourceRanges, tt.v6) {
				t.Errorf("IPv6: %v, want %v", v6.SourceRanges, tt.v6)
			}
		})
	}
}
