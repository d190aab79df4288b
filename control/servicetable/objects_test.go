package servicetable

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// sameAgain checks that the objects of a table make the table again, also by way of a file.
func sameAgain(t *testing.T, table *decision.Table, config NodeConfig) {
	t.Helper()
	objects := Objects(table)
	text, err := objects.YAML()
	if err != nil {
		t.Fatal(err)
	}
	read, err := manifest.Options{}.LoadText("objects", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	config.Zone, config.IPs, config.Balance = "", nil, ""
	for _, o := range []*kube.Objects{objects, &read.Objects} {
		again, _ := Table(o, config)
		if !reflect.DeepEqual(table.Services(), again.Services()) || table.Node().Zone != again.Node().Zone {
			diff := cmp.Diff(table.Services(), again.Services(), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}))
			t.Fatalf("another table of its objects (-want +got):\n%s\n%s", diff, text)
		}
	}
}

// randomService is a Service of any kind that an API server accepts, with one port or several.
func randomService(r *rand.Rand, name string, i int) *corev1.Service {
	flip := func() bool { return r.IntN(2) == 0 }
	s := service(named("default", name))
	s.Spec.Ports = nil
	for p := range 1 + r.IntN(2) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", p), Protocol: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}[r.IntN(3)], Port: int32(80 + p)})
	}
	v4, v6 := fmt.Sprintf("10.96.0.%d", i+1), fmt.Sprintf("fd00:96::%d", i+1)
	switch ips := [][]string{{v4}, {v6}, {v4, v6}, {v6, v4}}[r.IntN(4)]; {
	default:
		withIPs(ips...)(s)
	}
	s.Spec.Type = []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer}[r.IntN(3)]
	external := s.Spec.Type != corev1.ServiceTypeClusterIP
	if s.Spec.Type == corev1.ServiceTypeNodePort || external && flip() {
		for p := range s.Spec.Ports {
			s.Spec.Ports[p].NodePort = int32(30000 + 10*i + p)
		}
	}
	if flip() {
		s.Spec.ExternalIPs, external = []string{"192.0.2.9", "192.0.2.1", "2001:db8::1"}[:1+r.IntN(3)], true
	}
	if flip() {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if external && flip() {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		if flip() {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}, {IP: "203.0.113.2", IPMode: new(corev1.LoadBalancerIPModeProxy)}, {IP: "2001:db8::2"}, {Hostname: "lb"}}
		}
		if flip() {
			s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "2001:db8:1::/48"}[:1+r.IntN(2)]
		}
		if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && flip() {
			s.Spec.HealthCheckNodePort = int32(31000 + i)
		}
	}
	if flip() {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		if flip() {
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(1 + r.IntN(100)))}}
		}
	}
	if decide := []string{"", "queue", "kernel", "queue/7"}[r.IntN(4)]; decide != "" {
		set(&s.Annotations, AnnotationDecide, decide)
	}
	if algorithm := []string{"", "random", "maglev(251)", "lc"}[r.IntN(4)]; algorithm != "" {
		set(&s.Annotations, AnnotationBalance, algorithm)
	}
	return s
}

// TestObjectsOfRandomTables: whatever a table has, its objects make it again.
func TestObjectsOfRandomTables(t *testing.T) {
	hinted, remote, unexplained := 0, 0, 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := new(kube.Objects)
		var at location
		for i := range 1 + r.IntN(3) {
			name := fmt.Sprintf("s%d", i)
			svc := randomService(r, name, i)
			o.Services = append(o.Services, svc)
			for _, p := range svc.Spec.Ports {
				c := randomCluster(r)
				at = c.at
				var of [2]*discoveryv1.EndpointSlice
				for k, kind := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
					s := slice(fmt.Sprintf("%s-%s-%d", name, p.Name, k), kind, int32(8080+r.IntN(2)))
					s.Namespace, s.Labels = "default", map[string]string{discoveryv1.LabelServiceName: name}
					s.Ports[0].Name, s.Ports[0].Protocol = new(p.Name), new(p.Protocol)
					if r.IntN(4) == 0 {
						set(&s.Annotations, AnnotationWeight, strconv.Itoa(r.IntN(4)))
					}
					of[k] = s
				}
				for n, e := range c.raw {
					if r.IntN(4) != 0 {
						e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("pod-%d", n)}
					}
					k := 0
					if strings.Contains(e.Addresses[0], ":") {
						k = 1
					}
					of[k].Endpoints = append(of[k].Endpoints, e)
				}
				o.EndpointSlices = append(o.EndpointSlices, of[:]...)
			}
		}
		config := NodeConfig{Name: at.node, Zone: at.zone, IPs: addrs("172.20.0.2", "fd00:172::2"), Balance: []string{"", "rr"}[r.IntN(2)]}
		table, _ := Table(o, config)
		if at.node == "" {
			config.Zone = "" // which only a Node object can carry
			table, _ = Table(o, config)
		}
		sameAgain(t, table, config)
		for _, s := range table.Services() {
			ready := false
			for _, e := range s.Endpoints {
				switch why := e.Exclusions[decision.Cluster]; {
				case why == decision.OtherZone || why == decision.OtherNode:
					hinted++
				case why == decision.Unused && e.Exclusions[decision.Local] == decision.NotLocal:
					remote++
				}
				ready = ready || e.Ready
			}
			if s.HasEndpoints && !ready && !s.UsesCluster() {
				unexplained++
			}
		}
	}
	if hinted < 50 || remote < 100 || unexplained < 10 {
		t.Errorf("only %d endpoints excluded by hints, %d by policy Local alone, and %d service ports with endpoints that terminate elsewhere", hinted, remote, unexplained)
	}
}

// TestObjectsOfClusters: the objects of real clusters' tables.
func TestObjectsOfClusters(t *testing.T) {
	for _, cluster := range []string{"kubeadm-1.22-flannel-node1", "kind-1.29-worker1-after"} {
		o, err := manifest.Load([]string{filepath.Join("testdata", cluster+".yaml")})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "kind-worker"} {
			config := NodeConfig{Name: name}
			table, _ := Table(&o.Objects, config)
			if len(table.Services()) == 0 {
				t.Fatal("no services")
			}
			sameAgain(t, table, config)
		}
	}
}

// TestObjectsOfNode: the Node has the name, the zone and the addresses by which the node is what it was.
func TestObjectsOfNode(t *testing.T) {
	n := decision.Node{Name: "node-a", Zone: "a", IPs: addrs("172.20.0.2"), Addresses: addrs("10.244.1.1", "172.20.0.2", "fe80::1", "fd00::1")}
	o := Objects(decision.NewTable(7, time.Time{}, n, nil))
	table, _ := Table(o, NodeConfig{Name: "node-a"})
	want := n
	want.Addresses = addrs("10.244.1.1", "172.20.0.2") // no IPv6 node
	if got := table.Node(); got.Name != n.Name || got.Zone != n.Zone || fmt.Sprint(got.IPs) != fmt.Sprint(n.IPs) || fmt.Sprint(got.Addresses) != fmt.Sprint(want.Addresses) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if o := Objects(decision.NewTable(7, time.Time{}, decision.Node{}, nil)); len(o.Nodes) != 0 {
		t.Errorf("a node without a name: %+v", o.Nodes)
	}
}
