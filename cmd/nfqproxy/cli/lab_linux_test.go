package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/deploy/labs"
)

func TestLabList(t *testing.T) {
	t.Parallel()
	code, stdout, _ := e2etest.Run(t, nil, "lab", "list")
	if code != 0 || !strings.Contains(stdout, "kind               A KinD 1.29 cluster of three nodes\n") || strings.Count(stdout, "\n") != len(labs.Names()) {
		t.Errorf("exit code %d: %s", code, stdout)
	}
}

func TestLabInit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", "kind", dir); code != 0 {
		t.Fatal(stderr)
	}
	got, err := os.ReadFile(filepath.Join(dir, "kind.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if want, err := labs.File("kind"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("another file than the built-in one, %v", err)
	}
	// It may have been changed since.
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", "kind", dir); code != 2 || !strings.Contains(stderr, "exists") {
		t.Errorf("a second time: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", "nothing", dir); code != 2 || !strings.Contains(stderr, "dual-stack, flannel, grafana-31577, kind, kube-dns-hairpin, nodeport-30007") {
		t.Errorf("no such lab: exit code %d: %s", code, stderr)
	}
}

func TestLabUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"up", "a", "b"}, `lab up takes one lab: unexpected argument "b"`},
		{[]string{"up", "no-such-lab"}, "built-in labs: allowed-ports, dual-stack, flannel, grafana-31577, kind, kube-dns-hairpin, nodeport-30007, three-modes"},
		{[]string{"exec", "shell"}, "lab exec requires a command after the host"},
		{[]string{"ask", "shell"}, "nfqproxy lab ask needs a host and a URL, for example: nfqproxy lab ask shell http://"},
		{[]string{"ask", "--lab", "no-such-lab", "shell", "web"}, "lab no-such-lab is not running"},
		{[]string{"ask", "shell", "web", "--count", "x"}, `--count "x": want a number`},
		{[]string{"status", "-o", "xml"}, "want text, json or yaml"},
		{[]string{"status", "--lab", "no-such-lab"}, "lab no-such-lab is not running"},
		{[]string{"down", "--lab", "no-such-lab"}, "lab no-such-lab is not running"},
		{[]string{"exec", "--lab", "no-such-lab", "shell", "ls", "-l"}, "lab no-such-lab is not running"},
	} {
		if code, _, stderr := e2etest.Run(t, nil, append([]string{"lab"}, tc.args...)...); code != 2 || !strings.Contains(stderr, tc.want) {
			t.Errorf("lab %s: exit code %d: %s", strings.Join(tc.args, " "), code, stderr)
		}
	}
}
