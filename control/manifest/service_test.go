package manifest

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func serviceWith(spec string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: " + spec + "\n"
}

func TestServiceDefaults(t *testing.T) {
	cluster, local := new(corev1.ServiceInternalTrafficPolicyCluster), new(corev1.ServiceInternalTrafficPolicyLocal)
	tests := []struct {
		name, spec string
		want       corev1.ServiceSpec
	}{
		{"everything unset", "{ports: [{port: 80}]}",
			corev1.ServiceSpec{Type: "ClusterIP", SessionAffinity: "None", InternalTrafficPolicy: cluster,
				Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}}},
		{"everything set", "{type: NodePort, sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}, internalTrafficPolicy: Local, externalTrafficPolicy: Local, ports: [{port: 53, protocol: UDP}], clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1]}",
			corev1.ServiceSpec{Type: "NodePort", SessionAffinity: "ClientIP",
				SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(5))}},
				InternalTrafficPolicy: local, ExternalTrafficPolicy: "Local",
				ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"},
				Ports: []corev1.ServicePort{{Port: 53, Protocol: "UDP"}}}},
		{"affinity lasts three hours", "{sessionAffinity: ClientIP, ports: [{port: 80}]}",
			corev1.ServiceSpec{Type: "ClusterIP", SessionAffinity: "ClientIP", InternalTrafficPolicy: cluster,
				SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10800))}},
				Ports:                 []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}}},
		{"an external policy for what is reached from outside", "{type: LoadBalancer, ports: [{port: 80}]}",
			corev1.ServiceSpec{Type: "LoadBalancer", SessionAffinity: "None", InternalTrafficPolicy: cluster, ExternalTrafficPolicy: "Cluster",
				Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}}},
		{"external IPs are reached from outside", "{externalIPs: [192.0.2.1], ports: [{port: 80}]}",
			corev1.ServiceSpec{Type: "ClusterIP", SessionAffinity: "None", InternalTrafficPolicy: cluster, ExternalTrafficPolicy: "Cluster",
				ExternalIPs: []string{"192.0.2.1"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}}},
		{"clusterIPs from clusterIP", "{clusterIP: 10.0.0.1, ports: [{port: 80}]}",
			corev1.ServiceSpec{Type: "ClusterIP", SessionAffinity: "None", InternalTrafficPolicy: cluster,
				ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}}},
		{"clusterIP from clusterIPs", "{clusterIPs: ['fd00::1', 10.0.0.1], ports: [{port: 80}]}",
			corev1.ServiceSpec{Type: "ClusterIP", SessionAffinity: "None", InternalTrafficPolicy: cluster,
				ClusterIP: "fd00::1", ClusterIPs: []string{"fd00::1", "10.0.0.1"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP"}}}},
		{"headless, without ports", "{clusterIP: None}",
			corev1.ServiceSpec{Type: "ClusterIP", SessionAffinity: "None", InternalTrafficPolicy: cluster, ClusterIP: "None", ClusterIPs: []string{"None"}}},
		{"an ExternalName has no policy", "{type: ExternalName, externalName: example.org}",
			corev1.ServiceSpec{Type: "ExternalName", ExternalName: "example.org", SessionAffinity: "None"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := mustLoad(t, "a.yaml", serviceWith(tt.spec)).Services[0].Spec
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestValidServices(t *testing.T) {
	for name, spec := range map[string]string{
		"dual-stack":                         "{clusterIPs: [10.0.0.1, 'fd00::1'], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: RequireDualStack, ports: [{port: 80}]}",
		"the same IPv6 address in two forms": "{clusterIP: 'fd00::1', clusterIPs: ['FD00:0::1'], ports: [{port: 80}]}",
		"named and numbered target ports":    "{ports: [{name: a, port: 80, targetPort: http}, {name: b, port: 81, targetPort: 8081}]}",
		"one port number, two protocols":     "{ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]}",
		"one node port, two protocols":       "{type: NodePort, ports: [{name: a, port: 53, protocol: UDP, nodePort: 30053}, {name: b, port: 53, nodePort: 30053}]}",
		"SCTP":                               "{ports: [{port: 132, protocol: SCTP}]}",
		"the last port":                      "{type: NodePort, ports: [{port: 65535, nodePort: 65535}]}",
		"source ranges with white space":     "{type: LoadBalancer, loadBalancerSourceRanges: [' 10.0.0.0/8 '], ports: [{port: 80}]}",
	} {
		t.Run(name, func(t *testing.T) { mustLoad(t, "a.yaml", serviceWith(spec)) })
	}
}

func TestInvalidServices(t *testing.T) {
	tests := []struct {
		name, spec string
		want       []string
	}{
		{"no ports", "{clusterIP: 10.0.0.1}", []string{"spec.ports: missing"}},
		{"port 0", "{ports: [{port: 0}]}", []string{"spec.ports[0].port: 0 is not a port number (1 to 65535)"}},
		{"port 65536", "{ports: [{port: 65536}]}", []string{"spec.ports[0].port: 65536 is not a port number (1 to 65535)"}},
		{"negative node port", "{type: NodePort, ports: [{port: 80, nodePort: -1}]}",
			[]string{"spec.ports[0].nodePort: -1 is not a port number (1 to 65535)"}},
		{"node port of a ClusterIP service", "{ports: [{port: 80, nodePort: 30080}]}",
			[]string{"spec.ports[0].nodePort: a Service of type ClusterIP has no node ports"}},
		{"node port twice", "{type: NodePort, ports: [{name: a, port: 80, nodePort: 30080}, {name: b, port: 81, nodePort: 30080}]}",
			[]string{"spec.ports[1].nodePort: 30080/TCP is the node port of spec.ports[0] already"}},
		{"unknown protocol", "{ports: [{port: 80, protocol: ICMP}]}", []string{`spec.ports[0].protocol: "ICMP" is none of TCP, UDP, SCTP`}},
		{"port name twice", "{ports: [{name: a, port: 80}, {name: a, port: 81}]}",
			[]string{`spec.ports[1].name: "a" is the name of spec.ports[0] already`}},
		{"port twice", "{ports: [{name: a, port: 80}, {name: b, port: 80}]}",
			[]string{"spec.ports[1].port: 80/TCP is spec.ports[0] already"}},
		{"two ports, one without a name", "{ports: [{name: a, port: 80}, {port: 81}]}",
			[]string{"spec.ports[1].name: missing: each of several ports needs a name"}},
		{"colon in a port name", "{ports: [{name: 'a:b', port: 80}]}",
			[]string{`spec.ports[0].name: "a:b": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name', or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`}},
		{"zone", "{clusterIP: 'fe80::1%eth0', ports: [{port: 80}]}", []string{`spec.clusterIP: "fe80::1%eth0" is not an IP address`}},
		{"clusterIP and clusterIPs contradict", "{clusterIP: 10.0.0.1, clusterIPs: [10.0.0.2], ports: [{port: 80}]}",
			[]string{`spec.clusterIPs[0]: "10.0.0.2" contradicts spec.clusterIP "10.0.0.1"`}},
		{"headless and not", "{clusterIP: None, clusterIPs: [10.0.0.2], ports: [{port: 80}]}",
			[]string{`spec.clusterIPs[0]: "10.0.0.2" contradicts spec.clusterIP "None"`}},
		{"None and an address", "{clusterIPs: [10.0.0.1, None], ports: [{port: 80}]}", []string{`spec.clusterIPs[1]: "None" is not an IP address`}},
		{"two addresses of a family", "{clusterIPs: [10.0.0.1, 10.0.0.2], ports: [{port: 80}]}",
			[]string{`spec.clusterIPs[1]: "10.0.0.2" is a second IPv4 address`}},
		{"address of another family than declared", "{clusterIP: 10.0.0.1, ipFamilies: [IPv6], ports: [{port: 80}]}",
			[]string{`spec.clusterIP: "10.0.0.1" is an IPv4 address, but spec.ipFamilies[0] is IPv6`}},
		{"unknown family", "{ipFamilies: [ipv4], ports: [{port: 80}]}", []string{`spec.ipFamilies[0]: "ipv4" is none of IPv4, IPv6`}},
		{"unknown policies", "{type: NodePort, internalTrafficPolicy: local, externalTrafficPolicy: Near, sessionAffinity: Cookie, ports: [{port: 80}]}",
			[]string{
				`spec.sessionAffinity: "Cookie" is none of None, ClientIP`,
				`spec.internalTrafficPolicy: "local" is none of Cluster, Local`,
				`spec.externalTrafficPolicy: "Near" is none of Cluster, Local`,
			}},
		{"affinity of no time", "{sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}, ports: [{port: 80}]}",
			[]string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0 is not within 1 to 86400"}},
		{"bad outer addresses", "{externalIPs: [host], loadBalancerSourceRanges: [10.0.0.0], healthCheckNodePort: 70000, ports: [{port: 80}]}",
			[]string{
				"spec.healthCheckNodePort: 70000 is not a port number (1 to 65535)",
				`spec.externalIPs[0]: "host" is not an IP address`,
				`spec.loadBalancerSourceRanges[0]: "10.0.0.0" is not a CIDR`,
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var want []string
			for _, w := range tt.want {
				want = append(want, "a.yaml: document 1: Service default/web: "+w)
			}
			wantErrors(t, "a.yaml", serviceWith(tt.spec), want...)
		})
	}
}

func TestLoadBalancerAddresses(t *testing.T) {
	status := "status: {loadBalancer: {ingress: [{hostname: lb.example.org}, {ip: %s}]}}\n"
	mustLoad(t, "a.yaml", webService+strings.ReplaceAll(status, "%s", "192.0.2.1"))
	wantErrors(t, "a.yaml", webService+strings.ReplaceAll(status, "%s", "lb"),
		`a.yaml: document 1: Service default/web: status.loadBalancer.ingress[1].ip: "lb" is not an IP address`)
}

func TestServiceNamesHaveNoDots(t *testing.T) {
	wantErrors(t, "a.yaml", strings.Replace(webService, "name: web", "name: web.shop", 1),
		`a.yaml: document 1: Service default/web.shop: metadata.name: "web.shop": must not contain dots`)
}
