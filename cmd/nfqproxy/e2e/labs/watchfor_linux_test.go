package labs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/bundle"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestWatchForInALab: the next flow of a running lab that fails becomes a bundle, with the packets that its node saw, and
// doctor names the endpoint. It runs before the parallel tests, as TestWhy.
func TestWatchForInALab(t *testing.T) {
	for _, tool := range []string{"bash", "iptables-save", "nft"} {
		netnstest.RequireTool(t, tool)
	}
	dir := filepath.Join(t.TempDir(), "mine")
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", "kind", dir); code != 0 {
		t.Fatal(stderr)
	}
	text := e2etest.ReadFile(t, filepath.Join(dir, "kind.yaml"))
	const port = "- {name: https, port: 6443, protocol: TCP}\nendpoints:"
	if !strings.Contains(text, port) {
		t.Fatalf("no %q in the lab", port)
	}
	text = strings.Replace(strings.Replace(text, "name: kind\n", "name: watched\n", 1), port, strings.Replace(port, "6443", "6444", 1), 1)
	startLab(t, e2etest.WriteFile(t, "watched.yaml", []byte(text)))

	file := filepath.Join(t.TempDir(), "flow.tgz")
	type result struct {
		code           int
		stdout, stderr string
	}
	watched := make(chan result, 1)
	go func() {
		code, stdout, stderr := e2etest.Run(t, nil, "watch-for", "--lab", "watched", "--service", "kubernetes", "--capture", "2s", "--timeout", e2etest.Timeout.String(), "--write", file)
		watched <- result{code, stdout, stderr}
	}()
	// Connections go on until one of them was seen: watch-for begins some time after its start.
	var r result
	e2etest.Eventually(t, e2etest.Timeout, "nfqproxy watch-for", func() bool {
		e2etest.Run(t, nil, "lab", "exec", "--lab", "watched", "shell", "--", "bash", "-c", "echo > /dev/tcp/10.96.0.1/443")
		select {
		case r = <-watched:
			return true
		default:
			return false
		}
	})
	if r.code != 0 || !strings.Contains(r.stdout, "refused TCP default/shell:") || !strings.Contains(r.stdout, "wrote "+file) {
		t.Fatalf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	code, stdout, stderr := e2etest.Run(t, nil, "show", file, "--utc")
	if code != 0 {
		t.Fatal(stderr)
	}
	for _, want := range []string{
		"decided on node kind-", "service default/kubernetes:https: ", "10.96.0.1:443", "TCP 172.20.0.4:6444 -> ", " RST ACK", "connection entries of the client and the service: ",
		"iptables-nft.rules", bundle.AddrFile, bundle.NFTablesFile, bundle.TablesFile, bundle.StatusFile,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the bundle shows no %q", want)
		}
	}
	for _, missing := range []string{"missing: packets", "missing: connection entries", "missing: the node's rules"} {
		if strings.Contains(stdout, missing) {
			t.Errorf("the bundle says %q", missing)
		}
	}
	if t.Failed() {
		t.Log(stdout)
	}
	if code, rules, stderr := e2etest.Run(t, nil, "show", file, "--file", bundle.NFTablesFile); code != 0 || !strings.Contains(rules, "table ip nfqproxy") {
		t.Errorf("exit code %d, rules\n%s%s", code, rules, stderr)
	}
	if code, _, stderr := e2etest.Run(t, nil, "watch-for", "--lab", "watched", "--write", file); code != 2 || !strings.Contains(stderr, " exists: remove it") {
		t.Errorf("a file that exists: exit code %d, %s", code, stderr)
	}

	e2etest.Eventually(t, e2etest.Timeout, "nfqproxy doctor", func() bool {
		code, stdout, _ := e2etest.Run(t, nil, "doctor", "--lab", "watched")
		return code == 1 && strings.Contains(stdout, "error NFQ040: 172.20.0.4:6444 refuses connections")
	})
}
