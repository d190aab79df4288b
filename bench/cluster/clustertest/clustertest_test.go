package clustertest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
)

// verdict is a test that remembers how it ended.
type verdict struct {
	testing.TB
	skipped, failed string
}

func (v *verdict) Name() string                      { return "TestVerdict" }
func (v *verdict) Helper()                           {}
func (v *verdict) Skipf(format string, args ...any)  { v.skipped = fmt.Sprintf(format, args...) }
func (v *verdict) Fatalf(format string, args ...any) { v.failed = fmt.Sprintf(format, args...) }

func TestRequire(t *testing.T) {
	root := t.TempDir()
	inside := filepath.Join(root, "control", "deep")
	for _, dir := range []string{inside, filepath.Join(root, "bench", "peers", "bin")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "bench", "peers", "go.mod"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(t.TempDir(), "skipped")
	t.Setenv("NFQPROXY_SKIPPED", list)
	t.Chdir(inside)

	t.Setenv("CI", "")
	var got verdict
	Require(&got)
	if !strings.Contains(got.skipped, "run make peers") || got.failed != "" {
		t.Errorf("nothing built: %+v, want a skip that names the remedy", got)
	}
	if text, err := os.ReadFile(list); err != nil || !strings.Contains(string(text), "(make peers)\t") {
		t.Errorf("list of what was skipped: %q, %v", text, err)
	}

	t.Setenv("CI", "true")
	got = verdict{}
	Require(&got)
	if !strings.Contains(got.failed, "run make peers") || got.skipped != "" {
		t.Errorf("nothing built, CI: %+v, want a failure that names the remedy", got)
	}

	for _, name := range []string{cluster.Etcd, cluster.APIServer, cluster.ControllerManager, cluster.KubeProxy, cluster.Kubectl} {
		path, err := cluster.Binary(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got = verdict{}
	Require(&got)
	if got != (verdict{}) {
		t.Errorf("all built: %+v, want nothing", got)
	}

	t.Chdir(t.TempDir())
	got = verdict{}
	Require(&got)
	if !strings.Contains(got.failed, "inside the repository") {
		t.Errorf("elsewhere: %+v, want a failure", got)
	}
}
