package labs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestDoctorFirewall: doctor and why name a rule of a running lab's node that drops flows to a service. It runs before
// the parallel tests, as TestWhy.
func TestDoctorFirewall(t *testing.T) {
	for _, tool := range []string{"bash", "iptables-nft"} {
		netnstest.RequireTool(t, tool)
	}
	dir := filepath.Join(t.TempDir(), "mine")
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", "kind", dir); code != 0 {
		t.Fatal(stderr)
	}
	text := strings.Replace(e2etest.ReadFile(t, filepath.Join(dir, "kind.yaml")), "name: kind\n", "name: walled\n", 1)
	startLab(t, e2etest.WriteFile(t, "walled.yaml", []byte(text)))
	doctor := func(arguments ...string) (code int, stdout string) {
		t.Helper()
		code, stdout, stderr := e2etest.Run(t, nil, append([]string{"doctor", "--lab", "walled"}, arguments...)...)
		if stderr != "" {
			t.Errorf("doctor: %s", stderr)
		}
		return code, stdout
	}
	if code, stdout := doctor(); code != 0 {
		t.Fatalf("before: exit code %d\n%s", code, stdout)
	}
	const rule = `-A OUTPUT -d 172.20.0.4/32 -p tcp -m tcp --dport 6443 -m comment --comment "by hand" -j DROP`
	exec := []string{"lab", "exec", "--lab", "walled", "kind-worker", "--"}
	if code, _, stderr := e2etest.Run(t, nil, append(exec, "bash", "-c", "iptables-nft -w "+rule)...); code != 0 {
		t.Fatal(stderr)
	}
	const want = "NFQ063: node kind-worker drops flows to default/kubernetes:https after they were translated: rule " + rule + " (iptables-nft, table filter) matches "
	var code int
	var stdout string
	defer func() {
		if t.Failed() {
			t.Logf("exit code %d\n%s", code, stdout)
		}
	}()
	e2etest.Eventually(t, e2etest.Timeout, "nfqproxy doctor", func() bool {
		// Each connection ends while its flow is still without an answer.
		e2etest.Run(t, nil, append(exec, "bash", "-c", "exec 3<>/dev/tcp/10.96.0.1/443 & sleep 0.2; kill $!")...)
		code, stdout = doctor()
		return code == 1 && strings.Contains(stdout, "error "+want)
	})
	if !strings.HasPrefix(stdout, "1 error\n") || !strings.Contains(stdout, "look at  Node kind-worker\n") || !strings.Contains(stdout, "iptables-nft -t filter -L OUTPUT -n -v") {
		t.Error("it is not the only finding, or has no node or remedy")
	}
	if code, stdout = doctor("--ignore", "NFQ063"); code != 0 || !strings.HasPrefix(stdout, "nothing else is wrong") || !strings.Contains(stdout, "2 findings are ignored (NFQ010, NFQ063); --notes lists them") {
		t.Error("it cannot be ignored")
	}
	if code, stdout = doctor("--ignore", "NFQ063", "--notes"); code != 0 || !strings.Contains(stdout, "ignored error "+want) || !strings.Contains(stdout, "  ignored  by --ignore NFQ063\n") {
		t.Error("what is ignored is not listed")
	}
	code, stdout = doctor("-o", "json")
	var list struct {
		Findings []struct{ Code, Severity, Object, Text string }
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || code != 1 || len(list.Findings) != 1 || list.Findings[0].Code != "NFQ063" || list.Findings[0].Severity != "error" ||
		list.Findings[0].Object != "Node kind-worker" || !strings.Contains(list.Findings[0].Text, rule) {
		t.Errorf("%v: %+v", err, list)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// On the node itself, without the objects: what its daemon observes, and its rules. It is the second node.
	code, stdout, stderr := e2etest.Run(t, nil, append(exec, "bash", "-c", `exec "$0" doctor --server unix:$(echo /run/nfqproxy-lab-*/node-1.sock)`, self)...)
	if code != 1 || !strings.HasPrefix(stdout, "1 error\n") || !strings.Contains(stdout, "error "+want) {
		t.Errorf("on the node: %s", stderr)
	}
	code, stdout, _ = e2etest.Run(t, nil, "why", "--lab", "walled", "kind-worker", "kubernetes.default:443")
	if code != 1 || !strings.HasPrefix(stdout, "does not work: node kind-worker drops flows to default/kubernetes:https") {
		t.Error("why has another cause")
	}
}
