package lab

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

var sameAddresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// load reads objects from text.
func load(t testing.TB, text string) *manifest.Objects {
	t.Helper()
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := manifest.Load([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// The objects below, on one line each.
func nodeObject(name, ip, podCIDR string) string {
	spec := "{}"
	if podCIDR != "" {
		spec = fmt.Sprintf("{podCIDR: %s, podCIDRs: [%s]}", podCIDR, podCIDR)
	}
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Node, metadata: {name: %s}, spec: %s, status: {addresses: [{type: InternalIP, address: %q}, {type: Hostname, address: %s}]}}\n", name, spec, ip, name)
}

func podObject(namespace, name, node, ip, more string) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s}, spec: {nodeName: %s, containers: [{name: c, ports: [{containerPort: 80}, {containerPort: 90, protocol: UDP}, {containerPort: 99, protocol: SCTP}]}]%s}, status: {phase: Running, podIP: %s, podIPs: [{ip: %s}]}}\n",
		name, namespace, node, more, ip, ip)
}

func serviceObject(namespace, name, ip string, port int) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {clusterIP: %q, clusterIPs: [%q], ports: [{port: %d, protocol: TCP}]}}\n", name, namespace, ip, ip, port)
}

func sliceObject(namespace, service string, port int, endpoints ...string) string {
	family := "IPv4"
	if strings.Contains(endpoints[0], ":") && strings.Contains(endpoints[0], "::") {
		family = "IPv6"
	}
	var list []string
	for _, e := range endpoints { // address, node, pod
		parts := strings.Split(e, " ")
		s := fmt.Sprintf("{addresses: [%q], conditions: {ready: true}", parts[0])
		if len(parts) > 1 && parts[1] != "-" {
			s += ", nodeName: " + parts[1]
		}
		if len(parts) > 2 {
			s += fmt.Sprintf(", targetRef: {kind: Pod, namespace: %s, name: %s}", namespace, parts[2])
		}
		list = append(list, s+"}")
	}
	return fmt.Sprintf("---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: %s-%s, namespace: %s, labels: {kubernetes.io/service-name: %s}}, addressType: %s, ports: [{name: \"\", port: %d, protocol: TCP}], endpoints: [%s]}\n",
		service, strings.ToLower(family), namespace, service, family, port, strings.Join(list, ", "))
}

func tcp(ports ...uint16) (all []Port) {
	for _, p := range ports {
		all = append(all, Port{p, decision.TCP})
	}
	return all
}

func addrs(texts ...string) (all []netip.Addr) {
	for _, s := range texts {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, s := range texts {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

func networks(texts ...string) (all []Network) { // "cidr gateway"
	for _, s := range texts {
		c, g, _ := strings.Cut(s, " ")
		all = append(all, Network{netip.MustParsePrefix(c), netip.MustParseAddr(g)})
	}
	return all
}

// derived makes a lab of objects.
func derived(t testing.TB, objects string) *Spec {
	t.Helper()
	spec, _, err := Derive(load(t, objects), DeriveOptions{Name: "derived"})
	if err != nil {
		t.Fatal(err)
	}
	if problems := validate(spec); len(problems) > 0 {
		t.Fatalf("not valid: %+v", problems)
	}
	return spec
}

var web = serviceObject("shop", "web", "10.96.0.20", 80)

func TestDerive(t *testing.T) {
	for _, tc := range []struct {
		name    string
		objects string
		options DeriveOptions
		want    Spec
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
			want: Spec{
				ClusterCIDRs: prefixes("10.244.0.0/23"),
				Networks:     networks("172.20.0.0/24 172.20.0.1", "203.0.113.0/24 203.0.113.1", "192.0.2.0/24 192.0.2.1"),
				Nodes: []Node{
					{Name: "ip-172-20-0-2.example", Addresses: addrs("172.20.0.2"), PodCIDRs: prefixes("10.244.0.0/24"), Ports: tcp(6443)},
					{Name: "node-b", Addresses: addrs("172.20.0.3"), PodCIDRs: prefixes("10.244.1.0/24"), Ports: []Port{{80, decision.TCP}, {90, decision.UDP}}},
				},
				Pods: []Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.1.2"), Ports: []Port{{80, decision.TCP}, {90, decision.UDP}, {8080, decision.TCP}}},
					{Name: "shell-1", Namespace: "default", Node: "ip-172-20-0-2.example", Addresses: addrs("10.244.0.2")},
					{Name: "shell-2", Namespace: "default", Node: "node-b", Addresses: addrs("10.244.1.3")},
				},
				Clients: []Client{
					{Name: "database-1", Addresses: addrs("203.0.113.7"), Ports: tcp(5432), RoutesToPods: true},
					{Name: "outside", Addresses: addrs("192.0.2.10")},
				},
			},
			guesses: []string{"cluster CIDR 10.244.0.0/23", "client database-1 is the endpoint 203.0.113.7 of Service shop/database", "client outside at 192.0.2.10", "shell-1, shell-2"},
		},
		{
			name:    "services alone, as rules tell of them",
			objects: web + sliceObject("shop", "web", 8080, "10.244.2.2", "10.244.1.2") + serviceObject("default", "kubernetes", "10.96.0.1", 443) + sliceObject("default", "kubernetes", 6443, "172.20.0.4"),
			options: DeriveOptions{ClusterCIDRs: prefixes("10.244.0.0/16")},
			want: Spec{
				ClusterCIDRs: prefixes("10.244.0.0/16"),
				Networks:     networks("172.20.0.0/24 172.20.0.1", "192.0.2.0/24 192.0.2.1", "198.51.100.0/24 198.51.100.1"),
				Nodes: []Node{
					{Name: "node-1", Addresses: addrs("198.51.100.2"), PodCIDRs: prefixes("10.244.1.0/24")},
					{Name: "node-2", Addresses: addrs("198.51.100.3"), PodCIDRs: prefixes("10.244.2.0/24")},
				},
				Pods: []Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-1", Addresses: addrs("10.244.1.2"), Ports: tcp(8080)},
					{Name: "web-2", Namespace: "shop", Node: "node-2", Addresses: addrs("10.244.2.2"), Ports: tcp(8080)},
					{Name: "shell-1", Namespace: "default", Node: "node-1", Addresses: addrs("10.244.1.3")},
					{Name: "shell-2", Namespace: "default", Node: "node-2", Addresses: addrs("10.244.2.3")},
				},
				Clients: []Client{
					{Name: "kubernetes-1", Addresses: addrs("172.20.0.4"), Ports: tcp(6443), RoutesToPods: true},
					{Name: "outside", Addresses: addrs("192.0.2.10")},
				},
			},
			guesses: []string{
				"node node-1: made up, for the pods in 10.244.1.0/24", "node node-2: made up, for the pods in 10.244.2.0/24", "node node-1: its pods are in 10.244.1.0/24", "node node-2: its pods are in",
				"2 of the pods: the name is that of the Service", "client kubernetes-1 is the endpoint 172.20.0.4", "client outside",
				"node node-1: its IPv4 address 198.51.100.2 is made up", "node node-2: its IPv4 address 198.51.100.3 is made up", "shell-1, shell-2",
			},
		},
		{
			name: "pods in the nodes' network",
			objects: nodeObject("node-a", "10.0.1.5", "") + nodeObject("node-b", "10.0.1.6", "") +
				web + sliceObject("shop", "web", 80, "10.0.1.1 node-a web-1", "10.0.1.2 node-b web-2", "10.0.1.7 node-a web-3"),
			want: Spec{
				Networks: networks("10.0.1.0/24 10.0.1.3", "192.0.2.0/24 192.0.2.1"),
				Nodes: []Node{
					{Name: "node-a", Addresses: addrs("10.0.1.5"), PodCIDRs: prefixes("10.0.1.1/32", "10.0.1.7/32", "10.0.1.4/32")},
					{Name: "node-b", Addresses: addrs("10.0.1.6"), PodCIDRs: prefixes("10.0.1.2/32", "10.0.1.8/32")},
				},
				Pods: []Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-a", Addresses: addrs("10.0.1.1"), Ports: tcp(80)},
					{Name: "web-2", Namespace: "shop", Node: "node-b", Addresses: addrs("10.0.1.2"), Ports: tcp(80)},
					{Name: "web-3", Namespace: "shop", Node: "node-a", Addresses: addrs("10.0.1.7"), Ports: tcp(80)},
					{Name: "shell-1", Namespace: "default", Node: "node-a", Addresses: addrs("10.0.1.4")},
					{Name: "shell-2", Namespace: "default", Node: "node-b", Addresses: addrs("10.0.1.8")},
				},
				Clients: []Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"no cluster CIDR for IPv4: the least that has all pods, 10.0.1.0/29, also has the address 10.0.1.5 of node node-a", "client outside", "shell-1, shell-2"},
		},
		{
			name: "pods that do not keep to the nodes' pod CIDRs",
			objects: nodeObject("node-a", "172.20.0.2", "10.244.0.0/24") + nodeObject("node-b", "172.20.0.3", "10.244.1.0/24") +
				web + sliceObject("shop", "web", 80, "10.244.0.7 node-b web-1", "192.168.7.7 node-b web-2", "10.244.0.9 node-a web-3"),
			options: DeriveOptions{Name: "calico"},
			want: Spec{
				Name:     "calico",
				Networks: networks("172.20.0.0/24 172.20.0.1", "192.0.2.0/24 192.0.2.1"),
				Nodes: []Node{
					{Name: "node-a", Addresses: addrs("172.20.0.2"), PodCIDRs: prefixes("10.244.0.9/32", "10.244.0.10/32")},
					{Name: "node-b", Addresses: addrs("172.20.0.3"), PodCIDRs: prefixes("10.244.1.0/24", "10.244.0.7/32", "192.168.7.7/32")},
				},
				Pods: []Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.0.7"), Ports: tcp(80)},
					{Name: "web-3", Namespace: "shop", Node: "node-a", Addresses: addrs("10.244.0.9"), Ports: tcp(80)},
					{Name: "web-2", Namespace: "shop", Node: "node-b", Addresses: addrs("192.168.7.7"), Ports: tcp(80)},
					{Name: "shell-1", Namespace: "default", Node: "node-a", Addresses: addrs("10.244.0.10")},
					{Name: "shell-2", Namespace: "default", Node: "node-b", Addresses: addrs("10.244.1.2")},
				},
				Clients: []Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"node node-a: its pod CIDR 10.244.0.0/24 has addresses of others", "no cluster CIDR for IPv4", "client outside", "shell-1, shell-2"},
		},
		{
			name: "one namespace of several",
			objects: nodeObject("node-a", "172.20.0.2", "10.244.0.0/24") + nodeObject("node-b", "172.20.0.3", "10.244.1.0/24") +
				podObject("shop", "idle", "node-b", "10.244.1.7", "") + podObject("other", "gone", "node-a", "10.244.0.7", "") +
				web + sliceObject("shop", "web", 80, "10.244.1.2 node-b web-1") +
				serviceObject("default", "kubernetes", "10.96.0.1", 443) + sliceObject("default", "kubernetes", 6443, "192.168.100.1"),
			options: DeriveOptions{Namespaces: []string{"shop"}, ClusterCIDRs: prefixes("10.244.0.0/16")},
			want: Spec{
				ClusterCIDRs: prefixes("10.244.0.0/16"),
				Networks:     networks("172.20.0.0/24 172.20.0.1", "192.0.2.0/24 192.0.2.1"),
				Nodes:        []Node{{Name: "node-b", Addresses: addrs("172.20.0.3"), PodCIDRs: prefixes("10.244.1.0/24")}},
				Pods: []Pod{
					{Name: "idle", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.1.7"), Ports: []Port{{80, decision.TCP}, {90, decision.UDP}}},
					{Name: "web-1", Namespace: "shop", Node: "node-b", Addresses: addrs("10.244.1.2"), Ports: tcp(80)},
					{Name: "shell", Namespace: "default", Node: "node-b", Addresses: addrs("10.244.1.3")},
				},
				Clients: []Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"3 nodes, pods and machines are left out", "client outside", "one on each node: shell"},
		},
		{
			name: "one service of several",
			objects: podObject("shop", "idle", "node-b", "10.244.1.7", "") + web + sliceObject("shop", "web", 80, "10.244.1.2 node-b web-1", "10.244.2.2 node-c web-2") +
				serviceObject("shop", "other", "10.96.0.30", 80) + sliceObject("shop", "other", 80, "10.244.0.2 node-a other-1", "10.244.2.2 node-c web-2"),
			options: DeriveOptions{Services: []decision.ServiceName{{Namespace: "shop", Name: "other"}}, ClusterCIDRs: prefixes("10.244.0.0/16")},
			want: Spec{
				ClusterCIDRs: prefixes("10.244.0.0/16"),
				Networks:     networks("192.0.2.0/24 192.0.2.1", "198.51.100.0/24 198.51.100.1"),
				Nodes: []Node{
					{Name: "node-a", Addresses: addrs("198.51.100.2"), PodCIDRs: prefixes("10.244.0.0/24")},
					{Name: "node-c", Addresses: addrs("198.51.100.3"), PodCIDRs: prefixes("10.244.2.0/24")},
				},
				Pods: []Pod{
					{Name: "other-1", Namespace: "shop", Node: "node-a", Addresses: addrs("10.244.0.2"), Ports: tcp(80)},
					{Name: "web-2", Namespace: "shop", Node: "node-c", Addresses: addrs("10.244.2.2"), Ports: tcp(80)},
					{Name: "shell-1", Namespace: "default", Node: "node-a", Addresses: addrs("10.244.0.3")},
					{Name: "shell-2", Namespace: "default", Node: "node-c", Addresses: addrs("10.244.2.3")},
				},
				Clients: []Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
		},
		{
			name:    "made-up networks avoid those in use",
			objects: web + sliceObject("shop", "web", 80, "192.0.2.7", "10.244.0.2") + serviceObject("shop", "b", "198.51.100.9", 80),
			want: Spec{
				Networks: networks("203.0.113.0/24 203.0.113.1", "198.18.0.0/24 198.18.0.1"),
			},
		},
		{
			name: "IPv6",
			objects: serviceObject("shop", "web", "fd00:10:96::20", 80) + sliceObject("shop", "web", 80, "fd00:10:244:1::2 node-a web-1") +
				nodeObject("node-a", "fd00:172:20::2", ""),
			want: Spec{
				ClusterCIDRs: prefixes("fd00:10:244:1::/64"),
				Networks:     networks("fd00:172:20::/64 fd00:172:20::1", "2001:db8::/64 2001:db8::1"),
				Nodes:        []Node{{Name: "node-a", Addresses: addrs("fd00:172:20::2"), PodCIDRs: prefixes("fd00:10:244:1::/64")}},
				Pods: []Pod{
					{Name: "web-1", Namespace: "shop", Node: "node-a", Addresses: addrs("fd00:10:244:1::2"), Ports: tcp(80)},
					{Name: "shell", Namespace: "default", Node: "node-a", Addresses: addrs("fd00:10:244:1::3")},
				},
				Clients: []Client{{Name: "outside", Addresses: addrs("2001:db8::a")}},
			},
			guesses: []string{"its pods are in fd00:10:244:1::/64", "cluster CIDR", "client outside", "shell"},
		},
		{
			name:    "a Service and nothing else",
			objects: web,
			want: Spec{
				ClusterCIDRs: prefixes("10.244.0.0/24"),
				Networks:     networks("192.0.2.0/24 192.0.2.1", "198.51.100.0/24 198.51.100.1"),
				Nodes:        []Node{{Name: "node-1", Addresses: addrs("198.51.100.2"), PodCIDRs: prefixes("10.244.0.0/24")}},
				Pods:         []Pod{{Name: "shell", Namespace: "default", Node: "node-1", Addresses: addrs("10.244.0.2")}},
				Clients:      []Client{{Name: "outside", Addresses: addrs("192.0.2.10")}},
			},
			guesses: []string{"node node-1: made up, as the objects tell of none", "node node-1: its pods are in 10.244.0.0/24: made up", "cluster CIDR", "client outside", "address 198.51.100.2 is made up", "shell"},
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
				got = &Spec{Name: got.Name, Networks: got.Networks, ClusterCIDRs: got.ClusterCIDRs}
			} else if problems := validate(got); len(problems) > 0 {
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

func TestDeriveErrors(t *testing.T) {
	many := func(n int, text func(i int) string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(text(i))
		}
		return b.String()
	}
	for _, tc := range []struct {
		name    string
		objects string
		options DeriveOptions
		want    string
	}{
		{"nothing", nodeObject("node-a", "172.20.0.2", ""), DeriveOptions{}, "there are no Services among the objects"},
		{"no such namespace", web, DeriveOptions{Namespaces: []string{"shop", "shup"}}, `there is no Service in namespace "shup"`},
		{"no such service", web, DeriveOptions{Services: []decision.ServiceName{{Namespace: "shop", Name: "wbe"}}}, "there is no Service shop/wbe"},
		{"an address of two nodes", web + nodeObject("node-a", "172.20.0.2", "") + nodeObject("node-b", "172.20.0.2", ""), DeriveOptions{}, "Node node-b: its address 172.20.0.2 is that of Node node-a, too"},
		{
			"an address of two pods", web + podObject("shop", "a", "node-a", "10.244.0.2", "") + podObject("shop", "b", "node-a", "10.244.0.2", ""), DeriveOptions{},
			"Pod shop/b: its address 10.244.0.2 is that of pod shop/a, too",
		},
		{
			"a pod with a node's address", web + nodeObject("node-a", "172.20.0.2", "") + podObject("shop", "a", "node-a", "172.20.0.2", ""), DeriveOptions{},
			"Pod shop/a: its address 172.20.0.2 is that of node node-a, and it does not say hostNetwork",
		},
		{
			"a pod elsewhere", web + podObject("shop", "a", "node-a", "10.9.0.2", ""), DeriveOptions{ClusterCIDRs: prefixes("10.244.0.0/16")},
			"Pod shop/a: its address 10.9.0.2 is not within --cluster-cidr 10.244.0.0/16",
		},
		{
			"a node among the pods", web + nodeObject("node-a", "10.244.0.2", ""), DeriveOptions{ClusterCIDRs: prefixes("10.244.0.0/16")},
			"--cluster-cidr 10.244.0.0/16: the address 10.244.0.2 of node node-a is in it",
		},
		{
			"a machine among the pods", web + sliceObject("shop", "web", 80, "10.244.0.2 node-a web-1") + nodeObject("node-a", "172.20.0.2", "") + nodeObject("fabric", "172.20.0.3", ""), DeriveOptions{},
			`Node fabric: "fabric" cannot be the name of a node of a lab`,
		},
		{
			"too many nodes", web + many(maxNodes+1, func(i int) string { return nodeObject(fmt.Sprint("node-", i), fmt.Sprint("172.20.0.", i+1), "") }), DeriveOptions{},
			"the objects have 65 nodes, and a lab at most 64: choose what matters with --namespace or --service",
		},
		{
			"too many pods", web + many(maxHosts, func(i int) string {
				return podObject("shop", fmt.Sprint("pod-", i), "node-a", fmt.Sprintf("10.244.%d.%d", i/200, i%200+2), "")
			}), DeriveOptions{},
			"the objects have 1024 pods and other endpoints, and a lab of 1 nodes has room for 1022: choose",
		},
		{
			"too many ports", many(maxPorts+1, func(i int) string {
				name := fmt.Sprint("s-", i)
				return serviceObject("shop", name, fmt.Sprint("10.96.0.", i+1), 80) + sliceObject("shop", name, 8000+i, "10.244.0.2 node-a web-1")
			}), DeriveOptions{},
			"pod shop/web-1 serves 65 ports, and a host of a lab at most 64",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.options.Name = "name"
			spec, _, err := Derive(load(t, tc.objects), tc.options)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %+v, %v\nwant %s", spec, err, tc.want)
			}
		})
	}
}

// TestDerivedLabsAreValid makes labs of random clusters: what comes out is a valid lab, has
// every endpoint, and says the same when it is written and read again.
func TestDerivedLabsAreValid(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		var objects strings.Builder
		nodes := 1 + r.IntN(4)
		nodeNet := []string{"10.244.0", "172.20.0", "10.244.1"}[r.IntN(3)] // pods may be in it
		for i := range nodes {
			if r.IntN(3) > 0 {
				cidr := ""
				if r.IntN(2) == 0 {
					cidr = fmt.Sprintf("10.244.%d.0/24", r.IntN(3))
				}
				objects.WriteString(nodeObject(fmt.Sprint("node-", i), fmt.Sprintf("%s.%d", nodeNet, 100+i), cidr))
			}
		}
		services := 1 + r.IntN(4)
		endpoints := make(map[netip.Addr]bool)
		for i := range services {
			name := fmt.Sprint("s-", i)
			objects.WriteString(serviceObject("shop", name, fmt.Sprint("10.96.0.", i+1), 80))
			var list []string
			for range 1 + r.IntN(4) {
				a := netip.AddrFrom4([4]byte{10, 244, byte(r.IntN(4)), byte(1 + r.IntN(90))})
				if endpoints[a] {
					continue
				}
				endpoints[a] = true
				e := a.String()
				switch r.IntN(3) {
				case 0:
					e += fmt.Sprintf(" node-%d", r.IntN(nodes))
				case 1:
					e += fmt.Sprintf(" node-%d pod-%d", r.IntN(nodes), len(endpoints))
				}
				list = append(list, e)
			}
			if len(list) > 0 {
				objects.WriteString(sliceObject("shop", name, 8080, list...))
			}
		}
		var options DeriveOptions
		options.Name = "random"
		if r.IntN(3) == 0 && nodeNet == "172.20.0" {
			options.ClusterCIDRs = prefixes("10.244.0.0/16")
		}
		spec, guesses, err := Derive(load(t, objects.String()), options)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, objects.String())
		}
		got, err := Parse("derived", spec.Marshal(guesses))
		if err != nil {
			t.Fatalf("seed %d: %v\n%s\n%s", seed, err, spec.Marshal(guesses), objects.String())
		}
		if d := cmp.Diff(spec, got, sameAddresses); d != "" {
			t.Fatalf("seed %d: (-derived +read)\n%s", seed, d)
		}
		there := make(map[netip.AddrPort]bool)
		for _, p := range places(spec) {
			there[p.at] = true
		}
		for a := range endpoints {
			if !there[netip.AddrPortFrom(a, 8080)] {
				t.Fatalf("seed %d: nobody serves %s\n%s", seed, a, spec.Marshal(guesses))
			}
		}
	}
}

// TestMarshal: what is written of a lab is read as the same.
func TestMarshal(t *testing.T) {
	texts := map[string][]byte{"small": []byte(small)}
	for _, name := range labs.Names() {
		data, err := labs.File(name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = data
	}
	odd := strings.NewReplacer("small", "null", "node-a", "1e3", "node-b", "0x10", "name: web", "name: true", "outside", "y", "[more]", `["a: b, #c", "no"]`).Replace(small)
	texts["odd"] = []byte(odd)
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			want, err := Parse(name, []byte(strings.NewReplacer("name: null", `name: "null"`, "1e3", `"1e3"`, "0x10", `"0x10"`, "name: true", `name: "true"`, "name: y", `name: "y"`).Replace(string(text))))
			if err != nil {
				t.Fatal(err)
			}
			data := want.Marshal([]string{"A comment.", "", "- no item"})
			got, err := Parse(name, data)
			if err != nil {
				t.Fatalf("%v\n%s", err, data)
			}
			if d := cmp.Diff(want, got, sameAddresses); d != "" {
				t.Errorf("(-want +got)\n%s\n%s", d, data)
			}
		})
	}
}

// place is a server of a lab.
type place struct {
	who      string
	pod      bool
	at       netip.AddrPort
	protocol decision.Protocol
}

func places(s *Spec) []place {
	var all []place
	add := func(who string, pod bool, addresses []netip.Addr, ports []Port) {
		for _, a := range addresses {
			for _, p := range ports {
				all = append(all, place{who, pod, netip.AddrPortFrom(a, p.Port), p.Protocol})
			}
		}
	}
	for i := range s.Nodes {
		add(s.Nodes[i].Name, false, s.Nodes[i].Addresses, s.Nodes[i].Ports)
	}
	for i := range s.Pods {
		add(s.Pods[i].FullName(), true, s.Pods[i].Addresses, s.Pods[i].Ports)
	}
	for i := range s.Clients {
		add(s.Clients[i].Name, false, s.Clients[i].Addresses, s.Clients[i].Ports)
	}
	return all
}
