package manifest

import (
	"testing"
)

func sliceWith(fields string) string {
	return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-a}\n" + fields + "\n"
}

func TestEndpointSliceDefaults(t *testing.T) {
	s := mustLoad(t, "a.yaml", sliceWith("addressType: IPv4\nports: [{port: 80}, {name: dns, protocol: UDP}]\nendpoints: [{addresses: [10.0.0.1]}]")).EndpointSlices[0]
	if p := s.Ports[0]; *p.Name != "" || *p.Protocol != "TCP" || *p.Port != 80 {
		t.Errorf("first port: name %q, protocol %s, port %d", *p.Name, *p.Protocol, *p.Port)
	}
	if p := s.Ports[1]; *p.Name != "dns" || *p.Protocol != "UDP" || p.Port != nil {
		t.Errorf("second port: name %q, protocol %s, port %v", *p.Name, *p.Protocol, p.Port)
	}
	if c := s.Endpoints[0].Conditions; c.Ready != nil || c.Serving != nil || c.Terminating != nil {
		t.Errorf("unset conditions became %+v", c)
	}
}

func TestValidEndpointSlices(t *testing.T) {
	for name, fields := range map[string]string{
		"no endpoints":               "addressType: IPv6",
		"host names":                 "addressType: FQDN\nendpoints: [{addresses: [www.example.org]}]",
		"IPv6 in any form":           "addressType: IPv6\nendpoints: [{addresses: ['FD00:0:0::1']}]",
		"null lists, as kubectl has": "addressType: IPv4\nendpoints: null\nports: null",
		"every field of an endpoint": "addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], conditions: {ready: true, serving: true, terminating: false}, hostname: a, nodeName: worker, zone: z, hints: {forZones: [{name: z}]}, targetRef: {kind: Pod, name: p, namespace: default, uid: u}}]",
	} {
		t.Run(name, func(t *testing.T) { mustLoad(t, "a.yaml", sliceWith(fields)) })
	}
}

func TestInvalidEndpointSlices(t *testing.T) {
	const special = " cannot be an endpoint: unspecified, loopback, link-local and multicast addresses cannot"
	tests := []struct {
		name, fields string
		want         []string
	}{
		{"no address type", "ports: [{port: 80}]", []string{"addressType: missing"}},
		{"no address", "addressType: IPv4\nendpoints: [{addresses: []}, {}]",
			[]string{"endpoints[0].addresses: missing", "endpoints[1].addresses: missing"}},
		{"IPv6 address in an IPv4 slice", "addressType: IPv4\nendpoints: [{addresses: [10.0.0.1, 'fd00::1']}]",
			[]string{`endpoints[0].addresses[1]: "fd00::1" is not an IPv4 address`}},
		{"IPv4 address in an IPv6 slice", "addressType: IPv6\nendpoints: [{addresses: [10.0.0.1]}]",
			[]string{`endpoints[0].addresses[0]: "10.0.0.1" is not an IPv6 address`}},
		{"IPv4 address dressed as IPv6", "addressType: IPv6\nendpoints: [{addresses: ['::ffff:10.0.0.1']}]",
			[]string{`endpoints[0].addresses[0]: "::ffff:10.0.0.1" is not an IPv6 address`}},
		{"null", "addressType: IPv4\nendpoints: [{addresses: [null]}]", []string{`endpoints[0].addresses[0]: "" is not an IPv4 address`}},
		{"addresses no flow can be sent to", "addressType: IPv4\nendpoints: [{addresses: [127.0.0.1]}, {addresses: [0.0.0.0]}, {addresses: [169.254.1.1]}, {addresses: [224.0.0.1]}]",
			[]string{
				`endpoints[0].addresses[0]: "127.0.0.1"` + special, `endpoints[1].addresses[0]: "0.0.0.0"` + special,
				`endpoints[2].addresses[0]: "169.254.1.1"` + special, `endpoints[3].addresses[0]: "224.0.0.1"` + special,
			}},
		{"port 0", "addressType: IPv4\nports: [{port: 0}]", []string{"ports[0].port: 0 is not a port number (1 to 65535)"}},
		{"port 65536", "addressType: IPv4\nports: [{port: 65536}]", []string{"ports[0].port: 65536 is not a port number (1 to 65535)"}},
		{"unknown protocol", "addressType: IPv4\nports: [{port: 80, protocol: udp}]", []string{`ports[0].protocol: "udp" is none of TCP, UDP, SCTP`}},
		{"port name twice", "addressType: IPv4\nports: [{port: 80}, {name: a, port: 81}, {port: 82}]", []string{`ports[2].name: "" is the name of ports[0] already`}},
		{"the old topology field", "addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], topology: {}}]", []string{"endpoints[0].topology: unknown field"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var want []string
			for _, w := range tt.want {
				want = append(want, "a.yaml: document 1: EndpointSlice default/web-a: "+w)
			}
			wantErrors(t, "a.yaml", sliceWith(tt.fields), want...)
		})
	}
}
