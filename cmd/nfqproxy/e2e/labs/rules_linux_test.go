package labs

import (
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// mixedCluster has node-a with a daemon, and node-b with another proxy. On each there is a pod to connect from: shell and
// other.
func mixedCluster(t *testing.T, proxy string, options lab.Options) *e2etest.Cluster {
	t.Helper()
	text := strings.Replace(changing, "podCIDRs: [10.244.1.0/24]", "podCIDRs: [10.244.1.0/24], proxy: "+proxy, 1)
	text = strings.Replace(text, "deployments:", "- {name: other, node: node-b, addresses: [10.244.1.9]}\ndeployments:", 1)
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	options.Arguments = []string{"-v"}
	return e2etest.Up(t, file, options)
}

// reach waits until connections from both nodes reach all pods of the deployment and no others.
func reach(t *testing.T, c *e2etest.Cluster, want int) {
	t.Helper()
	for _, from := range []string{"shell", "other"} {
		seen := make(map[string]bool)
		for end := time.Now().Add(e2etest.Timeout); len(seen) != want; {
			if time.Now().After(end) {
				t.Fatalf("connections from %s reach %v, want %d pods", from, seen, want)
			}
			clear(seen)
			for range 40 {
				conn, err := dialBriefly(c, from, "10.96.0.1:80")
				if err != nil {
					clear(seen)
					break
				}
				seen[c.Ask(conn).Pod] = true
			}
		}
	}
}

// TestKubeProxy: a node with the program kube-proxy beside one with a daemon, and both follow the changes.
func TestKubeProxy(t *testing.T) {
	t.Parallel()
	program := clustertest.RequireProgram(t, cluster.KubeProxy)
	for mode, rules := range map[string][]string{"iptables": {"iptables-save"}, "nftables": {"nft", "list", "table", "ip", "kube-proxy"}} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			netnstest.RequireTool(t, rules[0])
			c := mixedCluster(t, "kube-proxy, kubeProxyMode: "+mode, lab.Options{KubeProxy: program})
			if s := c.Status(); s.Nodes[1].Daemon.State != "kube-proxy ready" || s.Nodes[1].Daemon.PID == 0 {
				t.Errorf("status: %+v", s.Nodes[1])
			}
			reach(t, c, 2)
			if out, err := c.Host("node-b").Run("", rules[0], rules[1:]...); err != nil || !strings.Contains(out, "10.244.0.2") {
				t.Errorf("the rules are\n%s, %v", out, err)
			}
			for _, replicas := range []uint16{3, 1} {
				if _, err := c.Change(t.Context(), lab.Change{Scale: &lab.Scale{Deployment: "web", Replicas: replicas}}); err != nil {
					t.Fatal(err)
				}
				reach(t, c, int(replicas))
			}
			if err := c.ReplaceDaemon(t.Context(), "node-b"); err == nil || !strings.Contains(err.Error(), "the node has kube-proxy instead") {
				t.Errorf("a daemon takes over: %v", err)
			}
			// Without kube-proxy its rules stay; when it is back, it follows.
			if err := c.StopDaemon(t.Context(), "node-b"); err != nil {
				t.Error(err)
			}
			if s := c.Status(); s.Nodes[1].Daemon.State != "kube-proxy stopped" {
				t.Errorf("status: %+v", s.Nodes[1])
			}
			reach(t, c, 1)
			if _, err := c.Change(t.Context(), lab.Change{Scale: &lab.Scale{Deployment: "web", Replicas: 2}}); err != nil {
				t.Fatal(err)
			}
			if err := c.StartDaemon(t.Context(), "node-b"); err != nil {
				t.Fatal(err)
			}
			reach(t, c, 2)
		})
	}
}

// TestKubeProxyRules: a node with kube-proxy's rules beside one with a daemon, and both follow the changes.
func TestKubeProxyRules(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "iptables-restore")
	c := mixedCluster(t, "kube-proxy-iptables", lab.Options{})
	saved := func() string {
		t.Helper()
		out, err := c.Host("node-b").Run("", "iptables-save")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	reach(t, c, 2)
	const user = "-A FORWARD -d 192.0.2.99/32 -j DROP"
	if _, err := c.Host("node-b").Run("", "iptables", strings.Fields(user)...); err != nil {
		t.Fatal(err)
	}
	before := saved()
	jumps := strings.Count(before, "-j KUBE-SERVICES")
	if !strings.Contains(before, "KUBE-SVC-") || jumps == 0 {
		t.Errorf("rules at first:\n%s", before)
	}
	for _, replicas := range []uint16{4, 1, 2} {
		if _, err := c.Change(t.Context(), lab.Change{Scale: &lab.Scale{Deployment: "web", Replicas: replicas}}); err != nil {
			t.Fatal(err)
		}
		// Until the pods that end are gone, they are in the rules of nobody.
		reach(t, c, int(replicas))
		rules := saved()
		if n := strings.Count(rules, "\n:KUBE-SEP-"); n != int(replicas) {
			t.Errorf("with %d endpoints there are %d chains KUBE-SEP:\n%s", replicas, n, rules)
		}
		if !strings.Contains(rules, user) || strings.Count(rules, "-j KUBE-SERVICES") != jumps {
			t.Errorf("the user's rule is lost, or jumps are twice:\n%s", rules)
		}
	}
	if err := c.StartDaemon(t.Context(), "node-b"); err == nil || !strings.Contains(err.Error(), "the node has kube-proxy-iptables instead") {
		t.Errorf("a daemon starts: %v", err)
	}
	if s := c.Status(); s.Nodes[1].Daemon.State != "kube-proxy-iptables" {
		t.Errorf("status: %+v", s.Nodes[1])
	}
}
