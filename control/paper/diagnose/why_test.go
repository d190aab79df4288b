package diagnose

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/paper/kubeproxyconfig"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// edit replaces a text of the healthy cluster by another one, everywhere. Without a text it adds an object.
type edit struct{ from, to string }

// broken is the cluster of testdata/shop.yaml with mistakes.
func broken(t *testing.T, edits ...edit) *Cluster {
	t.Helper()
	b, err := os.ReadFile("testdata/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, e := range edits {
		if e.from == "" {
			text += "---\n" + e.to + "\n"
			continue
		}
		if !strings.Contains(text, e.from) {
			t.Fatalf("no %q in the cluster", e.from)
		}
		text = strings.ReplaceAll(text, e.from, e.to)
	}
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := labfile.LoadOnce(nil, []string{file})
	if err != nil {
		t.Fatal(err)
	}
	config := servicetable.NodeConfig{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	kubeproxyconfig.Of(&objects.Objects).Complete(&config)
	return New(objects, config)
}

// webSlice is the metadata of the EndpointSlice of Service web.
const webSlice = `metadata: {name: web-abc, namespace: shop, labels: {kubernetes.io/service-name: web}}`

// TestWhy: each mistake is found, and nothing else; the healthy cluster works.
func TestWhy(t *testing.T) {
	const notReady = `conditions: [{type: Ready, status: "False", message: "containers with unready status: [nginx]"}]`
	for name, tt := range map[string]struct {
		edits    []edit
		from, to string
		code     Code   // "": it works
		text     string // a part of the cause's, or of the first note's
		node     string
	}{
		"by DNS name":       {from: "shop/client", to: "web.shop:80", node: "node-a"},
		"by long DNS name":  {from: "shop/client", to: "web.shop.svc.cluster.local:http", node: "node-a"},
		"by name alone":     {from: "client", to: "web", node: "node-a"},
		"by ClusterIP":      {from: "10.244.1.9", to: "10.96.0.20:80", node: "node-a"},
		"port and protocol": {from: "shop/client", to: "web.shop:80/TCP", node: "node-a"},
		"any case":          {from: "shop/client", to: "10.96.0.20:80/Tcp", node: "node-a"},
		"other protocol":    {from: "shop/client", to: "web.shop:http/UDP", code: NoSuchPort, text: "has no port http/UDP; it has 80/TCP (http)"},
		"from a node":       {from: "node-b", to: "shop/web:80", node: "node-b"},
		"from outside":      {from: "outside", to: "web.shop:80", node: "node-a"},
		"by node port":      {from: "outside", to: "172.20.0.3:30080", node: "node-b"},
		"by node's name":    {from: "outside", to: "node-b:30080", node: "node-b"},
		"to a Pod":          {from: "shop/client", to: "pod/shop/web-2:8080", node: "node-a"},
		"to a Pod's IP":     {from: "shop/client", to: "10.244.2.2:8080", node: "node-a"},
		"outside a range":   {from: "outside", to: "shop/front:443", code: SourceNotAllowed, text: "allows only 192.0.2.0/24", node: "node-a"},
		"load balancer":     {from: "192.0.2.7", to: "shop/front:443", node: "node-b", text: "1 of 2 nodes drops the packets that arrive there (node-a)"},
		"headless":          {from: "shop/client", to: "db.shop:8080", text: "headless"},
		"policy and a Pod":  {from: "shop/client", to: "203.0.113.5:443", code: SourceNotAllowed, text: "allows only 192.0.2.0/24", node: "node-a"},
		"wrong target port": {edits: []edit{{"targetPort: 8080, nodePort: 30080", "targetPort: 8081, nodePort: 30080"}, {"ports: [{name: http, port: 8080, protocol", "ports: [{name: http, port: 8081, protocol"}}, from: "shop/client", to: "web.shop:80", code: OtherPort, text: "declares 8080/TCP, and the connection goes to 8081/TCP", node: "node-a"},
		"selector":          {edits: []edit{{"selector: {app: web}\n  ports: [{name: http", "selector: {app: wbe}\n  ports: [{name: http"}, {"endpoints:\n- {addresses: [10.244.1.2], nodeName: node-a, conditions: {ready: true}, targetRef: {kind: Pod, namespace: shop, name: web-1}}\n- {addresses: [10.244.2.2]", "endpoints: []\n# - {addresses: [10.244.2.2]"}}, from: "shop/client", to: "web.shop:80", code: SelectorMatchesNothing, text: "(app=wbe) matches no Pod; Pod web-1 has app=web", node: "node-a"},
		"no slice":          {edits: []edit{{webSlice, strings.Replace(webSlice, "service-name: web", "service-name: wbe", 1)}}, from: "shop/client", to: "web.shop:80", code: NoSlices, text: "has no EndpointSlice", node: "node-a"},
		"port name":         {edits: []edit{{"ports: [{name: http, port: 8080, protocol", "ports: [{name: web, port: 8080, protocol"}}, from: "shop/client", to: "web.shop:80", code: SliceWithoutPort, text: `no port "http"/TCP, which the Service has; they have "web"/TCP`, node: "node-a"},
		"named target port": {edits: []edit{{"targetPort: 8080, nodePort: 30080", "targetPort: htpp, nodePort: 30080"}, {"ports: [{name: http, port: 8080, protocol: TCP}]", "ports: []"}}, from: "shop/client", to: "web.shop:80", code: NoNamedPort, text: `named "htpp"; they have http (8080)`, node: "node-a"},
		"not ready":         {edits: []edit{{"podIPs: [{ip: 10.244.1.2}]\n  conditions: [{type: Ready, status: \"True\"}]", "podIPs: [{ip: 10.244.1.2}]\n  " + notReady}, {"podIPs: [{ip: 10.244.2.2}]\n  conditions: [{type: Ready, status: \"True\"}]", "podIPs: [{ip: 10.244.2.2}]\n  " + notReady}, {"ready: true, image", "ready: false, image"}, {"conditions: {ready: true}", "conditions: {ready: false}"}}, from: "shop/client", to: "web.shop:80", code: PodsNotReady, text: "web-1 (container nginx is running, but its readiness probe fails)", node: "node-a"},
		"policy Local":      {from: "outside", to: "172.20.0.2:30443", code: NoLocalEndpoints, text: "node node-a has no endpoint for it that gets new flows; there are some on node-b", node: "node-a"},
		"headless, mapped":  {edits: []edit{{"ports: [{port: 8080, targetPort: 8080}]", "ports: [{port: 80, targetPort: 8080}]"}}, from: "shop/client", to: "db.shop:80", code: Headless, text: "nothing translates port 80 to 8080"},
		"no such port":      {from: "shop/client", to: "web.shop:8080", code: NoSuchPort, text: "has no port 8080; it has 80/TCP (http)"},
		"port 0":            {from: "outside", to: "shop/front:0", code: NoSuchPort, text: "has no port 0"},
		"no port at the IP": {from: "shop/client", to: "10.96.0.20:81", code: NoSuchPort, text: "it has 80/TCP (shop/web:http)", node: "node-a"},
		"no such address":   {from: "shop/client", to: "10.96.7.7:80", code: UnknownAddress, text: "no Service and no Pod has the address", node: "node-a"},
		"no such node port": {from: "outside", to: "node-a:30081", code: UnknownAddress, text: "node ports are 30080/TCP, 30443/TCP", node: "node-a"},
		"external IP":       {edits: []edit{{"selector: {app: web}\n  ports: [{name: http", "externalIPs: [198.51.100.7]\n  selector: {app: web}\n  ports: [{name: http"}}, from: "outside", to: "198.51.100.7:80", node: "node-a"},
		"external IP off":   {edits: []edit{{"selector: {app: web}\n  ports: [{name: http", "externalIPs: [198.51.100.7]\n  selector: {app: web}\n  ports: [{name: http"}, gateOff}, from: "outside", to: "198.51.100.7:80", code: ExternalIPsIgnored, text: "AllowServiceExternalIPs is off", node: "node-a"},
		"Pod from outside":  {from: "outside", to: "10.244.1.2:8080", code: OutsideOnly, text: "is the address of a Pod"},
		"ClusterIP only":    {edits: []edit{{"  type: NodePort\n", ""}, {", nodePort: 30080", ""}}, from: "outside", to: "shop/web", code: OutsideOnly, text: "its type is ClusterIP"},
		"a Pod of slices":   {edits: []edit{{"kind: Pod\n", "kind: PodTemplate\n"}}, from: "shop/web-2", to: "web", node: "node-b"},
		"unknown Pod":       {from: "10.244.2.50", to: "10.96.0.20:80", node: "node-b"},
		"stale slice":       {edits: []edit{{"selector: {app: web}\n  ports: [{name: http", "selector: {app: wbe}\n  ports: [{name: http"}}, from: "shop/client", to: "web", text: "matches no Pod; Pod web-1 has app=web", node: "node-a"},
		"Pod of one family": {edits: []edit{{"clusterIP: 10.96.0.20\n  clusterIPs: [10.96.0.20]\n  ipFamilies: [IPv4]", "clusterIP: 10.96.0.20\n  clusterIPs: [10.96.0.20, \"fd00::20\"]\n  ipFamilyPolicy: RequireDualStack\n  ipFamilies: [IPv4, IPv6]"}}, from: "shop/client", to: "[fd00::20]:80", code: OtherFamily, text: "pod shop/client has no IPv6 address"},
		"ExternalName":      {edits: []edit{{"  type: NodePort\n  clusterIP: 10.96.0.20\n  clusterIPs: [10.96.0.20]\n  ipFamilies: [IPv4]\n", "  type: ExternalName\n  externalName: example.org\n"}, {", nodePort: 30080", ""}}, from: "shop/client", to: "web", text: "the client itself connects to example.org, without"},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := broken(t, tt.edits...).Why(Question{From: tt.from, To: tt.to})
			if err != nil {
				t.Fatal(err)
			}
			found := &Finding{}
			switch {
			case a.Cause != nil:
				found = a.Cause
			case len(a.Notes) > 0 && a.Notes[0].Code != SameBridge: // TestPath has those
				found = &a.Notes[0]
			}
			if a.Works != (tt.code == "") || a.Works != (a.Cause == nil) || tt.code != "" && found.Code != tt.code || !strings.Contains(found.Text, tt.text) {
				t.Errorf("works %v: %+v; want %s with %q", a.Works, found, tt.code, tt.text)
			}
			if tt.text == "" && found.Text != "" {
				t.Errorf("unexpected finding %+v", found)
			}
			if a.Cause != nil && a.Cause.Do == "" {
				t.Error("nothing to do about the cause")
			}
			if a.Node != tt.node {
				t.Errorf("node %q (%s), want %q", a.Node, a.NodeIs, tt.node)
			}
		})
	}
}

// TestNoNodes: of objects without Nodes, none can be named.
func TestNoNodes(t *testing.T) {
	c := New(new(manifest.Objects), servicetable.NodeConfig{})
	const want = "source: node/node-c: the objects contain no Nodes; give an address, a Pod or "
	if _, err := c.Why(Question{From: "node/node-c", To: "10.96.0.20:80"}); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestNotUnderstood: questions that name what does not exist, or are ambiguous.
func TestNotUnderstood(t *testing.T) {
	c := broken(t)
	for _, tt := range []struct{ from, to, want string }{
		{"shop/clinet", "web.shop:80", `source: there is no Pod shop/clinet (did you mean "shop/client"?)`},
		{"shop/client", "wbe.shop:80", `destination: there is no Service shop/wbe (did you mean "shop/web"?)`},
		{"shop/client", "web.shop.cluster.local", "want NAME.NAMESPACE"},
		{"shop/client", "10.96.0.20", "the port is missing"},
		{"shop/client", "web.shop:", "the port is missing after the colon"},
		{"shop/client", "node-a:99999", "want a number from 1 to 65535"},
		{"shop/client", "web.shop:80/icmp", `destination: "web.shop:80/icmp": protocol "icmp": want TCP, UDP or SCTP`},
		{"node/node-c", "web.shop", "there is no Node node-c"},
		{"fd00::1", "10.96.0.20:80", "no address of the same family"},
		{"", "web.shop", "there is no Pod"},
		{"shop/client", "", "there is no Service"},
	} {
		if _, err := c.Why(Question{From: tt.from, To: tt.to}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s to %s: %v, want %q", tt.from, tt.to, err, tt.want)
		}
	}
	const want = "the protocol is UDP, but the destination web.shop:80/TCP is TCP"
	if _, err := c.Why(Question{From: "shop/client", To: "web.shop:80/TCP", Protocol: "udp"}); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
