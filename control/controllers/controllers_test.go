package controllers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var both = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}

func service(name string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func TestAllocate(t *testing.T) {
	web := service("web", nil)
	dual := service("dual", func(s *corev1.ServiceSpec) { s.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack) })
	six := service("six", func(s *corev1.ServiceSpec) { s.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} })
	headless := service("headless", func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = "None", []string{"None"} })
	own := service("own", func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = "10.96.0.10", []string{"10.96.0.10"} })
	named := service("named", func(s *corev1.ServiceSpec) { s.Ports[0].TargetPort = intstr.FromString("http") })
	node := service("node", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })
	local := service("local", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	})
	external := service("external", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeExternalName })
	all := []*corev1.Service{web, dual, six, headless, own, named, node, local, external}
	if err := Allocate(all, both); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, s := range all {
		for _, ip := range s.Spec.ClusterIPs {
			a, err := netip.ParseAddr(ip)
			if ip == "None" {
				continue
			}
			if err != nil || seen[ip] || !both[0].Contains(a) && !both[1].Contains(a) {
				t.Errorf("%s: ClusterIP %s", s.Name, ip)
			}
			seen[ip] = true
		}
	}
	for _, want := range []struct {
		s        *corev1.Service
		clusters int
		families string
	}{{web, 1, "[IPv4]"}, {dual, 2, "[IPv4 IPv6]"}, {six, 1, "[IPv6]"}, {headless, 1, "[IPv4]"}, {own, 1, "[IPv4]"}, {external, 0, "[]"}} {
		if len(want.s.Spec.ClusterIPs) != want.clusters || fmt.Sprint(want.s.Spec.IPFamilies) != want.families {
			t.Errorf("%s: ClusterIPs %v, families %v", want.s.Name, want.s.Spec.ClusterIPs, want.s.Spec.IPFamilies)
		}
	}
	if own.Spec.ClusterIP != "10.96.0.10" || headless.Spec.ClusterIP != "None" {
		t.Errorf("written ClusterIPs have changed: %s %s", own.Spec.ClusterIP, headless.Spec.ClusterIP)
	}
	if web.Spec.Ports[0].TargetPort.IntValue() != 80 || named.Spec.Ports[0].TargetPort.StrVal != "http" {
		t.Errorf("target ports %v %v", web.Spec.Ports[0].TargetPort, named.Spec.Ports[0].TargetPort)
	}
	ports := []int32{node.Spec.Ports[0].NodePort, local.Spec.Ports[0].NodePort, local.Spec.HealthCheckNodePort}
	for i, p := range ports {
		if p < 30000 || p > 32767 || slices.Contains(ports[:i], p) {
			t.Errorf("node ports %v", ports)
		}
	}
	if web.Spec.Ports[0].NodePort != 0 {
		t.Errorf("a ClusterIP Service has node port %d", web.Spec.Ports[0].NodePort)
	}

	// Others come and go: an address stays.
	again := service("web", nil)
	if err := Allocate([]*corev1.Service{service("another", nil), again}, both); err != nil || again.Spec.ClusterIP != web.Spec.ClusterIP {
		t.Errorf("%s becomes %s: %v", web.Spec.ClusterIP, again.Spec.ClusterIP, err)
	}
}

// TestUnique: no two Services have the same ClusterIP or node port; TCP and UDP may share a number.
func TestUnique(t *testing.T) {
	at := func(name, ip string, port int32, p corev1.Protocol) *corev1.Service {
		return service(name, func(s *corev1.ServiceSpec) {
			s.Type, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeNodePort, ip, []string{ip}
			s.Ports[0].NodePort, s.Ports[0].Protocol = port, p
		})
	}
	for _, test := range []struct {
		other *corev1.Service
		want  string
	}{
		{at("b", "10.96.0.9", 30080, corev1.ProtocolTCP), "two Services have the node port 30080/TCP, shop/a and shop/b"},
		{at("b", "10.96.0.8", 30081, corev1.ProtocolTCP), "two Services have the ClusterIP 10.96.0.8, shop/a and shop/b"},
		{at("b", "10.96.0.9", 30080, corev1.ProtocolUDP), ""},
		{service("b", func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = "None", []string{"None"} }), ""},
	} {
		err := Unique([]*corev1.Service{at("a", "10.96.0.8", 30080, corev1.ProtocolTCP), test.other})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

func TestAllocateExhausted(t *testing.T) {
	small := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/29")} // from .2 to .6
	var all []*corev1.Service
	for i := range 5 {
		all = append(all, service(fmt.Sprint("s", i), nil))
	}
	if err := Allocate(all, small); err != nil {
		t.Fatal(err)
	}
	err := Allocate(append(all, service("last", nil)), small)
	if err == nil || !strings.Contains(err.Error(), "Service shop/last: spec.clusterIP: missing, and the service CIDRs have no free IPv4 address") {
		t.Error(err)
	}
	err = Allocate([]*corev1.Service{service("none", nil)}, nil)
	if err == nil || !strings.Contains(err.Error(), "there are no service CIDRs") {
		t.Error(err)
	}
}

func pod(name, address string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "node-a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

// text are slices with their endpoints.
func text(all []*discoveryv1.EndpointSlice) string {
	var b strings.Builder
	for _, s := range all {
		fmt.Fprintf(&b, "%s:", s.Labels[discoveryv1.LabelServiceName])
		var endpoints []string
		for _, e := range s.Endpoints {
			endpoints = append(endpoints, fmt.Sprintf(" %s %t/%t/%t", e.Addresses[0], *e.Conditions.Ready, *e.Conditions.Serving, *e.Conditions.Terminating))
		}
		slices.Sort(endpoints)
		b.WriteString(strings.Join(endpoints, "") + "\n")
	}
	return b.String()
}

func TestEndpointSlices(t *testing.T) {
	selecting := func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "web"} }
	services := []*corev1.Service{service("byhand", selecting), service("none", nil), service("web", selecting)}
	if err := Allocate(services, both[:1]); err != nil {
		t.Fatal(err)
	}
	nodes := []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}}
	given := []*discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "x", Labels: map[string]string{discoveryv1.LabelServiceName: "byhand"}}}}
	c := NewEndpointSlices()
	now := time.Unix(1, 0)
	sync := func(want string, pods ...*corev1.Pod) []*discoveryv1.EndpointSlice {
		t.Helper()
		got, err := c.Sync(services, pods, nodes, given, now)
		if err != nil || text(got) != want {
			t.Errorf("%v\n%swant\n%s", err, text(got), want)
		}
		return got
	}
	one, two := pod("one", "10.0.0.1", nil), pod("two", "10.0.0.2", nil)
	other := pod("other", "10.0.0.9", func(p *corev1.Pod) { p.Labels = nil })
	elsewhere := pod("elsewhere", "10.0.0.8", func(p *corev1.Pod) { p.Namespace = "default" })
	first := sync("web: 10.0.0.1 true/true/false 10.0.0.2 true/true/false\n", one, two, other, elsewhere)
	before := text(first)

	unready := pod("two", "10.0.0.2", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
	sync("web: 10.0.0.1 true/true/false 10.0.0.2 false/false/false\n", one, unready)
	ending := pod("two", "10.0.0.2", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} })
	last := sync("web: 10.0.0.1 true/true/false 10.0.0.2 false/true/true\n", one, ending)
	if text(first) != before {
		t.Error("a later Sync has changed what an earlier one returned")
	}
	if first[0].Name != last[0].Name {
		t.Errorf("the slice's name changes from %s to %s", first[0].Name, last[0].Name)
	}
	sync("web:\n") // as in a cluster: a slice without endpoints

	var many []*corev1.Pod
	for i := range 150 {
		many = append(many, pod(fmt.Sprint("p", i), fmt.Sprint("10.0.1.", i), nil))
	}
	if got, err := c.Sync(services, many, nodes, given, now); err != nil || len(got) != 2 {
		t.Errorf("150 endpoints are in %d slices: %v", len(got), err)
	}
	services = services[:2]
	sync("", one)
	services[0].Spec.Type = corev1.ServiceTypeExternalName
	given = nil
	sync("", one)
}
