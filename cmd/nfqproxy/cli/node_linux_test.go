package cli

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/collect"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// savedNode is a node with rules of kube-proxy in one back end of iptables, others in the other one, an ipset, an own table of
// nftables, a routing rule, and connections.
func savedNode(t *testing.T) *netns.Namespace {
	t.Helper()
	netnstest.Require(t)
	for _, tool := range []string{"iptables-legacy", "iptables-nft-restore", "nft", "ipset", "conntrack", "ip"} {
		netnstest.RequireTool(t, tool)
	}
	node, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	other, err := netns.New("other")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(node.Close(), other.Close()); err != nil {
			t.Error(err)
		}
	})
	rules, err := os.ReadFile("../../../datapath/paper/iptables/testdata/kind-1.29-worker1-after.rules")
	if err != nil {
		t.Fatal(err)
	}
	run := func(input, program string, args ...string) {
		t.Helper()
		if _, err := node.Run(input, program, args...); err != nil {
			t.Fatal(err)
		}
	}
	err = errors.Join(
		node.AddVeth("eth0", other, "node"), node.AddVeth("cni0", other, "pods"),
		node.AddAddress("eth0", netip.MustParsePrefix("172.20.0.2/16")), node.AddAddress("cni0", netip.MustParsePrefix("10.244.1.1/24")),
		node.AddAddress("eth0", netip.MustParsePrefix("fd20::2/64")),
		node.SetSysctl("net.ipv4.ip_forward", "1"), node.SetSysctl("net.ipv4.conf.all.route_localnet", "0"),
	)
	if err != nil {
		t.Fatal(err)
	}
	run("", "ip", "route", "add", "10.244.0.0/24", "via", "172.20.0.4")
	run("", "ip", "route", "add", "10.244.2.0/24", "via", "172.20.0.3")
	run("", "ip", "route", "add", "default", "via", "172.20.0.1")
	run("", "ip", "rule", "add", "fwmark", "0x200/0xf00", "lookup", "100")
	run("", "ip", "route", "add", "local", "default", "dev", "lo", "table", "100")
	run("", "ipset", "create", "blocked", "hash:ip")
	run("", "ipset", "add", "blocked", "192.0.2.66")
	run(string(rules), "iptables-nft-restore")
	run("", "iptables-nft", "-I", "FORWARD", "-m", "set", "--match-set", "blocked", "src", "-j", "DROP")
	run("", "iptables-legacy", "-A", "INPUT", "-p", "tcp", "--dport", "9100", "-j", "DROP")
	run("", "nft", "add table inet firewall; add chain inet firewall forward { type filter hook forward priority 10; }")
	run("", "conntrack", "-I", "-p", "udp", "-s", "10.244.1.2", "-d", "10.96.0.10", "--sport", "4000", "--dport", "53", "-r", "10.244.0.2", "-q", "10.244.1.2", "--reply-port-src", "53", "--reply-port-dst", "4000", "-t", "60")
	return node
}

// TestNode runs the script on a node, and asks about what it collected: as an archive, as a directory, and with
// pseudonyms.
func TestNode(t *testing.T) {
	node := savedNode(t)
	dir := t.TempDir()
	archive, directory := filepath.Join(dir, "node.tar.gz"), filepath.Join(dir, "node")
	for _, out := range []string{archive, directory} {
		if text, err := node.Run("", "sh", "-c", collect.Script, "collect.sh", out); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	ask := func(code int, args ...string) string {
		t.Helper()
		got, stdout, stderr := e2etest.Run(t, nil, args...)
		if got != code {
			t.Fatalf("%q: exit code %d, want %d\n%s%s", args, got, code, stdout, stderr)
		}
		return stdout + stderr
	}
	has := func(text string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
	for _, path := range []string{archive, directory} {
		// The set, the routes and the addresses are the node's: nothing is guessed but the device, which the routes show.
		text := ask(0, "trace", "--node", path, "--protocol", "tcp", "--source", "192.0.2.66", "--destination", "172.20.0.2:30080")
		has(text, "dropped by line", "iptables-nft.rules", "the packet arrives on eth0, which leads to 192.0.2.66")
		if n := strings.Count(text, "\n  - "); n != 1 {
			t.Errorf("%d guesses:\n%s", n, text)
		}
		has(ask(0, "trace", "--node", path, "--protocol", "tcp", "--source", "10.244.1.2", "--destination", "10.96.118.136:80"),
			"sent by eth0: 10.244.1.2:40000 -> 10.244.2.2:80", "10.244.1.1 (port 1024-65535) -> 10.244.1.2:80")
		// Both back ends, and route_localnet as the node has it, whatever kube-proxy's rules are.
		has(ask(0, "trace", "--node", path, "--protocol", "tcp", "--source", "192.0.2.7", "--destination", "172.20.0.2:9100"), "iptables-legacy.rules")
		has(ask(0, "trace", "--node", path, "--protocol", "tcp", "--local", "--destination", "127.0.0.1:30080"), "route_localnet")
		has(ask(0, "services", "--node", path), "default/my-nginx-service", "iptables-nft.rules: kube-proxy 1.25 or later")
		has(ask(1, "doctor", "--node", path), "1 error\n", "127.0.0.1 cannot leave the host while route_localnet is 0", "a pod of this node (10.244.1.99, by cni0)", "nftables.rules")
		has(ask(0, "show", path), "conntrack4.txt", "addr.json")
		has(ask(0, "show", path, "--file", "conntrack4.txt"), "src=10.244.1.2 dst=10.96.0.10")
		has(ask(0, "trace", "--node", path, "--protocol", "tcp", "--source", "fd20::9", "--destination", "[fd20::2]:80"), "delivered on the host itself")
	}
	// A key of our own: with some, a pseudonym is an address of the node.
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte(strings.Repeat("ab", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	redacted := filepath.Join(dir, "redacted.tgz")
	ask(0, "collect", "--redact", archive, "--write", redacted, "--key-file", filepath.Join(dir, "key"))
	ask(0, "collect", "--redact", archive, "--write", filepath.Join(dir, "again.tgz"), "--key-file", filepath.Join(dir, "key"))
	text := ask(0, "services", "--node", redacted)
	has(text, "default/my-nginx-service")
	if strings.Contains(text, "problem") {
		t.Errorf("pseudonyms look like problems:\n%s", text)
	}
	if again := ask(0, "services", "--node", filepath.Join(dir, "again.tgz")); again != strings.ReplaceAll(text, "redacted.tgz", "again.tgz") {
		t.Errorf("the same key, and other pseudonyms:\n%s%s", text, again)
	}
	has(ask(1, "doctor", "--node", redacted), "1 error\n", "route_localnet")
	ask(0, "show", redacted, "--extract", filepath.Join(dir, "extracted"))
	notRedacted(t, filepath.Join(dir, "extracted"))
	has(ask(0, "services", "--node", filepath.Join(dir, "extracted")), "default/my-nginx-service")
}

// notRedacted finds addresses of the node in a bundle with pseudonyms.
func notRedacted(t *testing.T, dir string) {
	t.Helper()
	own := regexp.MustCompile(`\b(172\.20\.0\.\d|10\.244\.\d+\.\d+|10\.96\.\d+\.\d+|192\.0\.2\.66|fd20::2|ULMINKU752SDK7IQ)\b`)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if at := own.FindString(string(text)); at != "" {
			t.Errorf("%s has %s", e.Name(), at)
		}
	}
}

// TestScript: the script is short enough to be read, and says what it cannot collect.
func TestScript(t *testing.T) {
	netnstest.Require(t)
	if n := strings.Count(collect.Script, "\n"); n >= 60 {
		t.Errorf("the script has %d lines, want less than 60", n)
	}
	node, err := netns.New("node")
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	// Only what a small image has.
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"uname", "tr", "mktemp", "rm", "mkdir", "head", "grep", "sed", "readlink", "date", "cat"} {
		for _, from := range []string{"/usr/bin/", "/bin/"} {
			if _, err := os.Stat(from + program); err == nil {
				_ = os.Symlink(from+program, filepath.Join(bin, program))
			}
		}
	}
	script := regexp.MustCompile(`PATH="[^"]*"`).ReplaceAllString(collect.Script, `PATH="`+bin+`"`)
	out := filepath.Join(dir, "node")
	if text, err := node.Run(script, "sh", "-s", "--", out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	code, stdout, stderr := e2etest.Run(t, nil, "show", out)
	if code != 0 || !strings.Contains(stdout, "sysctls.txt") {
		t.Errorf("exit code %d:\n%s%s", code, stdout, stderr)
	}
	for _, missing := range []string{"iptables-nft-save -c: not installed", "nft -a list ruleset: not installed", "conntrack -S: not installed", "ip -j addr: not installed"} {
		if !strings.Contains(stdout, "missing: "+missing) {
			t.Errorf("no %q in\n%s", missing, stdout)
		}
	}
	if code, _, stderr := e2etest.Run(t, nil, "services", "--node", out); code != 2 || !strings.Contains(stderr, "has no rules: iptables-legacy-save -c: not installed") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
