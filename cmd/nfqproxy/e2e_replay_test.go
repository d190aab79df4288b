package main

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

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

// TestReplayLog: what real daemons decided is decided the same again, and without an endpoint
// exactly the flows that could have gone there are others.
func TestReplayLog(t *testing.T) {
	c := newCluster(t)
	for range 15 {
		for _, to := range []string{"10.96.0.20:80", "10.96.0.60:80", "[fd00:10:96::20]:80", "172.21.0.2:30080", "10.244.1.2:8080"} {
			c.ask(c.dial("shell", "tcp", anyPort, to))
		}
		for _, to := range []string{"10.96.0.20:53", "172.21.0.2:30110"} {
			c.ask(c.dial("shell", "udp", anyPort, to))
		}
		c.ask(c.dial("outside", "tcp", anyPort, "172.21.0.2:30080"))
		c.ask(c.dial("web-1", "tcp", anyPort, "10.96.0.20:80"))
		c.ask(c.dial("node-a", "tcp", anyPort, "10.96.0.20:80"))
	}
	c.sync("shell") // also a flow that is refused

	c.mu.Lock()
	records := c.records[:len(c.records):len(c.records)]
	c.mu.Unlock()
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
	dir := t.TempDir()
	name := filepath.Join(dir, "flows.jsonl")
	if err := os.WriteFile(name, log.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}

	objects := mustRead(t, c.objects)
	if code, differences, summary := replayLogOf(t, name, objects); code != 0 || differences != "" {
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
	code, differences, summary := replayLogOf(t, name, before+after)
	if code != 1 || differences != want.String() || differences == "" {
		t.Errorf("exit code %d, differences\n%s\nwant\n%s\n%s", code, differences, want.String(), summary)
	}
}

// TestReplayCapture: of a capture on all interfaces of a node, where each packet is seen on both
// sides of its translation, the same flows are decided as by the daemon while it was taken.
// (What the node itself sends is seen behind the translation only.)
func TestReplayCapture(t *testing.T) {
	c := newCluster(t)
	name := filepath.Join(t.TempDir(), "any.pcap")
	stop := c.tcpdump("node-a", name)
	for range 5 {
		c.ask(c.dial("shell", "tcp", anyPort, "10.96.0.20:80"))
		c.ask(c.dial("shell", "tcp", anyPort, "[fd00:10:96::60]:80"))
		c.ask(c.dial("outside", "tcp", anyPort, "172.21.0.2:30080"))
		c.ask(c.dial("shell", "udp", anyPort, "10.96.0.20:53"))
		c.ask(c.dial("shell", "udp", anyPort, "172.21.0.2:30110"))
	}
	c.sync("shell")
	// Packets are written in their order, and the last one says so.
	eventually(t, patience, "tcpdump to write the last packet", func() bool { return strings.Contains(mustRead(t, name), "sync") })
	stop()

	var out, stderr bytes.Buffer
	if code := run(t.Context(), []string{
		"replay", name, "--objects", c.objects, "--node-name", "node-a", "--node-ip", "172.21.0.2,fd00:172:21::2", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "-o", "json",
	}, nil, &out, &stderr); code != 0 {
		t.Fatal(stderr.String())
	}
	// Which endpoint it was depends on draws; all else does not.
	tell := func(r *flow.Record) string {
		return fmt.Sprint(r.Protocol, r.Source, r.Destination, r.Verdict, r.Reason, r.Service, r.Entry, r.Branch, r.Masquerade, r.MasqueradeReason, r.Local)
	}
	replayed := make(map[string]bool)
	for d := json.NewDecoder(&out); d.More(); {
		var r flow.Record
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Service != "" {
			replayed[tell(&r)] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	live := 0
	for _, r := range c.records {
		if r.Node != "node-a" || r.Service == "" {
			continue
		}
		live++
		if !replayed[tell(r)] {
			t.Errorf("not so in the replay: %s", tell(r))
		}
	}
	if live != 26 || len(replayed) != live {
		t.Errorf("%d flows to services live, %d in the replay\n%s", live, len(replayed), stderr.String())
	}
}

// tcpdump captures on all interfaces of a host until stop is called.
func (c *cluster) tcpdump(host, name string) (stop func()) {
	c.t.Helper()
	program, err := exec.LookPath("tcpdump")
	if err != nil {
		netns.Missing(c.t, "tcpdump is not installed")
	}
	if b, err := os.ReadFile("/proc/self/setgroups"); err == nil && strings.TrimSpace(string(b)) == "deny" {
		netns.Missing(c.t, "tcpdump sets its groups, which an ordinary user's namespace does not let it")
	}
	// Short packets, so that many have room until they are read.
	cmd := exec.CommandContext(c.t.Context(), program, "-i", "any", "-n", "-U", "--immediate-mode", "-s", "256", "-B", "8192", "-Z", "root", "-w", name)
	said, err := cmd.StderrPipe()
	if err == nil {
		err = c.host(host).Do(cmd.Start)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "listening on") {
	}
	return func() {
		c.t.Helper()
		if err := cmd.Process.Signal(os.Interrupt); err != nil { // it writes out what it has
			c.t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, said)
		if err := cmd.Wait(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// replayLogOf runs the command.
func replayLogOf(t *testing.T, log, objects string) (code int, stdout, stderr string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(name, []byte(objects), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, err bytes.Buffer
	code = run(t.Context(), []string{
		"replay", log, "--objects", name, "--node-name", "node-a", "--node-ip", "172.21.0.2,fd00:172:21::2", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56",
	}, nil, &out, &err)
	return code, out.String(), err.String()
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
		if hostOf(chosen) == hostOf(r.Source) {
			differs("masquerade", fmt.Sprint(r.Masquerade), "true")
			differs("masqueradeReason", reason, "hairpin")
		} else {
			differs("masquerade", fmt.Sprint(r.Masquerade), "false")
			differs("masqueradeReason", reason, "")
		}
	}
	return b.String()
}
