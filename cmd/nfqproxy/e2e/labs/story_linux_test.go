package labs

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// TestStoryOfDrop: of a packet that a firewall rule of the second node drops, the story shows both nodes, and that there
// is no reply; why and the story name that node and the rule. It runs before the parallel tests, as TestPathsInALab.
func TestStoryOfDrop(t *testing.T) {
	netnstest.RequireTool(t, "iptables-nft")
	run := pathLab(t, "dropping")
	const rule = "-A FORWARD -d 10.244.2.2/32 -p tcp -m tcp --dport 80 -j DROP"
	run(t, append([]string{"lab", "exec", "--lab", "dropping", "kind-worker2", "--", "iptables-nft", "-w"}, strings.Fields(rule)...)...)
	// The program waits for the reply until the end of the test.
	e2etest.Start(t, nil, "lab", "exec", "--lab", "dropping", "shell", "--", "bash", "-c", "exec 3<>/dev/tcp/10.96.118.136/80")
	var stdout, stderr string
	code := 0
	e2etest.Eventually(t, e2etest.Timeout, "the cause", func() bool {
		code, stdout, stderr = e2etest.Run(t, nil, "why", "--lab", "dropping", "shell", "my-nginx-service:80")
		return code != 0
	})
	want := "does not work: node kind-worker2 drops flows to default/my-nginx-service after they were translated: rule " + rule + " (iptables-nft, table filter) "
	if code != 1 || !strings.HasPrefix(stdout, want) || !strings.Contains(stdout, "(NFQ063)\n") {
		t.Errorf("why: exit code %d\n%s%s\nwant %s", code, stdout, stderr, want)
	}
	r := latest(t, run, "dropping", "10.96.118.136:80")
	if len(r.Others) != 1 {
		t.Errorf("%d records of other nodes, want that of kind-worker2", len(r.Others))
	}
	for _, o := range append([]*flow.Record{&r}, r.Others...) {
		story := run(t, "flows", o.ID, "--lab", "dropping")
		for _, want := range []string{
			"\nthrough kind-worker, then kind-worker2\n", "─▼─ kind-worker2, ", "reply path (state unanswered)\n", "1. no reply\n",
			"\n  dropped   " + strings.TrimPrefix(want, "does not work: "),
		} {
			if !strings.Contains(story, want) {
				t.Errorf("the story of %s lacks %q:\n%s", o.Node, want, story)
			}
		}
	}
}

// TestStoryWithoutNode: a node whose daemon has ended is named in the story of a packet that passes it, and in lists.
// It runs before the parallel tests, as TestPathsInALab.
func TestStoryWithoutNode(t *testing.T) {
	run := pathLab(t, "without")
	var status lab.Status
	if err := json.Unmarshal([]byte(run(t, "lab", "status", "without", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for _, n := range status.Nodes {
		if n.Name == "kind-worker2" {
			pid = n.Daemon.PID
		}
	}
	run(t, "lab", "exec", "--lab", "without", "kind-worker2", "--", "bash", "-c", fmt.Sprint("kill -KILL ", pid))
	e2etest.Eventually(t, e2etest.Timeout, "the end of the daemon", func() bool {
		return regexp.MustCompile(`(?m)^kind-worker2 .* dead$`).MatchString(run(t, "lab", "status", "without"))
	})
	run(t, "lab", "exec", "--lab", "without", "shell", "--", "bash", "-c", "exec 3<>/dev/tcp/10.96.118.136/80")
	r := latest(t, run, "without", "10.96.118.136:80")
	story := run(t, "flows", r.ID, "--lab", "without")
	for _, want := range []string{"\nthrough kind-worker, then kind-worker2\n", "┄▼┄ kind-worker2\n  ┆ not observed: its decision is not known\n"} {
		if !strings.Contains(story, want) {
			t.Errorf("the story lacks %q:\n%s", want, story)
		}
	}
	if _, _, stderr := e2etest.Run(t, nil, "flows", "--lab", "without"); !strings.Contains(stderr, "node kind-worker2 is unreachable: no records from it") {
		t.Errorf("the list does not name the node: %s", stderr)
	}
}

// latest waits for a flow to an address in a running lab.
func latest(t *testing.T, run func(*testing.T, ...string) string, name, destination string) (r flow.Record) {
	t.Helper()
	e2etest.Eventually(t, e2etest.Timeout, "a flow to "+destination, func() bool {
		out := run(t, "flows", "--lab", name, "--destination", destination, "--verdict", "dnat", "--limit", "1", "--join", "-o", "jsonl")
		if out == "" {
			return false
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return true
	})
	return r
}
