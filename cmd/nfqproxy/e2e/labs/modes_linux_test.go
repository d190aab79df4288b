package labs

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// modes has a node for each service proxy, of both families, and a client outside.
const modes = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: modes}
clusterCIDRs: [10.244.0.0/16, "fd00:10:244::/48"]
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}, {cidr: "fd00:192::/64", gateway: "fd00:192::1"}]
clients: [{name: outside, addresses: [192.0.2.99, "fd00:192::99"]}]
deployments: [{name: web, replicas: 2, nodes: [node-0, node-1], ports: [{name: http, port: 8080}]}]
nodes:
`

const modesServices = `---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIPs: [10.96.0.1, "fd00:10:96::1"]
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{port: 80, targetPort: http, nodePort: 30080}]
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  clusterIP: 10.96.0.2
  sessionAffinity: ClientIP
  selector: {app: web}
  ports: [{port: 80, targetPort: http}]
`

// TestModes: on nodes with each service proxy, one Service is reached from everywhere: all of its endpoints and no others, with
// the same masquerading, before and after changes.
func TestModes(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "iptables-restore")
	netnstest.RequireTool(t, "nft")
	proxies := []string{"nfqproxy", "kube-proxy-iptables", "kube-proxy-nftables"}
	program, err := cluster.Binary(cluster.KubeProxy)
	if err == nil {
		if _, err = exec.LookPath(program); err == nil {
			proxies = append(proxies, "kube-proxy, kubeProxyMode: nftables")
		}
	}
	var b strings.Builder
	b.WriteString(modes)
	for i, p := range proxies {
		fmt.Fprintf(&b, "- {name: node-%d, addresses: [192.0.2.%d, \"fd00:192::%[2]d\"], podCIDRs: [10.244.%[1]d.0/24, \"fd00:10:244:%[1]d::/64\"], proxy: %[3]s}\n", i, i+10, p)
	}
	b.WriteString("pods:\n")
	for i := range proxies {
		fmt.Fprintf(&b, "- {name: shell-%d, node: node-%[1]d, addresses: [10.244.%[1]d.99, \"fd00:10:244:%[1]d::99\"]}\n", i)
	}
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(b.String()+modesServices)))
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file, lab.Options{Arguments: []string{"-v"}, KubeProxy: program})
	c.ServeFlows()
	var before string
	for _, replicas := range []int{2, 4, 1, 3} {
		if replicas == 1 { // the lab writes all of the table again, whatever somebody has done to it
			if _, err := c.Host("node-2").Run("", "nft", "delete", "table", "ip", "kube-proxy"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Change(t.Context(), lab.Change{Scale: &lab.Scale{Deployment: "web", Replicas: uint16(replicas)}}); err != nil {
			t.Fatal(err)
		}
		for i, p := range proxies {
			shell, node, node6 := fmt.Sprintf("shell-%d", i), fmt.Sprintf("192.0.2.%d", i+10), fmt.Sprintf("fd00:192::%d", i+10)
			gateways := []string{fmt.Sprintf("10.244.%d.1", i), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::1", i)).String()}
			for _, way := range []struct {
				from, to string
				seen     []string
			}{
				{shell, "10.96.0.1:80", []string{fmt.Sprintf("10.244.%d.99", i)}},
				{shell, "[fd00:10:96::1]:80", []string{netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::99", i)).String()}},
				{fmt.Sprintf("node-%d", i), "10.96.0.1:80", []string{node, gateways[0]}},
				{"outside", node + ":30080", []string{node, gateways[0]}},
				{"outside", "[" + node6 + "]:30080", []string{node6, gateways[1]}},
			} {
				for pod, seen := range reachFrom(t, c, p, way.from, way.to, replicas) {
					if !slices.Contains(way.seen, seen) {
						t.Errorf("%s: %s sees %s of a connection from %s to %s, want %v", p, pod, seen, way.from, way.to, way.seen)
					}
				}
			}
		}
		for i := 1; i < len(proxies); i++ {
			walkOn(t, c, i, replicas)
		}
		// Clients of sticky stay with an endpoint as long as it exists.
		conn, err := dialBriefly(c, "shell-2", "10.96.0.2:80")
		if err != nil {
			t.Fatal(err)
		}
		pod := c.Ask(conn).Pod
		if before != "" && before != pod && replicas != 1 {
			t.Errorf("with %d endpoints a client of sticky reaches %s, before %s", replicas, pod, before)
		}
		before = pod
	}
}

// walkOn explains packets on a node without a daemon: the steps are those of its own rules.
func walkOn(t *testing.T, c *e2etest.Cluster, node, replicas int) {
	t.Helper()
	name, services := fmt.Sprintf("node-%d", node), "services"
	if node == 1 {
		services = "KUBE-SERVICES"
	}
	for _, q := range []flow.Question{
		{Protocol: "tcp", Source: fmt.Sprintf("pod/default/shell-%d", node), Destination: "10.96.0.1:80"},
		{Protocol: "tcp", Source: "fd00:192::99", Destination: fmt.Sprintf("[fd00:192::%d]:30080", node+10)},
	} {
		r, err := c.Observer.Explain(t.Context(), observe.Question{Question: q, Node: name})
		if err != nil {
			t.Fatal(err)
		}
		outside := q.Source == "fd00:192::99"
		in := slices.ContainsFunc(r.Steps, func(s flow.Step) bool { return s.Chain == services })
		if r.Node != name || r.Verdict != "dnat" || r.Service != "default/web:http" && r.Service != "default/web" || !in || r.Masquerade != outside || len(r.Candidates) != replicas {
			t.Errorf("%s, %d replicas: %s -> %s: %+v", name, replicas, q.Source, q.Destination, r)
		}
	}
}

// reachFrom connects until all of a number of pods have answered and no others, and returns the source address that each saw.
func reachFrom(t *testing.T, c *e2etest.Cluster, proxy, from, to string, want int) map[string]string {
	t.Helper()
	seen := make(map[string]string)
	for end := time.Now().Add(e2etest.Timeout); len(seen) != want; {
		if time.Now().After(end) {
			t.Fatalf("%s: connections from %s to %s reach %v, want %d pods", proxy, from, to, slices.Collect(maps.Keys(seen)), want)
		}
		clear(seen)
		for range 15 * want {
			var answer lab.Answer
			conn, err := dialBriefly(c, from, to)
			if err == nil {
				answer, err = e2etest.Ask(conn)
			}
			if err != nil { // of a pod that has just gone
				clear(seen)
				break
			}
			seen[answer.Pod] = clientAddress(t, answer)
		}
	}
	return seen
}

// clientAddress is the address that a pod saw.
func clientAddress(t *testing.T, a lab.Answer) string {
	t.Helper()
	host, _, err := net.SplitHostPort(a.Client)
	if err != nil {
		t.Fatal(err)
	}
	return netip.MustParseAddr(host).String()
}
