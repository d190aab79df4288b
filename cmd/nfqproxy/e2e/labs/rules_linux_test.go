package labs

import (
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/netns/netnstest"
)

// TestKubeProxyRules: a node with kube-proxy's rules beside one with a daemon, and both follow the changes.
func TestKubeProxyRules(t *testing.T) {
	t.Parallel()
	netnstest.RequireTool(t, "iptables-restore")
	text := strings.Replace(changing, "podCIDRs: [10.244.1.0/24]", "podCIDRs: [10.244.1.0/24], proxy: kube-proxy-iptables", 1)
	text = strings.Replace(text, "deployments:", "- {name: other, node: node-b, addresses: [10.244.1.9]}\ndeployments:", 1)
	file, err := lab.Load(e2etest.WriteFile(t, "lab.yaml", []byte(text)))
	if err != nil {
		t.Fatal(err)
	}
	c := e2etest.Up(t, file.Spec, lab.Options{File: file, Arguments: []string{"-v"}})
	saved := func() string {
		t.Helper()
		out, err := c.Host("node-b").Run("", "iptables-save")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	// reach waits until connections from both nodes reach all pods of the deployment and no others.
	reach := func(want int) {
		t.Helper()
		for _, from := range []string{"shell", "other"} {
			seen := make(map[string]bool)
			for end := time.Now().Add(e2etest.Patience); len(seen) != want; {
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
	reach(2)
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
		reach(int(replicas))
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
