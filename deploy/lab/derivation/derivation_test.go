package derivation

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

func TestDerive(t *testing.T) {
	for _, tc := range []struct {
		name    string
		objects string
		options Options
		want    labfile.Lab
		guesses []string // parts, each of one guess; all there are
	}{
		{
			name: "a whole cluster",
			objects: nodeObject("node-b", "172.20.0.3", "10.244.1.0/24") + nodeObject("ip-172-20-0-2.example", "172.20.0.2", "10.244.0.0/24") +
				podObject("shop", "web-1", "node-b", "10.244.1.2", "") + podObject("kube-system", "proxy", "node-b", "172.20.0.3", ", hostNetwork: true") +
				strings.Replace(podObject("shop", "done", "node-b", "10.244.1.2", ""), "Running", "Succeeded", 1) +
				web + sliceObject("shop", "web", 8080, "10.244.1.2 node-b web-1") +
				serviceObject("default", "kubernetes", "10.96.0.1", 443) + sliceObject("default", "kubernetes", 6443, "172.20.0.2") +
				serviceObject("shop", "database", "10.96.0.30", 5432) + sliceObject("shop", "database", 5432, "203.0.113.7"),
			want: labfile.Lab{
				ClusterCIDRs: prefixes("10.244.0.0/23"),
				Networks:     networks("172.20.0.0/24 172.20.0.1", "203.0.113.0/24 203.0.113.1", "192.0.2.0/24 192.0.2.1"),
				Nodes: []labfile.Node{
					{Name: "ip-172-20-0-2.example", Addresses: addrs("172.20.0.2"), PodCIDRs: prefixes("10.244.0.0/24"), Ports: tcp(6443)},
					{Name: "node-b", Addresses: addrs("172.20.0.3"), PodCIDRs: prefixes("10.244.1.0/24"), Ports: []labapi.Port{{Port: 80, Protocol: decision.TCP}, {Port: 90, Protocol: decision.UDP}}},
				},
				Pods: []labapi.Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.1.2"), Ports: []labapi.Port{{Port: 80, Protocol: decision.TCP}, {Port: 90, Protocol: decision.UDP}}},
					{Name: "shell-1", Namespace: "default", Node: "ip-172-20-0-2.example", Addresses: addrs("10.244.0.2")},
					{Name: "shell-2", Namespace: "default", Node: "node-b", Addresses: addrs("10.244.1.3")},
				},
				Clients: []labapi.Client{
					{Name: "database-1", Addresses: addrs("203.0.113.7"), Ports: tcp(5432), RoutesToPods: true},
					{Name: "outside", Addresses: addrs("192.0.2.10")},
				},
			},
			guesses: []string{"Service shop/web: no container declares the port of these endpoints, so nothing listens there; check targetPort: 10.244.1.2:8080 of pod shop/web-1, which declares 80/TCP, 90/UDP",
				"cluster CIDR 10.244.0.0/23", "client database-1 is the endpoint 203.0.113.7 of Service shop/database", "client outside at 192.0.2.10", "shell-1, shell-2"},
		},
		{
			name:    "services alone, as rules show them",
			objects: web + sliceObject("shop", "web", 8080, "10.244.2.2", "10.244.1.2") + serviceObject("default", "kubernetes", "10.96.0.1", 443) + sliceObject("default", "kubernetes", 6443, "172.20.0.4"),
			options: Options{ClusterCIDRs: prefixes("10.244.0.0/16")},
			want: labfile.Lab{
				ClusterCIDRs: prefixes("10.244.0.0/16"),
				Networks:     networks("172.20.0.0/24 172.20.0.1", "192.0.2.0/24 192.0.2.1", "198.51.100.0/24 198.51.100.1"),
				Nodes: []labfile.Node{
					{Name: "node-1", Addresses: addrs("198.51.100.2"), PodCIDRs: prefixes("10.244.1.0/24")},
					{Name: "node-2", Addresses: addrs("198.51.100.3"), PodCIDRs: prefixes("10.244.2.0/24")},
				},
				Pods: []labapi.Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-1", Addresses: addrs("10.244.1.2"), Ports: tcp(8080)},
					{Name: "web-2", Namespace: "shop", Node: "node-2", Addresses: addrs("10.244.2.2"), Ports: tcp(8080)},
					{Name: "shell-1", Namespace: "default", Node: "node-1", Addresses: addrs("10.244.1.3")},
					{Name: "shell-2", Namespace: "default", Node: "node-2", Addresses: addrs("10.244.2.3")},
				},
				Clients: []labapi.Client{
					{Name: "kubernetes-1", Addresses: addrs("172.20.0.4"), Ports: tcp(6443), RoutesToPods: true},
					{Name: "outside", Addresses: addrs("192.0.2.10")},
				},
			},
			guesses: []string{
				"node node-1: made up, for the pods in 10.244.1.0/24", "node node-2: made up, for the pods in 10.244.2.0/24", "node node-1: its pods are in 10.244.1.0/24", "node node-2: its pods are in",
				"the objects do not name 2 of the pods", "client kubernetes-1 is the endpoint 172.20.0.4", "client outside",
				"node node-1: its IPv4 address 198.51.100.2 is made up", "node node-2: its IPv4 address 198.51.100.3 is made up", "shell-1, shell-2",
			},
		},
		{
			name: "a pod that declares no ports",
			objects: nodeObject("node-a", "172.20.0.2", "10.244.1.0/24") + strings.Replace(podObject("shop", "web-1", "node-a", "10.244.1.2", ""), ", ports: [{containerPort: 80}, {containerPort: 90, protocol: UDP}, {containerPort: 99, protocol: SCTP}]", "", 1) +
				web + sliceObject("shop", "web", 8080, "10.244.1.2 node-a web-1"),
			want: labfile.Lab{
				ClusterCIDRs: prefixes("10.244.1.0/24"),
				Networks:     networks("172.20.0.0/24 172.20.0.1", "192.0.2.0/24 192.0.2.1"),
				Nodes:        []labfile.Node{{Name: "node-a", Addresses: addrs("172.20.0.2"), PodCIDRs: prefixes("10.244.1.0/24")}},
				Pods: []labapi.Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-a", Addresses: addrs("10.244.1.2"), Ports: tcp(8080)},
					{Name: "shell", Namespace: "default", Node: "node-a", Addresses: addrs("10.244.1.3")},
				},
				Clients: []labapi.Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"these pods listen on the ports of their endpoints, because their containers declare none; a wrong targetPort is not noticed: shop/web-1", "cluster CIDR", "client outside", "shell"},
		},
		{
			name: "pods in the nodes' network",
			objects: nodeObject("node-a", "10.0.1.5", "") + nodeObject("node-b", "10.0.1.6", "") +
				web + sliceObject("shop", "web", 80, "10.0.1.1 node-a web-1", "10.0.1.2 node-b web-2", "10.0.1.7 node-a web-3"),
			want: labfile.Lab{
				Networks: networks("10.0.1.0/24 10.0.1.3", "192.0.2.0/24 192.0.2.1"),
				Nodes: []labfile.Node{
					{Name: "node-a", Addresses: addrs("10.0.1.5"), PodCIDRs: prefixes("10.0.1.1/32", "10.0.1.7/32", "10.0.1.4/32")},
					{Name: "node-b", Addresses: addrs("10.0.1.6"), PodCIDRs: prefixes("10.0.1.2/32", "10.0.1.8/32")},
				},
				Pods: []labapi.Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-a", Addresses: addrs("10.0.1.1"), Ports: tcp(80)},
					{Name: "web-2", Namespace: "shop", Node: "node-b", Addresses: addrs("10.0.1.2"), Ports: tcp(80)},
					{Name: "web-3", Namespace: "shop", Node: "node-a", Addresses: addrs("10.0.1.7"), Ports: tcp(80)},
					{Name: "shell-1", Namespace: "default", Node: "node-a", Addresses: addrs("10.0.1.4")},
					{Name: "shell-2", Namespace: "default", Node: "node-b", Addresses: addrs("10.0.1.8")},
				},
				Clients: []labapi.Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"no cluster CIDR for IPv4: the smallest prefix with all pods, 10.0.1.0/29, also contains the address 10.0.1.5 of node node-a", "client outside", "shell-1, shell-2"},
		},
		{
			name: "pods that do not keep to the nodes' pod CIDRs",
			objects: nodeObject("node-a", "172.20.0.2", "10.244.0.0/24") + nodeObject("node-b", "172.20.0.3", "10.244.1.0/24") +
				web + sliceObject("shop", "web", 80, "10.244.0.7 node-b web-1", "192.168.7.7 node-b web-2", "10.244.0.9 node-a web-3"),
			options: Options{Name: "calico"},
			want: labfile.Lab{
				Networks: networks("172.20.0.0/24 172.20.0.1", "192.0.2.0/24 192.0.2.1"),
				Nodes: []labfile.Node{
					{Name: "node-a", Addresses: addrs("172.20.0.2"), PodCIDRs: prefixes("10.244.0.9/32", "10.244.0.10/32")},
					{Name: "node-b", Addresses: addrs("172.20.0.3"), PodCIDRs: prefixes("10.244.1.0/24", "10.244.0.7/32", "192.168.7.7/32")},
				},
				Pods: []labapi.Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.0.7"), Ports: tcp(80)},
					{Name: "web-3", Namespace: "shop", Node: "node-a", Addresses: addrs("10.244.0.9"), Ports: tcp(80)},
					{Name: "web-2", Namespace: "shop", Node: "node-b", Addresses: addrs("192.168.7.7"), Ports: tcp(80)},
					{Name: "shell-1", Namespace: "default", Node: "node-a", Addresses: addrs("10.244.0.10")},
					{Name: "shell-2", Namespace: "default", Node: "node-b", Addresses: addrs("10.244.1.2")},
				},
				Clients: []labapi.Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"node node-a: its pod CIDR 10.244.0.0/24 has addresses of other hosts", "no cluster CIDR for IPv4", "client outside", "shell-1, shell-2"},
		},
		{
			name: "one namespace of several",
			objects: nodeObject("node-a", "172.20.0.2", "10.244.0.0/24") + nodeObject("node-b", "172.20.0.3", "10.244.1.0/24") +
				podObject("shop", "idle", "node-b", "10.244.1.7", "") + podObject("other", "gone", "node-a", "10.244.0.7", "") +
				web + sliceObject("shop", "web", 80, "10.244.1.2 node-b web-1") +
				serviceObject("default", "kubernetes", "10.96.0.1", 443) + sliceObject("default", "kubernetes", 6443, "192.168.100.1"),
			options: Options{Namespaces: []string{"shop"}, ClusterCIDRs: prefixes("10.244.0.0/16")},
			want: labfile.Lab{
				ClusterCIDRs: prefixes("10.244.0.0/16"),
				Networks:     networks("172.20.0.0/24 172.20.0.1", "192.0.2.0/24 192.0.2.1"),
				Nodes:        []labfile.Node{{Name: "node-b", Addresses: addrs("172.20.0.3"), PodCIDRs: prefixes("10.244.1.0/24")}},
				Pods: []labapi.Pod{
					{Name: "idle", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.1.7"), Ports: []labapi.Port{{Port: 80, Protocol: decision.TCP}, {Port: 90, Protocol: decision.UDP}}},
					{Name: "web-1", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.1.2"), Ports: tcp(80)},
					{Name: "shell", Namespace: "default", Node: "node-b", Addresses: addrs("10.244.1.3")},
				},
				Clients: []labapi.Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"3 nodes, pods and machines are omitted", "client outside", "one on each node: shell"},
		},
		{
			name: "one service of several",
			objects: podObject("shop", "idle", "node-b", "10.244.1.7", "") + web + sliceObject("shop", "web", 80, "10.244.1.2 node-b web-1", "10.244.2.2 node-c web-2") +
				serviceObject("shop", "other", "10.96.0.30", 80) + sliceObject("shop", "other", 80, "10.244.0.2 node-a other-1", "10.244.2.2 node-c web-2"),
			options: Options{Services: []decision.ServiceName{{Namespace: "shop", Name: "other"}}, ClusterCIDRs: prefixes("10.244.0.0/16")},
			want: labfile.Lab{
				ClusterCIDRs: prefixes("10.244.0.0/16"),
				Networks:     networks("192.0.2.0/24 192.0.2.1", "198.51.100.0/24 198.51.100.1"),
				Nodes: []labfile.Node{
					{Name: "node-a", Addresses: addrs("198.51.100.2"), PodCIDRs: prefixes("10.244.0.0/24")},
					{Name: "node-c", Addresses: addrs("198.51.100.3"), PodCIDRs: prefixes("10.244.2.0/24")},
				},
				Pods: []labapi.Pod{
					{Name: "other-1", Namespace: "shop", Node: "node-a", Addresses: addrs("10.244.0.2"), Ports: tcp(80)},
					{Name: "web-2", Namespace: "shop", Node: "node-c", Addresses: addrs("10.244.2.2"), Ports: tcp(80)},
					{Name: "shell-1", Namespace: "default", Node: "node-a", Addresses: addrs("10.244.0.3")},
					{Name: "shell-2", Namespace: "default", Node: "node-c", Addresses: addrs("10.244.2.3")},
				},
				Clients: []labapi.Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
		},
		{
			name:    "a node without room for pods, and a pod of its name",
			objects: web + nodeObject("node-a", "172.20.0.2", "10.244.0.0/16") + nodeObject("node-b", "172.20.0.3", "") + podObject("shop", "node-c", "node-a", "10.244.0.7", "") + podObject("shop", "idle", "node-c", "10.245.0.7", ""),
			want: labfile.Lab{
				ClusterCIDRs: prefixes("10.244.0.0/15"),
				Networks:     networks("172.20.0.0/24 172.20.0.1", "192.0.2.0/24 192.0.2.1", "198.51.100.0/24 198.51.100.1"),
				Nodes: []labfile.Node{
					{Name: "node-a", Addresses: addrs("172.20.0.2"), PodCIDRs: prefixes("10.244.0.0/16")},
					{Name: "node-b", Addresses: addrs("172.20.0.3")},
					{Name: "node-c", Addresses: addrs("198.51.100.2"), PodCIDRs: prefixes("10.245.0.0/24")},
				},
				Pods: []labapi.Pod{
					{Name: "idle", Namespace: "shop", Node: "node-c", Addresses: addrs("10.245.0.7"), Ports: []labapi.Port{{Port: 80, Protocol: decision.TCP}, {Port: 90, Protocol: decision.UDP}}},
					{Name: "node-c", Namespace: "shop", Node: "node-a", Addresses: addrs("10.244.0.7"), Ports: []labapi.Port{{Port: 80, Protocol: decision.TCP}, {Port: 90, Protocol: decision.UDP}}},
					{Name: "shell-1", Namespace: "default", Node: "node-a", Addresses: addrs("10.244.0.2")},
					{Name: "shell-2", Namespace: "default", Node: "node-c", Addresses: addrs("10.245.0.2")},
				},
				Clients: []labapi.Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"cluster CIDR", "client outside", "node node-b: no free address for a client pod", "node node-c: its pods", "node node-c: its IPv4", "shell-1, shell-2"},
		},
		{
			name:    "an endpoint without a node beside one with",
			objects: web + sliceObject("shop", "web", 80, "10.244.1.2 node-b", "10.244.1.3"),
			want: labfile.Lab{
				ClusterCIDRs: prefixes("10.244.1.0/24"),
				Networks:     networks("192.0.2.0/24 192.0.2.1", "198.51.100.0/24 198.51.100.1"),
				Nodes:        []labfile.Node{{Name: "node-b", Addresses: addrs("198.51.100.2"), PodCIDRs: prefixes("10.244.1.0/24")}},
				Pods: []labapi.Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.1.2"), Ports: tcp(80)},
					{Name: "web-2", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.1.3"), Ports: tcp(80)},
					{Name: "shell", Namespace: "default", Node: "node-b", Addresses: addrs("10.244.1.4")},
				},
				Clients: []labapi.Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
		},
		{
			name: "a made-up pod keeps out of other nodes' pod CIDRs",
			objects: nodeObject("node-a", "172.20.0.2", "10.244.1.0/24") + nodeObject("node-b", "172.20.0.3", "10.244.0.0/24") +
				web + sliceObject("shop", "web", 80, "10.244.0.7 node-a web-1", "10.244.0.255 node-b web-2"),
			options: Options{ClusterCIDRs: prefixes("10.244.0.0/16")},
			want: labfile.Lab{
				ClusterCIDRs: prefixes("10.244.0.0/16"),
				Networks:     networks("172.20.0.0/24 172.20.0.1", "192.0.2.0/24 192.0.2.1"),
				Nodes: []labfile.Node{
					{Name: "node-a", Addresses: addrs("172.20.0.2"), PodCIDRs: prefixes("10.244.1.0/24", "10.244.0.7/32")},
					{Name: "node-b", Addresses: addrs("172.20.0.3"), PodCIDRs: prefixes("10.244.0.255/32", "10.244.2.0/32")},
				},
				Pods: []labapi.Pod{
					{Name: "web-2", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.0.255"), Ports: tcp(80)},
					{Name: "web-1", Namespace: "shop", Node: "node-a", Addresses: addrs("10.244.0.7"), Ports: tcp(80)},
					{Name: "shell-1", Namespace: "default", Node: "node-a", Addresses: addrs("10.244.1.2")},
					{Name: "shell-2", Namespace: "default", Node: "node-b", Addresses: addrs("10.244.2.0")},
				},
				Clients: []labapi.Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
		},
		{
			name:    "made-up networks avoid those in use",
			objects: web + sliceObject("shop", "web", 80, "192.0.2.7", "10.244.0.2") + serviceObject("shop", "b", "198.51.100.9", 80),
			want: labfile.Lab{
				Networks: networks("203.0.113.0/24 203.0.113.1", "198.18.0.0/24 198.18.0.1"),
			},
		},
		{
			name: "IPv6",
			objects: serviceObject("shop", "web", "fd00:10:96::20", 80) + sliceObject("shop", "web", 80, "fd00:10:244:1::2 node-a web-1") +
				nodeObject("node-a", "fd00:172:20::2", ""),
			want: labfile.Lab{
				ClusterCIDRs: prefixes("fd00:10:244:1::/64"),
				Networks:     networks("fd00:172:20::/64 fd00:172:20::1", "2001:db8::/64 2001:db8::1"),
				Nodes:        []labfile.Node{{Name: "node-a", Addresses: addrs("fd00:172:20::2"), PodCIDRs: prefixes("fd00:10:244:1::/64")}},
				Pods: []labapi.Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-a", Addresses: addrs("fd00:10:244:1::2"), Ports: tcp(80)},
					{Name: "shell", Namespace: "default", Node: "node-a", Addresses: addrs("fd00:10:244:1::3")},
				},
				Clients: []labapi.Client{{Name: "outside", Addresses: addrs("2001:db8::a")}},
			},
			guesses: []string{"its pods are in fd00:10:244:1::/64", "cluster CIDR", "client outside", "shell"},
		},
		{
			name:    "a Service and nothing else",
			objects: web,
			want: labfile.Lab{
				ClusterCIDRs: prefixes("10.244.0.0/24"),
				Networks:     networks("192.0.2.0/24 192.0.2.1", "198.51.100.0/24 198.51.100.1"),
				Nodes:        []labfile.Node{{Name: "node-1", Addresses: addrs("198.51.100.2"), PodCIDRs: prefixes("10.244.0.0/24")}},
				Pods:         []labapi.Pod{{Name: "shell", Namespace: "default", Node: "node-1", Addresses: addrs("10.244.0.2")}},
				Clients:      []labapi.Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"node node-1: made up, because the objects have none", "node node-1: its pods are in 10.244.0.0/24: made up", "cluster CIDR", "client outside", "address 198.51.100.2 is made up", "shell"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.options.Name = "name"
			tc.want.Name = "name"
			got, guesses, err := Derive(load(t, tc.objects), tc.options)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want.Nodes == nil { // only the networks matter
				got = &labfile.Lab{Metadata: got.Metadata, Networks: got.Networks, ClusterCIDRs: got.ClusterCIDRs}
			} else if problems := got.Validate(); len(problems) > 0 {
				t.Errorf("not valid: %+v", problems)
			}
			if d := cmp.Diff(&tc.want, got, sameAddresses); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if tc.guesses != nil && len(guesses) != len(tc.guesses) {
				t.Errorf("%d guesses, want %d:\n%s", len(guesses), len(tc.guesses), strings.Join(guesses, "\n"))
			}
			for _, want := range tc.guesses {
				if !slices.ContainsFunc(guesses, func(g string) bool { return strings.Contains(g, want) }) {
					t.Errorf("no guess %q among\n%s", want, strings.Join(guesses, "\n"))
				}
			}
		})
	}
}
