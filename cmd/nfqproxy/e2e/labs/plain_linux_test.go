package labs

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// startCopy starts a copy of a built-in lab under another name.
func startCopy(t *testing.T, name, as string) (run func(args ...string) (code int, stdout, stderr string)) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mine")
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", name, dir); code != 0 {
		t.Fatal(stderr)
	}
	text := strings.Replace(e2etest.ReadFile(t, filepath.Join(dir, name+".yaml")), "name: "+name+"\n", "name: "+as+"\n", 1)
	startLab(t, e2etest.WriteFile(t, as+".yaml", []byte(text)))
	return func(args ...string) (int, string, string) {
		return e2etest.Run(t, nil, append(args, "--lab", as)...)
	}
}

// TestFirewallWithoutDaemon: on a node with kube-proxy's rules a firewall breaks one of two Services. doctor and why name the
// rule, which the page shows as the end of the way, and are silent without it. It runs before the parallel tests, as TestWhy.
func TestFirewallWithoutDaemon(t *testing.T) {
	for _, tool := range []string{"bash", "iptables-restore", "nft"} {
		netnstest.RequireTool(t, tool)
	}
	run := startCopy(t, "allowed-ports", "allowed")
	connects := func(to string) bool {
		code, _, _ := e2etest.Run(t, nil, "lab", "exec", "--lab", "allowed", "shell-b", "--", "timeout", "1", "bash", "-c", "echo > /dev/tcp/"+to)
		return code == 0
	}
	if !connects("10.96.40.40/80") || connects("10.96.40.41/9000") {
		t.Error("shell-b does not reach web, or reaches metrics")
	}
	const rule = `drop comment "all other ports"`
	code, stdout, stderr := run("doctor")
	if code != 1 || !strings.HasPrefix(stdout, "1 error\n") || !strings.Contains(stdout, "error NFQ062: on node node-b, a rule that is not kube-proxy's (table inet site: counter packets ") ||
		!strings.Contains(stdout, rule+") drops connections from pods of this node to default/metrics:http, such as 10.244.1.") {
		t.Errorf("doctor: exit code %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = run("why", "shell-b", "metrics:9000")
	if code != 1 || !strings.HasPrefix(stdout, "does not work: node node-b drops the connection: rule counter packets ") || !strings.Contains(stdout, rule+" (table inet site, chain forward, handle ") {
		t.Errorf("why: exit code %d\n%s%s", code, stdout, stderr)
	}
	for _, q := range [][]string{{"why", "shell-b", "web:80"}, {"why", "shell-a", "metrics:9000"}} {
		if code, stdout, stderr = run(q...); code != 0 {
			t.Errorf("%s: exit code %d\n%s%s", q, code, stdout, stderr)
		}
	}
	api, err := lab.FlowAPIOf("allowed")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("page", func(t *testing.T) {
		p := webtest.Open(t, api.URL)
		p.GoTo("#/explain?protocol=TCP&node=node-b&source=pod/default/shell-b&destination=10.96.40.41:9000")
		p.WaitFor("the rule that drops", `!!document.querySelector('[data-chain=forward] .rule.of-refuse')`)
		p.WaitFor("the table of each chain", `document.querySelector('[data-chain=forward]').textContent.includes('inet site')`)
		p.WaitFor("the share of the endpoint", `[...document.querySelectorAll('.rule')].some(x => x.ariaLabel.startsWith('50%: the destination becomes 10.244.'))`)
		p.WaitFor("the element", `[...document.querySelectorAll('.rule')].some(x => x.ariaLabel.includes('10.96.40.41 . tcp . 9000 of @service-ips'))`)
		p.Click("[data-chain=forward] .rule.of-refuse")
		p.WaitFor("its handle", `/ drop comment "all other ports" # handle \d+/.test(document.querySelector('[data-chain=forward]').textContent.replaceAll('\u00a0', ' '))`)
	})
	if code, _, stderr := e2etest.Run(t, nil, "lab", "exec", "--lab", "allowed", "node-b", "--", "nft", "add", "element", "inet", "site", "services", "{ 9090 }"); code != 0 {
		t.Fatal(stderr)
	}
	if !connects("10.96.40.41/9000") {
		t.Error("shell-b does not reach metrics with its port allowed")
	}
	for _, q := range [][]string{{"doctor"}, {"why", "shell-b", "metrics:9000"}} {
		if code, stdout, stderr = run(q...); code != 0 {
			t.Errorf("%s with the port allowed: exit code %d\n%s%s", q, code, stdout, stderr)
		}
	}
}

// TestNodesWithoutDaemon: commands and the page say of nodes with kube-proxy's rules that nobody records their flows, and not that
// something is wrong with them. It runs before the parallel tests, as TestWhy.
func TestNodesWithoutDaemon(t *testing.T) {
	for _, tool := range []string{"iptables-restore", "nft"} {
		netnstest.RequireTool(t, tool)
	}
	run := startCopy(t, "three-modes", "three")
	for _, shell := range []string{"shell-iptables", "shell-nftables", "shell-nfqproxy"} {
		if code, stdout, stderr := e2etest.Run(t, nil, "lab", "ask", "--lab", "three", shell, "http://10.96.30.30/"); code != 0 {
			t.Fatal(stdout, stderr)
		}
	}
	code, stdout, _ := run("status")
	if code != 0 || !strings.Contains(stdout, "node-nftables: no daemon: the rules of kube-proxy's nftables mode\n") || !strings.HasSuffix(stdout, "2 of 3 nodes have no daemon; no daemon has a problem.\n") {
		t.Errorf("status: exit code %d\n%s", code, stdout)
	}
	_, stdout, _ = run("status", "-o", "json")
	var status observe.StatusList
	if err := json.Unmarshal([]byte(stdout), &status); err != nil || len(status.Nodes) != 3 || status.Nodes[0].Proxy != "the rules of kube-proxy's iptables mode" || len(status.Nodes[0].Problems) > 0 {
		t.Errorf("%v: %+v", err, status)
	}
	if code, stdout, stderr := run("doctor"); code != 0 {
		t.Errorf("doctor: exit code %d\n%s%s", code, stdout, stderr)
	}
	e2etest.Eventually(t, e2etest.Timeout, "the flow of the node with a daemon, and no other", func() bool {
		code, stdout, stderr := run("flows")
		return code == 0 && strings.Count(stdout, "default/web:http") == 1 && strings.Contains(stdout, "shell-nfqproxy") && strings.Contains(stderr, "node node-iptables has no daemon: its flows are not recorded\n")
	})
	code, stdout, stderr := run("flows", "--node", "node-nftables")
	if code != 0 || stdout != "" && !strings.Contains(stdout, "No flows found") || !strings.Contains(stderr, "node node-nftables has no daemon: its flows are not recorded\n") {
		t.Errorf("flows --node: exit code %d\n%s%s", code, stdout, stderr)
	}
	api, err := lab.FlowAPIOf("three")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("page", func(t *testing.T) {
		p := webtest.Open(t, api.URL)
		for _, hash := range []string{"#/overview", "#/map", "#/flows", "#/services", "#/services/default/web", "#/why?from=shell-nftables&to=web:80", "#/explain", "#/lab"} {
			p.GoTo(hash)
			p.WaitFor(hash, "document.getElementById('silent').hidden && document.getElementById('plain').offsetParent && document.getElementById('plain').textContent.includes('their flows are not recorded')")
		}
		p.GoTo("#/overview")
		p.WaitFor("the nodes", "[...document.querySelectorAll('.node-list > li')].filter(x => x.textContent.includes('no daemon') && !x.querySelector('[data-tone=bad]')).length === 2")
	})
}
