package labfile

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

const small = `# a comment

---
apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: small}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
nodes:
- {name: node-a, addresses: [192.0.2.2], podCIDRs: [10.244.0.0/24], ports: [{port: 6443}]}
- {name: node-b, addresses: [192.0.2.3], podCIDRs: [10.244.1.0/24]}
pods:
- {name: web, namespace: shop, node: node-a, addresses: [10.244.0.2], ports: [{port: 80, server: answer}, {port: 53, protocol: UDP, server: dns}]}
- {name: shell, node: node-b, addresses: [10.244.1.2]}
clients:
- {name: outside, addresses: [192.0.2.10], ports: [{port: 443}], routesToPods: true}
proxy: {seed: 7, queues: 2, masqueradeAll: true, masqueradeHairpin: false, nodePortAddresses: [192.0.2.0/24]}
objects: [more]
---
this: is not read here
`

func TestParse(t *testing.T) {
	seed := uint64(7)
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	want := &Lab{
		Metadata:     Metadata{Name: "small"},
		ClusterCIDRs: []netip.Prefix{prefix("10.244.0.0/16")},
		Networks:     []Network{{CIDR: prefix("192.0.2.0/24"), Gateway: addr("192.0.2.1")}},
		Nodes: []Node{
			{Name: "node-a", Addresses: []netip.Addr{addr("192.0.2.2")}, PodCIDRs: []netip.Prefix{prefix("10.244.0.0/24")}, Ports: []labapi.Port{{Port: 6443, Protocol: decision.TCP}}},
			{Name: "node-b", Addresses: []netip.Addr{addr("192.0.2.3")}, PodCIDRs: []netip.Prefix{prefix("10.244.1.0/24")}},
		},
		Pods: []labapi.Pod{
			{Name: "web", Namespace: "shop", Node: "node-a", Addresses: []netip.Addr{addr("10.244.0.2")}, Ports: []labapi.Port{{Port: 80, Protocol: decision.TCP}, {Port: 53, Protocol: decision.UDP, Server: labapi.DNSServer}}},
			{Name: "shell", Namespace: "default", Node: "node-b", Addresses: []netip.Addr{addr("10.244.1.2")}},
		},
		Clients: []labapi.Client{{Name: "outside", Addresses: []netip.Addr{addr("192.0.2.10")}, Ports: []labapi.Port{{Port: 443, Protocol: decision.TCP}}, RoutesToPods: true}},
		Proxy:   Proxy{Seed: &seed, Queues: 2, MasqueradeAll: true, NoHairpinMasquerade: true, NodePortAddresses: []netip.Prefix{prefix("192.0.2.0/24")}},
		Objects: []string{"more"},
	}
	got, err := Parse("small.yaml", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
		t.Error(d)
	}
}

// TestOldSpellings holds what kube-proxy reads for the same addresses.
func TestOldSpellings(t *testing.T) {
	want, err := Parse("lab.yaml", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	old := strings.NewReplacer("[192.0.2.2]", `["::ffff:192.0.2.2"]`, "[192.0.2.3]", "[192.000.002.003]", "[10.244.1.0/24]", "[10.244.001.000/024]").Replace(small)
	got, err := Parse("lab.yaml", []byte(old))
	if err != nil || old == small {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
		t.Error(d)
	}
}

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct {
		name     string
		old, new string // a replacement in the small lab
		want     []string
	}{
		{"unknown field", "podCIDRs: [10.244.1.0/24]", "podCIDR: 10.244.1.0/24", []string{
			"lab.yaml:11: nodes[1].podCIDR: unknown field, did you mean \"podCIDRs\"?"}},
		{"case of a field", "podCIDRs: [10.244.1.0/24]", "PodCIDRs: [10.244.1.0/24]", []string{`lab.yaml:11: nodes[1].PodCIDRs: unknown field, did you mean "podCIDRs"?`}},
		{"unknown top field", "objects:", "object:", []string{"lab.yaml:18: object: unknown field"}},
		{"not a lab", "kind: Lab", "kind: Service", []string{`lab.yaml: the first document must have`}},
		{"other version", "v1alpha1", "v2", []string{`lab.yaml:4: apiVersion: want nfqproxy.io/v1alpha1, have "nfqproxy.io/v2"`}},
		{"no YAML", "metadata: {name: small}", "metadata: {", []string{"lab.yaml:6: "}},
		{"duplicate key", "kind: Lab", "kind: Lab\nkind: Lab", []string{"lab.yaml:6: kind: given twice"}},
		{"no name", "{name: small}", "{}", []string{"metadata.name: missing"}},
		{"node's name", "name: node-b, a", "name: node..b, a", []string{`nodes[1].name: "node..b" is not a name: want at most 253 lower case letters, digits, hyphens and dots`}},
		{"client's name", "name: outside", "name: out.side", []string{`clients[0].name: "out.side" is not a name: want at most 63`}},
		{"bad name", "{name: small}", "{name: Small Lab}", []string{`metadata.name: "Small Lab" is not a name`}},
		{"name is a number", "{name: small}", "{name: 7}", []string{"metadata.name: want a string, have 7: quote it"}},
		{"bad address", "[192.0.2.2]", "[192.0.2.256]", []string{`nodes[0].addresses[0]: "192.0.2.256" is not an IP address`}},
		{"mapped host bits", "[10.244.1.0/24]", `["::ffff:10.244.1.7/120"]`, []string{"nodes[1].podCIDRs[0]: ::ffff:10.244.1.7/120 has host bits set: want 10.244.1.0/24"}},
		{"zone", "[192.0.2.2]", `["fe80::1%eth0"]`, []string{`nodes[0].addresses[0]: "fe80::1%eth0" is not an IP address`}},
		{"address no list", "addresses: [192.0.2.2]", "addresses: 192.0.2.2", []string{`nodes[0].addresses: want a list, have the string "192.0.2.2"`}},
		{"no address", "addresses: [192.0.2.2]", "addresses: []", []string{"nodes[0].addresses: missing"}},
		{"unusable address", "[192.0.2.10]", "[127.0.0.1]", []string{"clients[0].addresses[0]: 127.0.0.1 is in none of the networks"}},
		{"two of a family", "[192.0.2.10]", "[192.0.2.10, 192.0.2.11]", []string{"clients[0].addresses[1]: 192.0.2.11 is a second IPv4 address"}},
		{"used address", "[192.0.2.10]", "[192.0.2.2]", []string{"clients[0].addresses[0]: 192.0.2.2 is already used by nodes[0].addresses[0]"}},
		{"gateway's address", "[192.0.2.10]", "[192.0.2.1]", []string{"clients[0].addresses[0]: 192.0.2.1 is already used by networks[0].gateway"}},
		{"pods' gateway", "[10.244.1.2]", "[10.244.1.1]", []string{"pods[1].addresses[0]: 10.244.1.1 is already used by nodes[1].podCIDRs[0]"}},
		{"pod elsewhere", "[10.244.1.2]", "[10.244.0.3]", []string{"pods[1].addresses[0]: 10.244.0.3 is not in the podCIDRs of node node-b"}},
		{"network address", "[10.244.1.2]", "[10.244.1.0]", []string{"pods[1].addresses[0]: 10.244.1.0 is not in the podCIDRs of node node-b"}},
		{"no such node", "node: node-b", "node: node-c", []string{`pods[1].node: no node "node-c"`}},
		{"no node", "node: node-b, ", "", []string{"pods[1].node: missing"}},
		{"bad CIDR", "[10.244.1.0/24]", "[10.244.1.0]", []string{`nodes[1].podCIDRs[0]: "10.244.1.0" is not a CIDR`}},
		{"host bits", "[10.244.1.0/24]", "[10.244.1.7/24]", []string{"nodes[1].podCIDRs[0]: 10.244.1.7/24 has host bits set: want 10.244.1.0/24"}},
		{"overlapping pods", "[10.244.1.0/24]", "[10.244.0.0/17]", []string{"nodes[1].podCIDRs[0]: 10.244.0.0/17 overlaps with the pod CIDR 10.244.0.0/24"}},
		{"outside of the cluster", "[10.244.1.0/24]", "[10.245.1.0/24]", []string{"nodes[1].podCIDRs[0]: 10.245.1.0/24 is not within clusterCIDRs"}},
		{"too small", "[10.244.1.0/24]", "[10.244.1.0/31]", []string{"nodes[1].podCIDRs[0]: 10.244.1.0/31 is too small"}},
		{"no way", "[10.244.1.0/24]", `["fd00::/64"]`, []string{"nodes[1].podCIDRs[0]: fd00::/64: the node has no IPv6 address"}},
		{"second CIDR", "[10.244.1.0/24]", "[10.244.1.0/24, 10.244.2.0/24]", []string{"nodes[1].podCIDRs[1]: 10.244.2.0/24 is a second IPv4 CIDR"}},
		{"network overlaps pods", "cidr: 192.0.2.0/24", "cidr: 0.0.0.0/0", []string{"networks[0].cidr: 0.0.0.0/0 overlaps with clusterCIDRs[0] 10.244.0.0/16"}},
		{"gateway elsewhere", "gateway: 192.0.2.1}", "gateway: 192.0.3.1}", []string{"networks[0].gateway: 192.0.3.1 is not in 192.0.2.0/24"}},
		{"no gateway", ", gateway: 192.0.2.1}", "}", []string{"networks[0].gateway: missing"}},
		{"networks overlap", "gateway: 192.0.2.1}]", "gateway: 192.0.2.1}, {cidr: 192.0.2.128/25, gateway: 192.0.2.129}]", []string{"networks[1].cidr: 192.0.2.128/25 overlaps with network 192.0.2.0/24"}},
		{"cluster overlaps", "[10.244.0.0/16]", "[10.244.0.0/16, 10.244.0.0/17]", []string{"clusterCIDRs[1]: 10.244.0.0/17 overlaps with 10.244.0.0/16"}},
		{"same node twice", "name: node-b, a", "name: node-a, a", []string{`nodes[1].name: "node-a" is already the name of nodes[0].name`}},
		{"client named as node", "name: outside", "name: node-a", []string{`clients[0].name: "node-a" is already the name of nodes[0].name`}},
		{"router", "name: outside", "name: router", []string{`clients[0].name: "router" is already the name of the router`}},
		{"same pod twice", "name: shell", "name: web, namespace: shop", []string{`pods[1].name: "shop/web" is already the name of pods[0].name`}},
		{"port too large", "port: 6443", "port: 65536", []string{"nodes[0].ports[0].port: want a whole number from 1 to 65535, have 65536"}},
		{"port zero", "port: 6443", "port: 0", []string{"nodes[0].ports[0].port: want a whole number"}},
		{"port half", "port: 6443", "port: 0.5", []string{"nodes[0].ports[0].port: want a whole number"}},
		{"port missing", "{port: 6443}", "{protocol: TCP}", []string{"nodes[0].ports[0].port: missing"}},
		{"port twice", "{port: 6443}", "{port: 1}, {port: 1}", []string{"nodes[0].ports[1]: port 1/TCP is given twice"}},
		{"no such protocol", "protocol: UDP", "protocol: SCTP", []string{"pods[0].ports[1].protocol: SCTP: the built-in server supports TCP and UDP"}},
		{"no such proxy", "name: node-b, ", "name: node-b, proxy: ipvs, ", []string{`nodes[1].proxy: "ipvs": want one of nfqproxy, kube-proxy, kube-proxy-iptables, kube-proxy-nftables, none`}},
		{"no such mode", "name: node-b, ", "name: node-b, proxy: kube-proxy, kubeProxyMode: ipvs, ", []string{`nodes[1].kubeProxyMode: "ipvs": want iptables or nftables`}},
		{"a mode of another proxy", "name: node-b, ", "name: node-b, kubeProxyMode: nftables, ", []string{"nodes[1].kubeProxyMode: it requires proxy: kube-proxy"}},
		{"no such server", "server: dns", "server: bind", []string{`pods[0].ports[1].server: "bind": want answer or dns`}},
		{"a server of another type", "server: dns", "server: 53", []string{"pods[0].ports[1].server: want a kind of server"}},
		{"port twice with different servers", "{port: 80, server: answer}", "{port: 53, protocol: UDP}", []string{"pods[0].ports[1]: port 53/UDP is given twice"}},
		{"seed", "seed: 7", "seed: -7", []string{"proxy.seed: want a whole number"}},
		{"queues", "queues: 2", "queues: 0", []string{"proxy.queues: want a whole number"}},
		{"boolean", "masqueradeAll: true", "masqueradeAll: maybe", []string{`proxy.masqueradeAll: want true or false, have the string "maybe"`}},
		{"hairpin", "masqueradeHairpin: false", "masqueradeHairpin: 0", []string{"proxy.masqueradeHairpin: want true or false, have 0"}},
		{"empty object", "objects: [more]", `objects: [""]`, []string{"objects[0]: missing"}},
		{"several", "[192.0.2.2]", "[x]\n  x: 1", []string{"lab.yaml:10: "}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(small, tc.old) {
				t.Fatalf("the small lab has no %q", tc.old)
			}
			spec, err := Parse("lab.yaml", []byte(strings.Replace(small, tc.old, tc.new, 1)))
			var want manifest.Errors
			if !errors.As(err, &want) {
				t.Fatalf("got %v, %v; want Errors", spec, err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("got  %v\nwant %s", err, w)
				}
			}
		})
	}
}

// TestParseReportsAll: one reading reports everything that is wrong.
func TestParseReportsAll(t *testing.T) {
	text := strings.NewReplacer("[192.0.2.10]", "[x]", "port: 6443", "port: x", "seed: 7", "seed: x").Replace(small)
	_, err := Parse("lab.yaml", []byte(text))
	var errs manifest.Errors
	if !errors.As(err, &errs) || len(errs) != 3 {
		t.Errorf("got %v, want three errors", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range labs.Names() {
		data, err := labs.File(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(small))
	f.Add([]byte("apiVersion: nfqproxy.io/v1alpha1\nkind: Lab\nnodes: [{}, null, [], 7]\npods: [{addresses: [::]}]\nnetworks: [{}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := Parse("fuzz", data)
		var errs manifest.Errors
		if err != nil && (!errors.As(err, &errs) || len(errs) == 0 || spec != nil) {
			t.Errorf("%v, %v: want no spec and Errors", spec, err)
		}
	})
}
