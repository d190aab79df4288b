package daemon

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// TestStatus: a running daemon is all right, for people and for scripts.
func TestStatus(t *testing.T) {
	t.Parallel()
	ns := newNode(t)
	server := "unix:" + filepath.Join(t.TempDir(), "s")
	d := e2etest.StartNfqproxy(t, ns, append(e2etest.Objects(t, ns, e2etest.Lab), "--hostname-override", "node-a", "--flow-api", server)...)
	var s observe.Status
	e2etest.Eventually(t, e2etest.Timeout, "the status to be all right", func() bool {
		code, stdout, stderr := e2etest.Run(t, ns, "status", "--server", server, "-o", "json")
		var all observe.StatusList
		if err := json.Unmarshal([]byte(stdout), &all); err != nil || len(all.Nodes) != 1 || stderr != "" {
			t.Fatalf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
		s = all.Nodes[0]
		if healthy := len(s.Problems) == 0; healthy != (code == 0) || !healthy && code != 1 {
			t.Fatalf("exit code %d with problems %+v", code, s.Problems)
		}
		return code == 0 && s.Daemon.Rules.Audited != nil
	})
	if s.Node != "node-a" || s.Daemon.ProcessID != d.PID() || s.Daemon.Table == nil || s.Daemon.Table.Services == 0 {
		t.Errorf("%+v, daemon %+v", s, s.Daemon)
	}
	if by := s.Daemon.DecidedBy; by["IPv4"] != observe.DecidedByDaemon || by["IPv6"] != observe.DecidedByDaemon {
		t.Errorf("decided by %v", by)
	}
	if r := &s.Daemon.Rules; !r.InStep || r.Compared == nil || r.Chains == 0 || r.Rules == 0 || r.Elements == 0 {
		t.Errorf("rules %+v", r)
	}
	if q := s.Daemon.Queues; len(q) != 2 || q[0].PortID == 0 || q[0].Stuck || q[0].NoService || !q[1].NoService {
		t.Errorf("queues %+v", q)
	}
	if c := &s.Daemon.Confinement; len(c.Capabilities) == 0 {
		t.Errorf("confinement %+v", c)
	}
	code, stdout, stderr := e2etest.Run(t, ns, "status", "--server", server)
	// A busy machine may delay the daemon between the two.
	if healthy := strings.HasPrefix(stdout, "node-a: healthy\n"); healthy != (code == 0) || !healthy && code != 1 || stderr != "" {
		t.Errorf("exit code %d, stdout\n%s\nstderr %q", code, stdout, stderr)
	}
}

// TestDocumentedRules: the pages have the number of rules that a daemon makes by default. ClusterIPs with an equal number of
// endpoints add two rules.
func TestDocumentedRules(t *testing.T) {
	t.Parallel()
	ns := newNode(t)
	server := "unix:" + filepath.Join(t.TempDir(), "s")
	e2etest.StartDefault(t, ns, append(e2etest.Objects(t, ns, nil), "--hostname-override", "node-a", "--cluster-cidr", "10.244.0.0/16", "--flow-api", server)...)
	_, stdout, stderr := e2etest.Run(t, ns, "status", "--server", server, "-o", "json")
	var all observe.StatusList
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || len(all.Nodes) != 1 || all.Nodes[0].Daemon == nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	r := &all.Nodes[0].Daemon.Rules
	for page, want := range map[string]string{
		"explanation/daemon.md":     fmt.Sprintf(" have %d chains and %d rules together.", r.Chains, r.Rules),
		"explanation/comparison.md": fmt.Sprintf("| kernel rules with 10,000 services of 10 endpoints | %d |", r.Rules+2),
	} {
		if !strings.Contains(e2etest.ReadFile(t, filepath.Join("../../../../docs", page)), want) {
			t.Errorf("docs/%s lacks %q", page, want)
		}
	}
}
