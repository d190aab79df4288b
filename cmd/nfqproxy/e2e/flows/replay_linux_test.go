package flows

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestReplayLog: what real daemons decided is decided the same again, and without an endpoint
// exactly the flows that could have gone there are others.
func TestReplayLog(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	for range 15 {
		for _, to := range []string{"10.96.0.20:80", "10.96.0.60:80", "[fd00:10:96::20]:80", "172.21.0.2:30080", "10.244.1.2:8080"} {
			c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, to))
		}
		for _, to := range []string{"10.96.0.20:53", "172.21.0.2:30110"} {
			c.Ask(c.Dial("shell", "udp", e2etest.AnyPort, to))
		}
		c.Ask(c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30080"))
		c.Ask(c.Dial("web-1", "tcp", e2etest.AnyPort, "10.96.0.20:80"))
		c.Ask(c.Dial("node-a", "tcp", e2etest.AnyPort, "10.96.0.20:80"))
	}
	c.Sync("shell") // also a flow that is refused

	records := c.Records()
	var log bytes.Buffer
	enc := json.NewEncoder(&log)
	kinds := make(map[string]int)
	for _, r := range records {
		if err := enc.Encode(r); err != nil {
			t.Fatal(err)
		}
		if r.Node == "node-a" {
			kinds[r.Reason]++
		}
	}
	for _, kind := range []string{"balanced", "affinity", "no-endpoints", "not-a-service"} {
		if kinds[kind] == 0 {
			t.Errorf("no flow is %s: %v", kind, kinds)
		}
	}
	name := e2etest.WriteFile(t, "flows.jsonl", log.Bytes())

	objects := e2etest.ReadFile(t, c.Objects)
	if code, differences, summary := replay(t, name, c.Objects); code != 0 || differences != "" {
		t.Errorf("exit code %d, differences\n%s%s", code, differences, summary)
	}

	const gone = "- addresses: [\"10.244.1.3\"]\n  targetRef: {kind: Pod, namespace: default, name: web-3}\n"
	before, after, found := strings.Cut(objects, gone) // the first one is that of Service web
	if !found {
		t.Fatalf("no %q in the objects", gone)
	}
	var want strings.Builder
	for i, r := range records {
		if r.Node == "node-a" && strings.HasPrefix(r.Service, "default/web:") && strings.Contains(candidatesOf(r), "10.244.1.3:") {
			want.WriteString(withoutThird(i+1, r))
		}
	}
	code, differences, summary := replay(t, name, e2etest.WriteFile(t, "objects.yaml", []byte(before+after)))
	if code != 1 || differences != want.String() || differences == "" {
		t.Errorf("exit code %d, differences\n%s\nwant\n%s\n%s", code, differences, want.String(), summary)
	}
}

// TestReplayCapture: of a capture on all interfaces of a node, where each packet is seen on both
// sides of its translation, the same flows are decided as by the daemon while it was taken.
// (What the node itself sends is seen behind the translation only.)
func TestReplayCapture(t *testing.T) {
	t.Parallel()
	c := e2etest.NewCluster(t)
	name := filepath.Join(t.TempDir(), "any.pcap")
	stop := tcpdump(c, "node-a", name)
	for range 5 {
		c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80"))
		c.Ask(c.Dial("shell", "tcp", e2etest.AnyPort, "[fd00:10:96::60]:80"))
		c.Ask(c.Dial("outside", "tcp", e2etest.AnyPort, "172.21.0.2:30080"))
		c.Ask(c.Dial("shell", "udp", e2etest.AnyPort, "10.96.0.20:53"))
		c.Ask(c.Dial("shell", "udp", e2etest.AnyPort, "172.21.0.2:30110"))
	}
	c.Sync("shell")
	// Packets are written in their order, and the last one says so.
	e2etest.Eventually(t, e2etest.Timeout, "tcpdump to write the last packet", func() bool { return strings.Contains(e2etest.ReadFile(t, name), "sync") })
	stop()

	code, out, stderr := replay(t, name, c.Objects, "-o", "json")
	if code != 0 {
		t.Fatal(stderr)
	}
	// Which endpoint it was depends on draws; all else does not.
	tell := func(r *flow.Record) string {
		return fmt.Sprint(r.Protocol, r.Source, r.Destination, r.Verdict, r.Reason, r.Service, r.Entry, r.Branch, r.Masquerade, r.MasqueradeReason, r.Local)
	}
	replayed := make(map[string]bool)
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var r flow.Record
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Service != "" {
			replayed[tell(&r)] = true
		}
	}
	live := 0
	for _, r := range c.Records() {
		if r.Node != "node-a" || r.Service == "" {
			continue
		}
		live++
		if !replayed[tell(r)] {
			t.Errorf("not so in the replay: %s", tell(r))
		}
	}
	if live != 26 || len(replayed) != live {
		t.Errorf("%d flows to services live, %d in the replay\n%s", live, len(replayed), stderr)
	}
}

// tcpdump captures on all interfaces of a host until stop is called.
func tcpdump(c *e2etest.Cluster, host, name string) (stop func()) {
	c.T.Helper()
	program, err := exec.LookPath("tcpdump")
	if err != nil {
		netnstest.Missing(c.T, "tcpdump is not installed")
	}
	if b, err := os.ReadFile("/proc/self/setgroups"); err == nil && strings.TrimSpace(string(b)) == "deny" {
		netnstest.Missing(c.T, "tcpdump sets its groups, which an ordinary user's namespace does not let it")
	}
	// Short packets, so that many have room until they are read.
	cmd := exec.CommandContext(c.T.Context(), program, "-i", "any", "-n", "-U", "--immediate-mode", "-s", "256", "-B", "8192", "-Z", "root", "-w", name)
	said, err := cmd.StderrPipe()
	if err == nil {
		err = c.Host(host).Do(cmd.Start)
	}
	if err != nil {
		c.T.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "listening on") {
	}
	return func() {
		c.T.Helper()
		if err := cmd.Process.Signal(os.Interrupt); err != nil { // it writes out what it has
			c.T.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, said)
		if err := cmd.Wait(); err != nil {
			c.T.Fatal(err)
		}
	}
}

// replay runs nfqproxy replay for node-a.
func replay(t *testing.T, log, objects string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return e2etest.Run(t, nil, append([]string{
		"replay", log, "--objects", objects, "--node", "node-a", "--node-ip", "172.21.0.2,fd00:172:21::2", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56",
	}, args...)...)
}

func candidatesOf(r *flow.Record) string {
	var list []string
	for _, c := range r.Candidates {
		list = append(list, c.Endpoint)
	}
	return strings.Join(list, " ")
}

// withoutThird are the differences of a flow that had three candidates, of which the third is
// gone.
func withoutThird(line int, r *flow.Record) string {
	var b strings.Builder
	differs := func(field, was, now string) {
		if was == "" {
			was = "none"
		}
		if now == "" {
			now = "none"
		}
		if was != now {
			fmt.Fprintf(&b, "line %d: %s %s -> %s: %s: %s, now %s\n", line, r.Protocol, r.Source, r.Destination, field, was, now)
		}
	}
	chosen := r.Candidates[int(*r.Draw*2)].Endpoint
	differs("endpoint", r.Endpoint, chosen)
	differs("candidates", candidatesOf(r), r.Candidates[0].Endpoint+" "+r.Candidates[1].Endpoint)
	// A pod that asks its own Service is masqueraded if it gets itself.
	if reason := r.MasqueradeReason; reason == "" || reason == "hairpin" {
		if e2etest.HostOf(chosen) == e2etest.HostOf(r.Source) {
			differs("masquerade", fmt.Sprint(r.Masquerade), "true")
			differs("masqueradeReason", reason, "hairpin")
		} else {
			differs("masquerade", fmt.Sprint(r.Masquerade), "false")
			differs("masqueradeReason", reason, "")
		}
	}
	return b.String()
}
