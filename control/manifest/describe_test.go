package manifest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// describedService prints a Service and the endpoints of its ports as kubectl describe does.
func describedService(s *corev1.Service, endpoints [][]string) string {
	var b strings.Builder
	line := func(name, value string) {
		if value == "" {
			value = "<none>"
		}
		fmt.Fprintf(&b, "%-26s%s\n", name+":", value)
	}
	pairs := func(of map[string]string, between string) []string {
		var texts []string
		for key, value := range of {
			texts = append(texts, key+between+value)
		}
		slices.Sort(texts)
		return texts
	}
	below := "\n" + strings.Repeat(" ", 26)
	line("Name", s.Name)
	line("Namespace", s.Namespace)
	line("Labels", strings.Join(pairs(s.Labels, "="), below))
	line("Annotations", strings.Join(pairs(s.Annotations, ": "), below))
	line("Selector", strings.Join(pairs(s.Spec.Selector, "="), ","))
	line("Type", string(s.Spec.Type))
	line("IP Family Policy", string(*s.Spec.IPFamilyPolicy))
	line("IP Families", string(s.Spec.IPFamilies[0]))
	line("IP", s.Spec.ClusterIP)
	line("IPs", strings.Join(s.Spec.ClusterIPs, ","))
	if len(s.Spec.ExternalIPs) > 0 {
		line("External IPs", strings.Join(s.Spec.ExternalIPs, ","))
	}
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		line("LoadBalancer Ingress", s.Status.LoadBalancer.Ingress[0].IP+" ("+string(*s.Status.LoadBalancer.Ingress[0].IPMode)+")")
	}
	for i, p := range s.Spec.Ports {
		name := p.Name
		if name == "" {
			name = "<unset>"
		}
		line("Port", fmt.Sprintf("%s  %d/%s", name, p.Port, p.Protocol))
		line("TargetPort", fmt.Sprintf("%s/%s", p.TargetPort.String(), p.Protocol))
		if p.NodePort != 0 {
			line("NodePort", fmt.Sprintf("%s  %d/%s", name, p.NodePort, p.Protocol))
		}
		line("Endpoints", strings.Join(endpoints[i], ","))
	}
	line("Session Affinity", string(s.Spec.SessionAffinity))
	if s.Spec.ExternalTrafficPolicy != "" {
		line("External Traffic Policy", string(s.Spec.ExternalTrafficPolicy))
	}
	line("Internal Traffic Policy", string(*s.Spec.InternalTrafficPolicy))
	if s.Spec.HealthCheckNodePort != 0 {
		line("HealthCheck NodePort", fmt.Sprint(s.Spec.HealthCheckNodePort))
	}
	if len(s.Spec.LoadBalancerSourceRanges) > 0 {
		line("LoadBalancer Source Ranges", strings.Join(s.Spec.LoadBalancerSourceRanges, ","))
	}
	line("Events", "")
	return b.String()
}

// drawnService is a Service, and endpoints of its ports.
func drawnService(r *rand.Rand, i int) (*corev1.Service, [][]string) {
	some := func() bool { return r.IntN(2) == 0 }
	ipv6 := some()
	at := func(v4, v6 string, n int) string {
		if ipv6 {
			return fmt.Sprintf("%s%x", v6, n+1)
		}
		return fmt.Sprintf("%s%d", v4, n+1)
	}
	family := corev1.IPv4Protocol
	if ipv6 {
		family = corev1.IPv6Protocol
	}
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i), Namespace: "shop", ResourceVersion: "0"}}
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: at("10.96.1.", "fd00:10:96::", i), IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
		IPFamilies: []corev1.IPFamily{family}, SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
		Selector: map[string]string{"app": "web", "tier": "front"},
	}
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	if some() {
		s.Labels = map[string]string{"app": "web", "example.com/part": "x"}
		s.Annotations = map[string]string{"example.com/note": "a:b c", "nfqproxy.io/balance": "maglev"}
	}
	if some() {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	open := some()
	if open {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyCluster
		if some() {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 32000
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: at("198.51.100.", "2001:db8::", i), IPMode: new(corev1.LoadBalancerIPModeVIP)}}
			if some() {
				s.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeProxy)
			}
			s.Spec.LoadBalancerSourceRanges = []string{map[bool]string{false: "192.0.2.0/24", true: "2001:db8:1::/48"}[ipv6]}
		}
	}
	if some() {
		s.Spec.ExternalIPs = []string{at("203.0.113.", "2001:db8:2::", i)}
		if !open {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}
	}
	var endpoints [][]string
	for j := range 1 + r.IntN(3) {
		p := corev1.ServicePort{Name: fmt.Sprintf("p%d", j), Port: int32(80 + j), Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(int32(8080 + j))}
		if some() {
			p.Protocol = corev1.ProtocolUDP
		}
		if some() {
			p.TargetPort = intstr.FromString("target")
		}
		if open {
			p.NodePort = int32(30000 + 10*i + j)
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
		var of []string
		for k := range r.IntN(4) {
			of = append(of, fmt.Sprintf("%s:%d", at("10.244.1.", "fd00:10:244::", 10*i+k), 8080+j))
		}
		endpoints = append(endpoints, of)
	}
	if len(s.Spec.Ports) == 1 && some() {
		s.Spec.Ports[0].Name = ""
	}
	return s, endpoints
}

// TestDescribed: what kubectl describe prints of Services is read as what they are.
func TestDescribed(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		var text strings.Builder
		var want []*corev1.Service
		endpoints := make(map[string][]string) // by Service and port
		text.WriteString("$ kubectl describe services\n")
		for i := range 1 + r.IntN(3) {
			s, of := drawnService(r, i)
			want = append(want, s)
			for j, p := range s.Spec.Ports {
				endpoints[s.Name+":"+p.Name] = of[j]
			}
			text.WriteString(describedService(s, of) + "\n\n")
		}
		o, err := loadBytes("described.txt", []byte(text.String()))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text.String())
		}
		if diff := cmp.Diff(want, o.Services); diff != "" {
			t.Fatalf("seed %d (-printed +read)\n%s\n%s", seed, diff, text.String())
		}
		read := make(map[string][]string)
		for _, slice := range o.EndpointSlices {
			for _, p := range slice.Ports {
				key := slice.Labels["kubernetes.io/service-name"] + ":" + *p.Name
				for _, e := range slice.Endpoints {
					read[key] = append(read[key], fmt.Sprintf("%s:%d", e.Addresses[0], *p.Port))
				}
			}
		}
		for key, of := range endpoints {
			if !slices.Equal(of, read[key]) {
				t.Fatalf("seed %d: endpoints of %s: %q, printed %q", seed, key, read[key], of)
			}
		}
	}
}

func TestDescribedRefuses(t *testing.T) {
	service := "Name:  web\nNamespace:  shop\nType:  ClusterIP\nIP:  10.96.1.2\nPort:  http  80/TCP\nTargetPort:  8080/TCP\nEndpoints:  10.244.1.2:8080\nSession Affinity:  None\n"
	if o, err := loadBytes("f.txt", []byte(service)); err != nil || len(o.Services) != 1 || len(o.EndpointSlices) != 1 {
		t.Fatal(err)
	}
	if o, err := loadBytes("f.txt", []byte(strings.Replace(service, "10.244.1.2:8080", "10.244.1.2:8080,10.244.1.3:8080 + 1 more...", 1))); err != nil || len(o.EndpointSlices) != 0 || !strings.Contains(o.Services[0].Annotations[NotShown], "is not all: give the output of kubectl get svc,endpointslices -o yaml") {
		t.Errorf("endpoints left out: %v, %+v", err, o)
	}
	endpoints := "Name:  web\nNamespace:  shop\nSubsets:\n  Addresses:  10.244.1.2\n  Ports:\n    http  8080  TCP\n"
	for _, tt := range []struct{ name, text, want string }{
		{"endpoints without ports", strings.Replace(service, "10.244.1.2:8080", "10.244.1.2", 1), `"10.244.1.2": want addresses with ports`},
		{"a port without protocol", strings.Replace(service, "80/TCP", "80", 1), "want a name and 80/TCP"},
		{"a Pod", "Name:  web-1\nNamespace:  shop\nPriority:  0\nNode:  a/192.0.2.1\n", "kubectl describe of another kind"},
		{"a table of all namespaces", "NAMESPACE  NAME  TYPE\nshop  web  ClusterIP\n", "is a table of kubectl get"},
		{"a subset without addresses", strings.Replace(endpoints, "  Addresses:  10.244.1.2\n", "", 1), "want Addresses"},
		{"a subset's port without protocol", strings.Replace(endpoints, "8080  TCP", "8080", 1), "want a name, a number and a protocol"},
		{"a subset's port without number", strings.Replace(endpoints, "8080  TCP", "http  TCP", 1), "want a number"},
	} {
		if _, err := loadBytes("f.txt", []byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestMixed: objects in YAML or JSON, and tables of kubectl above or below them.
func TestMixed(t *testing.T) {
	const yaml = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  namespace: shop\nspec:\n  clusterIP: 10.96.7.7\n  ports:\n  - name: http\n    port: 80\n"
	const json = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}, "spec": {"clusterIP": "10.96.7.7", "ports": [{"name": "http", "port": 80}]}}` + "\n"
	const node = "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n"
	const endpoints, pods = "NAME  ENDPOINTS  AGE\nweb  10.244.1.5:8080  5d\n", "NAME  READY  STATUS  RESTARTS  AGE  IP\nweb-1  1/1  Running  0  5d  10.244.1.5\n"
	const get = "$ kubectl get svc web -n shop -o yaml\n"
	for _, text := range []string{
		yaml + "\n" + endpoints, yaml + "---\n" + endpoints, endpoints + "\n" + yaml, yaml + endpoints, get + yaml + "$ kubectl get ep -n shop\n" + endpoints,
		"$ kubectl get ep -n shop\n" + endpoints + get + yaml, "> " + strings.ReplaceAll(get+yaml+"\n"+endpoints, "\n", "\n> "),
		"Hi,\n```yaml\n" + yaml + "```\nand the endpoints of it:\n```\n$ kubectl get ep -n shop\n" + endpoints + "```\nthanks\n",
		json + endpoints, endpoints + get + json, json + "\n" + pods + "\nNAME  ADDRESSTYPE  PORTS  ENDPOINTS  AGE\nweb-x7  IPv4  8080  10.244.1.5  5d\n",
		yaml + "\n" + endpoints + get + node, strings.ReplaceAll(yaml+"\n"+endpoints, "\n", "\r\n"),
		"Name:  web\nNamespace:  shop\nLabels:  <none>\nSubsets:\n  Addresses:  10.244.1.5\n  NotReadyAddresses:  <none>\n  Ports:\n    http  8080  TCP\n\n" + get + yaml,
	} {
		o, err := loadBytes("f.txt", []byte(text))
		if err != nil || len(o.Services) != 1 || len(o.EndpointSlices) != 1 {
			t.Errorf("%q: %v, %+v", text, err, o)
			continue
		}
		if s := o.EndpointSlices[0]; s.Namespace != "shop" || s.Endpoints[0].Addresses[0] != "10.244.1.5" || *s.Ports[0].Name != "http" || *s.Ports[0].Port != 8080 {
			t.Errorf("%q: %+v", text, s)
		}
	}
	if o, err := loadBytes("f.txt", []byte(yaml+"\nNAME  ENDPOINTS  AGE\nweb  <none>  5d\n")); err != nil || len(o.EndpointSlices) != 1 || len(o.EndpointSlices[0].Endpoints) != 0 {
		t.Errorf("without endpoints: %v", err)
	}
	two := strings.Replace(yaml, "    port: 80\n", "    port: 80\n  - name: b\n    port: 81\n", 1)
	if o, err := loadBytes("f.txt", []byte(two+endpoints)); err != nil || !strings.Contains(o.Services[0].Annotations[NotShown], "2 ports") {
		t.Errorf("two ports: %v", err)
	}
	if _, err := loadBytes("f.txt", []byte("Name:  c\nLabels:  <none>\nData\n====\nx:\n----\n"+node)); err == nil {
		t.Error("YAML in a ConfigMap is read")
	}
}
