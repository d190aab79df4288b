package flows

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// observedLab has a node with each mode of kube-proxy, which nfqproxyd observes, and a client outside.
const observedLab = `apiVersion: nfqproxy.io/v1alpha1
kind: Lab
metadata: {name: observed}
clusterCIDRs: [10.244.0.0/16]
networks: [{cidr: 192.0.2.0/24, gateway: 192.0.2.1}]
clients: [{name: outside, addresses: [192.0.2.99]}]
deployments: [{name: web, replicas: 3, nodes: [node-0, node-1], ports: [{name: http, port: 8080}]}]
nodes:
- {name: node-0, addresses: [192.0.2.10], podCIDRs: [10.244.0.0/24], proxy: kube-proxy, observe: true}
- {name: node-1, addresses: [192.0.2.11], podCIDRs: [10.244.1.0/24], proxy: kube-proxy, kubeProxyMode: nftables, observe: true}
pods:
- {name: shell-0, node: node-0, addresses: [10.244.0.99]}
- {name: shell-1, node: node-1, addresses: [10.244.1.99]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: 10.96.0.1
  selector: {app: web}
  ports: [{port: 80, targetPort: http, nodePort: 30080}]
`

// state is what a proxy leaves on a node, without counters.
func state(t *testing.T, c *e2etest.Cluster, node string) string {
	t.Helper()
	var b strings.Builder
	for _, command := range [][]string{{"nft", "-s", "list", "ruleset"}, {"iptables-save"}, {"ip6tables-save"}, {"sysctl", "-a", "-r", "^net[.]"}} {
		out, err := c.Host(node).Run("", command[0], command[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(out)
	}
	// The counters of base chains, the time, and what the kernel counts itself.
	return regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]|^net\..*(nf_conntrack_count|\.random|udp_mem|tcp_mem).*\n`).ReplaceAllString(b.String(), "")
}

// observedRate is how many connections a second TestObserve makes at most: this process reads all their records besides.
const observedRate = 1000

var observedConnections = flag.Int("observe.connections", 100, "how many connections TestObserve makes on each of four ways")

// TestObserve: beside each mode of kube-proxy, the records of an observing daemon agree with what the servers themselves
// noted, and nothing on the node is changed by it.
func TestObserve(t *testing.T) {
	for _, tool := range []string{"iptables-save", "nft", "sysctl"} {
		netnstest.RequireTool(t, tool)
	}
	program := clustertest.RequireProgram(t, cluster.KubeProxy)
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(observedLab)))
	if err != nil {
		t.Fatal(err)
	}
	nodes := []string{"node-0", "node-1"}
	c := e2etest.Up(t, file, lab.Options{KubeProxy: program, NoDaemons: true, ObserverArguments: []string{"--accounting=false"}})
	before := make(map[string]string)
	for _, node := range nodes {
		c.Must(c.StartDaemon(t.Context(), node))
		// It is ready with the rules of one family.
		e2etest.Eventually(t, e2etest.Timeout, "kube-proxy has written the rules of both families", func() bool {
			now := state(t, c, node)
			return strings.Count(now, "--dst-type LOCAL -j KUBE-NODEPORTS") == 2 || strings.Count(now, "chain services {") == 2
		})
		before[node] = state(t, c, node) // what the first command listed may have been older than what the last one did
		c.Must(c.StartObserver(t.Context(), node))
	}

	type way struct{ node, from, to, proxy string }
	type key struct{ node, source string }
	answers := make(map[key][]lab.Answer) // a source port may come again, in the order of the connections
	ways := []way{
		{"node-0", "shell-0", "10.96.0.1:80", "kube-proxy (iptables)"}, {"node-1", "shell-1", "10.96.0.1:80", "kube-proxy (nftables)"},
		{"node-0", "outside", "192.0.2.10:30080", "kube-proxy (iptables)"}, {"node-1", "outside", "192.0.2.11:30080", "kube-proxy (nftables)"},
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, w := range ways {
		asking.Go(func() {
			pace := time.NewTicker(time.Second / (observedRate / 4))
			defer pace.Stop()
			for range *observedConnections {
				<-pace.C
				conn, err := c.TryDial(w.from, "tcp", netip.AddrPort{}, w.to)
				if err != nil {
					t.Error(err)
					return
				}
				answer, err := e2etest.Ask(conn)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				k := key{w.node, conn.LocalAddr().String()}
				answers[k] = append(answers[k], answer)
				mu.Unlock()
				_ = conn.Close()
			}
		})
	}
	asking.Wait()
	// An endpoint whose socket of an earlier connection is in TIME_WAIT may not take one from the same port. The client answers
	// with a RST and sends its SYN again, which makes a new entry: kube-proxy has selected an endpoint twice.
	refused := resets(t, c, "shell-0") + resets(t, c, "shell-1") + resets(t, c, "outside")
	resent := refused
	want := len(ways)**observedConnections + refused
	proxies := map[string]string{"node-0": ways[0].proxy, "node-1": ways[1].proxy}
	ofService := func(r *flow.Record) bool { return r.Service != "" }
	t.Cleanup(func() {
		if n := c.Count(ofService); n != want {
			t.Logf("%d of %d records came", n, want)
		}
	})
	c.WaitRecords(want, "records of all connections", ofService)
	records := 0
	var answered []string                            // the IDs
	for _, r := range slices.Backward(c.Records()) { // of several of a port, the last one is the one that was taken
		if r.Service == "" {
			continue
		}
		records++
		if r.Service != "default/web" || r.Verdict != "dnat" || r.Reason != "service-proxy" || r.Proxy != proxies[r.Node] || len(r.Candidates) != 3 || r.Outdated != 0 {
			t.Errorf("record %+v", r)
		}
		k := key{r.Node, r.Source}
		last := len(answers[k]) - 1
		if last < 0 || r.Endpoint != answers[k][last].Local {
			refused--
			continue
		}
		a := answers[k][last]
		answers[k] = answers[k][:last]
		answered = append(answered, r.ID)
		if r.Pod != a.Pod || r.Masquerade != (r.Source != a.Client) {
			t.Errorf("record %+v, and the server's answer is %+v", r, a)
		}
	}
	if records != want || refused != 0 {
		t.Errorf("%d records, want %d; %d more of connections that no endpoint took than clients have sent RSTs", records, want, -refused)
	}

	c.ServeFlows()
	client, err := remote.NewClient(c.FlowAPI.URL, remote.ClientOptions{})
	c.Must(err)
	newest, incomplete, refusals := answered[:min(len(answered), 1000)], 0, 0 // the daemons remember so many
	var r *flow.Record
	t.Cleanup(func() {
		if t.Failed() && r != nil {
			t.Logf("the last flow is %+v, and its life %+v", r, r.Life)
		}
	})
	for _, id := range newest {
		e2etest.Eventually(t, e2etest.Timeout, "the end of the flow "+id, func() bool {
			r, err = client.Flow(t.Context(), id)
			c.Must(err)
			return r.Life.State == flow.Closed || r.Life.State == flow.Refused
		})
		if r.Life.State == flow.Refused { // it has the port and the endpoint of an earlier connection, which it was taken for
			refusals++
		}
		if r.Life.Incomplete {
			incomplete++
			t.Logf("incomplete: %+v", r.Life)
		}
	}
	if refusals > resent {
		t.Errorf("%d flows were refused, and clients have sent %d RSTs", refusals, resent)
	}
	// Of a thousand flows one may be known in part, if its record says so.
	if incomplete > len(newest)/1000 {
		t.Errorf("the records of %d of %d flows are incomplete", incomplete, len(newest))
	}

	for _, node := range nodes {
		if during := state(t, c, node); during != before[node] {
			t.Errorf("%s is changed by the observer:\n%s", node, firstDifference(before[node], during))
		}
		c.Must(c.StopObserver(t.Context(), node))
		if after := state(t, c, node); after != before[node] {
			t.Errorf("%s is changed after the observer:\n%s", node, firstDifference(before[node], after))
		}
	}
}

// resets is how many RSTs a host has sent.
func resets(t *testing.T, c *e2etest.Cluster, host string) (n int) {
	t.Helper()
	c.Must(c.Host(host).Do(func() error {
		snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var lines [][]string // of the names, and of the values
		for line := range strings.Lines(string(snmp)) {
			if strings.HasPrefix(line, "Tcp:") {
				lines = append(lines, strings.Fields(line))
			}
		}
		n, err = strconv.Atoi(lines[1][slices.Index(lines[0], "OutRsts")])
		return err
	}))
	return n
}

// firstDifference are the first lines that differ.
func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("before %q\nnow    %q", x[i], y[i])
		}
	}
	return fmt.Sprintf("%d lines before, %d now", len(x), len(y))
}
