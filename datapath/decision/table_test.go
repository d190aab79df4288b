package decision

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// cluster is the node of the tests: two worker addresses, pods in 10.244.0.0/16.
func cluster() Node {
	return Node{
		Name:      "worker1",
		Addresses: []netip.Addr{netip.MustParseAddr("172.20.0.2"), netip.MustParseAddr("fd20::2")},
		Detector:  Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd44::/48")}},
	}
}

// port makes a service port: "ns/name:port", protocol, "clusterIP:port", node port, endpoints.
func port(name string, proto Protocol, at string, nodePort uint16, endpoints ...string) *ServicePort {
	nn, portName, _ := strings.Cut(name, ":")
	ns, n, _ := strings.Cut(nn, "/")
	ap := netip.MustParseAddrPort(at)
	s := &ServicePort{
		Name:     ServicePortName{Namespace: ns, Name: n, Port: portName},
		Protocol: proto, Family: FamilyOf(ap.Addr()),
		ClusterIP: ap.Addr(), Port: ap.Port(), NodePort: nodePort,
	}
	for i, e := range endpoints {
		s.Endpoints = append(s.Endpoints, Endpoint{AddrPort: netip.MustParseAddrPort(e)})
		s.Usable[Cluster] = append(s.Usable[Cluster], uint32(i))
		s.HasEndpoints = true
	}
	return s
}

func table(t testing.TB, node Node, services ...*ServicePort) *Table {
	t.Helper()
	tb := NewTable(1, time.Time{}, node, services)
	if conflicts := tb.Conflicts(); len(conflicts) > 0 {
		t.Fatalf("conflicts: %v", conflicts)
	}
	return tb
}

func packet(proto Protocol, src, dst string) *Packet {
	return &Packet{Protocol: proto, Source: netip.MustParseAddrPort(src), Destination: netip.MustParseAddrPort(dst)}
}

func TestFirstOfTwoClaimsWins(t *testing.T) {
	a := port("default/a", TCP, "10.96.0.1:80", 30080, "10.244.0.1:80")
	b := port("default/b", TCP, "10.96.0.1:80", 30080, "10.244.0.2:80")
	tb := NewTable(1, time.Time{}, cluster(), []*ServicePort{b, a}) // the order does not matter
	var got []string
	for _, c := range tb.Conflicts() {
		got = append(got, c.Error())
	}
	want := []string{
		"service default/b: cluster IP 10.96.0.1:80/TCP is already taken by service default/a",
		"service default/b: node port 30080/TCP is already taken by service default/a",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("conflicts %q, want %q", got, want)
	}
	for _, dst := range []string{"10.96.0.1:80", "172.20.0.2:30080"} {
		if d := Decide(tb, packet(TCP, "10.244.0.9:1", dst), nil, nil, nil); d.ServicePort != a {
			t.Errorf("%s goes to %v, want the first service port", dst, d.ServicePort)
		}
	}
}

// TestFrontendsInTurn: a packet goes to the first of several service ports with its address which has an
// endpoint for it, as in kube-proxy's nat rules; if none has, the first that refuses it does.
func TestFrontendsInTurn(t *testing.T) {
	const vip = "198.51.100.7:80"
	sharing := func(name, clusterIP string, endpoints ...string) *ServicePort {
		s := port(name, TCP, clusterIP, 30080, endpoints...)
		s.ExternalIPs = []netip.Addr{netip.MustParseAddrPort(vip).Addr()}
		return s
	}
	elsewhere := func(s *ServicePort) *ServicePort {
		s.ExternalPolicy, s.HasEndpoints = Local, true
		return s
	}
	const outside, pod = "192.0.2.1:1", "10.244.0.9:1"
	tests := []struct {
		name   string
		a, b   *ServicePort
		source string
		want   string // service, verdict and reason
		// reached are the services that packets of any source reach.
		reached string
	}{
		{"both have endpoints", sharing("default/a", "10.96.0.1:80", "10.244.0.1:80"), sharing("default/b", "10.96.0.2:80", "10.244.0.2:80"), outside, "default/a dnat balanced", "a"},
		{"the first has none", sharing("default/a", "10.96.0.1:80"), sharing("default/b", "10.96.0.2:80", "10.244.0.2:80"), outside, "default/b dnat balanced", "b"},
		{"neither has any", sharing("default/a", "10.96.0.1:80"), sharing("default/b", "10.96.0.2:80"), outside, "default/a reject no-endpoints", "a b"},
		{"the first has none here, for a client outside", elsewhere(sharing("default/a", "10.96.0.1:80", "10.244.0.1:80")), sharing("default/b", "10.96.0.2:80", "10.244.0.2:80"), outside, "default/b dnat balanced", "a b"},
		{"the first has none here, for a pod", elsewhere(sharing("default/a", "10.96.0.1:80", "10.244.0.1:80")), sharing("default/b", "10.96.0.2:80", "10.244.0.2:80"), pod, "default/a dnat balanced", "a b"},
		{"the first has none here, the second none at all", elsewhere(sharing("default/a", "10.96.0.1:80", "10.244.0.1:80")), sharing("default/b", "10.96.0.2:80"), outside, "default/a drop no-local-endpoints", "a b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tb := NewTable(1, time.Time{}, cluster(), []*ServicePort{tt.b, tt.a})
			for _, dst := range []string{vip, "172.20.0.2:30080"} {
				d := Decide(tb, packet(TCP, tt.source, dst), nil, nil, nil)
				if got := fmt.Sprint(d.ServicePort.Name, " ", d.Verdict, " ", d.Reason); got != tt.want {
					t.Errorf("%s: %s, want %s", dst, got, tt.want)
				}
			}
			for _, s := range []*ServicePort{tt.a, tt.b} {
				want := strings.Contains(tt.reached, s.Name.Name)
				if tb.Reached(s, EntryExternalIP, netip.MustParseAddrPort(vip).Addr()) != want || tb.Reached(s, EntryNodePort, netip.Addr{}) != want {
					t.Errorf("packets reach %s: %t, want %t", s.Name, !want, want)
				}
			}
		})
	}
}

func TestSamePortOfOtherProtocolOrFamilyIsNoConflict(t *testing.T) {
	table(t, cluster(),
		port("default/a", TCP, "10.96.0.1:80", 30080),
		port("default/b", UDP, "10.96.0.1:80", 30080),
		port("default/c", SCTP, "10.96.0.1:80", 30080),
		port("default/a", TCP, "[fd96::1]:80", 30080),
	)
}

func TestNodePortAddresses(t *testing.T) {
	tests := []struct {
		name   string
		within []string
		want   string
	}{
		{"no restriction", nil, "172.20.0.2 fd20::2"},
		{"one family restricted leaves the other alone", []string{"172.20.0.0/16"}, "172.20.0.2 fd20::2"},
		{"address not within", []string{"192.168.0.0/16"}, "fd20::2"},
		{"within the second prefix", []string{"192.168.0.0/16", "172.20.0.2/32"}, "172.20.0.2 fd20::2"},
		{"both families restricted", []string{"192.168.0.0/16", "fd99::/64"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node := cluster()
			for _, p := range tt.within {
				node.NodePortAddresses = append(node.NodePortAddresses, netip.MustParsePrefix(p))
			}
			tb := table(t, node, port("default/a", TCP, "10.96.0.1:80", 30080, "10.244.0.1:80"))
			var got []string
			for _, a := range tb.NodePortAddresses() {
				got = append(got, a.String())
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("node ports are open on %q, want %q", got, tt.want)
			}
		})
	}
}

func TestIsLocal(t *testing.T) {
	tb := table(t, cluster())
	for addr, want := range map[string]bool{
		"172.20.0.2": true, "fd20::2": true, "127.0.0.1": true, "::1": true,
		"172.20.0.3": false, "10.244.0.1": false,
	} {
		if got := tb.IsLocal(netip.MustParseAddr(addr)); got != want {
			t.Errorf("IsLocal(%s) = %v, want %v", addr, got, want)
		}
	}
}

// TestDetector: pods are detected by the source's prefix of its family, by the bridge's name, or by the start of the interface's.
func TestDetector(t *testing.T) {
	cidrs := Detector{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	bridge, prefix := Detector{Bridge: "cni0"}, Detector{InterfacePrefix: "veth"}
	for _, tt := range []struct {
		detector   Detector
		source, in string
		want       bool
	}{
		{cidrs, "10.244.1.9:1000", "", true},
		{cidrs, "10.245.1.9:1000", "", false},
		{cidrs, "[fd44::9]:1000", "", false},
		{bridge, "10.244.1.9:1000", "cni0", true},
		{bridge, "10.244.1.9:1000", "cni01", false},
		{bridge, "10.244.1.9:1000", "", false},
		{prefix, "10.244.1.9:1000", "veth1a2b", true},
		{prefix, "10.244.1.9:1000", "eth0", false},
		{prefix, "10.244.1.9:1000", "", false},
	} {
		p := &Packet{Source: netip.MustParseAddrPort(tt.source), InInterface: tt.in}
		if got := tt.detector.IsLocal(p); got != tt.want {
			t.Errorf("%+v: %s from %q is local: %v, want %v", tt.detector, tt.source, tt.in, got, tt.want)
		}
	}
}
