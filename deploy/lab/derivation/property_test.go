package derivation

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

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
		options Options
		want    string
	}{
		{"nothing", nodeObject("node-a", "172.20.0.2", ""), Options{}, "the objects contain no Services with a ClusterIP"},
		{"no such namespace", web, Options{Namespaces: []string{"shop", "shup"}}, `no Service in namespace "shup"`},
		{"no such service", web, Options{Services: []decision.ServiceName{{Namespace: "shop", Name: "wbe"}}}, "no Service shop/wbe"},
		{"an address of two nodes", web + nodeObject("node-a", "172.20.0.2", "") + nodeObject("node-b", "172.20.0.2", ""), Options{}, "Node node-b: its address 172.20.0.2 is also that of Node node-a"},
		{
			"an address of two pods", web + podObject("shop", "a", "node-a", "10.244.0.2", "") + podObject("shop", "b", "node-a", "10.244.0.2", ""), Options{},
			"Pod shop/b: its address 10.244.0.2 is also that of pod shop/a",
		},
		{
			"a pod with a node's address", web + nodeObject("node-a", "172.20.0.2", "") + podObject("shop", "a", "node-a", "172.20.0.2", ""), Options{},
			"Pod shop/a: its address 172.20.0.2 is that of node node-a, but hostNetwork is not set",
		},
		{
			"a pod elsewhere", web + podObject("shop", "a", "node-a", "10.9.0.2", ""), Options{ClusterCIDRs: prefixes("10.244.0.0/16")},
			"Pod shop/a: its address 10.9.0.2 is not within --cluster-cidr 10.244.0.0/16",
		},
		{
			"a node among the pods", web + nodeObject("node-a", "10.244.0.2", ""), Options{ClusterCIDRs: prefixes("10.244.0.0/16")},
			"--cluster-cidr 10.244.0.0/16 contains the address 10.244.0.2 of node node-a",
		},
		{
			"a machine among the pods", web + sliceObject("shop", "web", 80, "10.244.0.2 node-a web-1") + nodeObject("node-a", "172.20.0.2", "") + nodeObject("router", "172.20.0.3", ""), Options{},
			`Node router: "router" cannot be the name of a node of a lab`,
		},
		{
			"too many nodes", web + many(labfile.MaxNodes+1, func(i int) string { return nodeObject(fmt.Sprint("node-", i), fmt.Sprint("172.20.0.", i+1), "") }), Options{},
			"the objects have 65 nodes, and a lab at most 64: select a part with --namespace or --service",
		},
		{
			"too many pods", web + many(labfile.MaxHosts, func(i int) string {
				return podObject("shop", fmt.Sprint("pod-", i), "node-a", fmt.Sprintf("10.244.%d.%d", i/200, i%200+2), "")
			}), Options{},
			"the objects have 1024 pods and other endpoints, and a lab of 1 nodes at most 1022: select",
		},
		{
			"too many ports", many(labfile.MaxPorts+1, func(i int) string {
				name := fmt.Sprint("s-", i)
				return serviceObject("shop", name, fmt.Sprint("10.96.0.", i+1), 80) + sliceObject("shop", name, 8000+i, "10.244.0.2 node-a web-1")
			}), Options{},
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
// every endpoint, and means the same when it is written and read again.
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
		var options Options
		options.Name = "random"
		if r.IntN(3) == 0 && nodeNet == "172.20.0" {
			options.ClusterCIDRs = prefixes("10.244.0.0/16")
		}
		spec, guesses, err := Derive(load(t, objects.String()), options)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, objects.String())
		}
		got, err := labfile.Parse("derived", spec.Marshal(guesses))
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
				t.Fatalf("seed %d: no endpoint serves %s\n%s", seed, a, spec.Marshal(guesses))
			}
		}
	}
}
