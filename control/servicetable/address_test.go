package servicetable

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

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
