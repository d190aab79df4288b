package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/paper/kubeproxyconfig"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// TestPath: the node that decides, those before it, and what the objects do not show.
func TestPath(t *testing.T) {
	objects, err := labfile.LoadOnce(nil, []string{"testdata/path.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	const undetected, inLab, withIP, byConfigMap = "undetected", "in a lab", "with an address", "by a ConfigMap"
	clusters := map[string]*Cluster{
		"":         New(objects, servicetable.NodeConfig{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}}),
		undetected: New(objects, servicetable.NodeConfig{}),
	}
	lab := *objects
	lab.Lab = &labfile.Lab{Nodes: []labfile.Node{{Name: "node-b", Ports: []labapi.Port{{Port: 6443, Protocol: decision.TCP}}}}}
	clusters[inLab] = New(&lab, servicetable.NodeConfig{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	clusters[withIP] = New(objects, servicetable.NodeConfig{Name: "node-a", IPs: []netip.Addr{netip.MustParseAddr("172.20.0.99")}})
	configured := *objects
	configured.Context.KubeProxy = &corev1.ConfigMap{Data: map[string]string{"config.conf": "clusterCIDR: 10.244.0.0/16\nnodePortAddresses: [172.20.0.3/32]\n"}}
	config := servicetable.NodeConfig{Mode: servicetable.ClusterCIDR}
	kubeproxyconfig.Of(&configured.Objects).Complete(&config)
	clusters[byConfigMap] = New(&configured, config)
	for _, tt := range []struct {
		from, to string
		given    string // the node
		cluster  string
		want     string // the result in short: see path
	}{
		// Node ports of a node are decided there, wherever the packet comes from.
		{from: "node-a", to: "node-b:30020", want: "works at node-b after node-a: 10.244.2.2"},
		{from: "node-a", to: "172.20.0.3:30020", given: "node-a", want: "works at node-b after node-a: 10.244.2.2"},
		{from: "node-b", to: "node-b:30020", want: "works at node-b: 10.244.2.2"},
		{from: "node-b", to: "node-a:30020", want: "NFQ030 at node-a after node-b"},
		{from: "node-c", to: "node-b:30024", want: "works at node-b after node-c: 10.244.2.2"},
		{from: "node-a", to: "node-a:30020", want: "works at node-a: 10.244.2.2"}, // the node itself is not subject to the policy
		{from: "outside", to: "node-a:30020", want: "NFQ030 at node-a"},
		{from: "outside", to: "node-b:30020", want: "works at node-b: 10.244.2.2"},
		{from: "outside", to: "node-b:30020", given: "node-a", want: "works at node-b: 10.244.2.2"},
		{from: "outside", to: "node-a.example.org:30024", want: "works at node-a: 10.244.2.2"},
		{from: "outside", to: "node-a:30023", want: "NFQ020 at node-a"},
		{from: "node-b", to: "[fd00:172:20::2]:30020", want: "NFQ030 at node-a after node-b"},
		{from: "fd00:172:20::2", to: "[fd00:172:20::3]:30020", want: "works at node-b after node-a: fd00:10:244:2::2"},
		{from: "2001:db8::9", to: "[fd00:172:20::2]:30020", want: "NFQ030 at node-a"},

		// From Pods: what the network does on the way to the other node may matter.
		{from: "shop/client-a", to: "node-a:30020", want: "works at node-a: 10.244.2.2"},
		{from: "shop/client-a", to: "node-b:30020", want: "works at node-b after node-a: 10.244.2.2"},
		{from: "shop/client-a", to: "node-b:30024", want: "works at node-b after node-a: 10.244.2.2"},
		{from: "shop/client-a", to: "node-b:30024", given: "node-c", want: "works at node-b after node-a: 10.244.2.2"},
		{from: "shop/client-a", to: "node-b:30021", want: "NFQ030 at node-b after node-a, NFQ072"},
		{from: "shop/client-a", to: "node-c:30020", want: "NFQ030 at node-c after node-a, NFQ072"},
		{from: "shop/client-a", to: "node-b:30022", want: "works at node-b after node-a: 10.244.2.2, NFQ071, NFQ072"},
		{from: "shop/client-b", to: "node-b:30022", want: "works at node-b: 10.244.1.2 10.244.2.2, NFQ070"},
		{from: "shop/client-a", to: "[fd00:172:20::3]:30020", want: "works at node-b after node-a: fd00:10:244:2::2"},
		{from: "shop/client-a", to: "[fd00:172:20::4]:30021", want: "NFQ030 at node-c after node-a, NFQ072"},
		{from: "shop/client-a", to: "node-b:30020", cluster: undetected, want: "works at node-b after node-a: 10.244.2.2"},
		{from: "shop/client-a", to: "node-b:30021", cluster: undetected, want: "NFQ030 at node-b after node-a, NFQ072"},
		{from: "shop/web-a", to: "node-b:30021", want: "works at node-b after node-a: 10.244.1.2, NFQ072, unless"}, // node-b masquerades what reaches itself

		// Services are decided where the packet starts.
		{from: "shop/client-a", to: "internal-b:80", want: "NFQ030 at node-a"},
		{from: "shop/client-a", to: "internal-b:80", given: "node-b", want: "NFQ030 at node-a"},
		{from: "shop/client-b", to: "internal-b:80", given: "node-a", want: "works at node-b: 10.244.2.2, NFQ070"},
		{from: "node-a", to: "shop/internal-b", given: "node-b", want: "NFQ030 at node-a"},
		{from: "shop/agent-a", to: "internal-b", given: "node-b", want: "NFQ030 at node-a"},
		{from: "shop/client-a", to: "[fd00:10:96::25]:80", given: "node-b", want: "NFQ030 at node-a"},
		{from: "10.244.2.77", to: "10.96.0.25:80", given: "node-a", want: "works at node-b: 10.244.2.2, NFQ070"},
		{from: "shop/client-a", to: "cluster-b", want: "works at node-a: 10.244.2.2"},
		{from: "shop/client-b", to: "cluster-b", want: "works at node-b: 10.244.2.2, NFQ070"},
		{from: "shop/web-b", to: "cluster-b", want: "works at node-b: 10.244.2.2, NFQ070"},
		{from: "shop/client-a", to: "172.20.0.3:80", want: "works at node-a: 10.244.2.2"}, // an external IP comes before the node's address
		{from: "outside", to: "172.20.0.3:80", want: "works at node-b: 10.244.2.2"},
		{from: "outside", to: "198.51.100.30:80", given: "node-c", want: "works at node-c: 10.244.2.2"},
		{from: "outside", to: "10.96.0.24:80", want: "NFQ004 at "},
		{from: "outside", to: "10.96.0.24:80", given: "node-a", want: "works at node-a: 10.244.2.2"},
		{from: "outside", to: "10.96.0.24:80", given: "node-a", cluster: undetected, want: "NFQ071 at node-a, NFQ072, unless"},

		// Load balancers.
		{from: "shop/client-a", to: "203.0.113.26:80", want: "works at node-a: 10.244.2.2"},
		{from: "shop/client-a", to: "203.0.113.26:80", cluster: undetected, want: "NFQ030 at node-a, NFQ072, unless"},
		{from: "node-a", to: "203.0.113.26:80", want: "works at node-a: 10.244.2.2"},
		{from: "outside", to: "203.0.113.26:80", want: "works at node-b: 10.244.2.2, NFQ030"},
		{from: "outside", to: "203.0.113.26:80", given: "node-a", want: "NFQ030 at node-a"},
		{from: "outside", to: "shop/vip-b", want: "works at node-b: 10.244.2.2, NFQ030"},
		{from: "outside", to: "shop/local-b", want: "works at node-b: 10.244.2.2, NFQ030"},
		{from: "outside", to: "shop/local-b", given: "node-a", want: "NFQ030 at node-a"},
		{from: "outside", to: "203.0.113.27:80", want: "works at node-b: 10.244.2.2, NFQ030, NFQ073"},
		{from: "outside", to: "203.0.113.27:81", want: "NFQ001 at node-a"},
		{from: "shop/client-a", to: "203.0.113.27:80", want: "works at node-b after node-a: 10.244.2.2, NFQ030, NFQ073"},
		{from: "outside", to: "shop/proxied-b", want: "works at node-b: 10.244.2.2, NFQ030, NFQ073"},
		{from: "outside", to: "shop/named-b", want: "works at node-a: 10.244.2.2, NFQ073"},
		{from: "outside", to: "lb.example.org:80", want: "works at node-a: 10.244.2.2, NFQ073"},
		{from: "outside", to: "shop/direct-b", want: "works at , NFQ073"},
		{from: "outside", to: "203.0.113.29:80", want: "works at node-a, NFQ073"},

		// Ports of nodes that are no node ports.
		{from: "outside", to: "node-b:443", want: "works at node-b: 10.244.2.7, NFQ074"},
		{from: "outside", to: "node-a:443", want: "NFQ005 at node-a, unless"},
		{from: "shop/client-b", to: "node-a:9100", want: "works at node-a after node-b: 172.20.0.2, NFQ074"},
		{from: "shop/client-b", to: "pod/shop/agent-a:9100", want: "works at node-a after node-b: 172.20.0.2, NFQ074"},
		{from: "outside", to: "node-a:32026", want: "works at node-a, NFQ074"},
		{from: "outside", to: "172.20.0.99:30024", given: "node-a", want: "NFQ005 at node-a, unless"},

		// A lab masquerades nothing, and routes to each Pod.
		{from: "shop/client-a", to: "node-b:30021", cluster: inLab, want: "NFQ071 at node-b after node-a"},
		{from: "shop/client-b", to: "cluster-b", cluster: inLab, want: "works at node-b: 10.244.2.2"},
		{from: "shop/client-a", to: "node-b:6443", cluster: inLab, want: "works at node-b after node-a, NFQ074"},
		{from: "shop/client-a", to: "node-a:6443", cluster: inLab, want: "NFQ005 at node-a"},

		// What the proxies are told.
		{from: "outside", to: "172.20.0.99:30024", cluster: withIP, want: "works at node-a: 10.244.2.2"},
		{from: "shop/client-a", to: "203.0.113.26:80", cluster: byConfigMap, want: "works at node-a: 10.244.2.2"},
		{from: "node-a", to: "node-b:30020", cluster: byConfigMap, want: "works at node-b after node-a: 10.244.2.2"},
		{from: "node-b", to: "node-a:30024", cluster: byConfigMap, want: "NFQ006 at node-a after node-b"},

		// Loopback.
		{from: "shop/client-a", to: "127.0.0.1:30024", want: "NFQ007 at "},
		{from: "node-a", to: "[::1]:30024", want: "NFQ006 at node-a"},
	} {
		t.Run(fmt.Sprintf("%s to %s %s %s", tt.from, tt.to, tt.given, tt.cluster), func(t *testing.T) {
			a, err := clusters[tt.cluster].Why(Question{From: tt.from, To: tt.to, Node: tt.given})
			if err != nil {
				t.Fatal(err)
			}
			if got := path(a); got != tt.want {
				t.Errorf("got  %s\nwant %s\n%+v\n%+v", got, tt.want, a.Cause, a.Notes)
			}
			seen := a.Node == tt.given || slices.ContainsFunc(a.Passed, func(p Place) bool { return p.Node == tt.given })
			if tt.given != "" && strings.Contains(a.NodeIs, tt.given+" was given, but does not decide") == seen {
				t.Errorf("node %s: %s; %s was given", a.Node, a.NodeIs, tt.given)
			}
		})
	}
}

// path is an answer in short: the result, the node that decides, those before it, the endpoints that should answer, and
// the codes of the notes.
func path(a *Answer) string {
	var b strings.Builder
	if a.Works {
		b.WriteString("works")
	} else {
		b.WriteString(string(a.Cause.Code))
	}
	b.WriteString(" at " + a.Node)
	for _, p := range a.Passed {
		b.WriteString(" after " + p.Node)
	}
	var answering []string
	for _, e := range a.Endpoints {
		if e.Problem == nil {
			answering = append(answering, netip.MustParseAddrPort(e.Address).Addr().String())
		}
	}
	if len(answering) > 0 && a.Works {
		b.WriteString(": " + strings.Join(answering, " "))
	}
	var notes []string
	for _, n := range a.Notes {
		notes = append(notes, ", "+string(n.Code))
	}
	slices.Sort(notes)
	b.WriteString(strings.Join(slices.Compact(notes), ""))
	if a.Unless != "" {
		b.WriteString(", unless")
	}
	return b.String()
}
