package labs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestWhy: nfqproxy why finds mistakes that are made in a running lab, and endpoints that refuse. It runs
// before the parallel tests: one of them is about the labs that run.
func TestWhy(t *testing.T) {
	netnstest.RequireTool(t, "bash")
	dir := filepath.Join(t.TempDir(), "mine")
	if code, _, stderr := e2etest.Run(t, nil, "lab", "init", "kind", dir); code != 0 {
		t.Fatal(stderr)
	}
	file := filepath.Join(dir, "kind.yaml")
	text := strings.Replace(e2etest.ReadFile(t, file), "name: kind\n", "name: why\n", 1)
	write := func(old, with string) {
		t.Helper()
		if !strings.Contains(text, old) {
			t.Fatalf("no %q in the lab", old)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(text, old, with, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("name: why\n", "name: why\n")
	startLab(t, file)
	// why waits for the answer: flows are known some time after they end.
	why := func(code int, line, source, destination string) {
		t.Helper()
		var got int
		var stdout, stderr string
		defer func() {
			if t.Failed() {
				t.Logf("exit code %d, want %d with %q\n%s%s", got, code, line, stdout, stderr)
			}
		}()
		e2etest.Eventually(t, e2etest.Timeout, "nfqproxy why "+source+" "+destination, func() bool {
			got, stdout, stderr = e2etest.Run(t, nil, "why", "--lab", "why", source, destination)
			return got == code && strings.HasPrefix(stdout, line)
		})
	}
	why(0, "works, as far as the objects show: 2 endpoints", "shell", "my-nginx-service:80")
	why(0, "works", "outside", "my-nginx-service")
	why(1, "does not work: Pod default/my-nginx-1 listens at 80/TCP, and the connection goes to 81/TCP (NFQ018)", "shell", "pod/default/my-nginx-1:81")
	why(2, "", "shel", "my-nginx-service:80")

	write("- {name: https, port: 6443, protocol: TCP}\nendpoints:", "- {name: https, port: 6444, protocol: TCP}\nendpoints:")
	e2etest.Eventually(t, e2etest.Timeout, "a refused connection", func() bool {
		code, _, _ := e2etest.Run(t, nil, "lab", "exec", "--lab", "why", "shell", "--", "bash", "-c", "echo > /dev/tcp/10.96.0.1/443")
		return code == 1
	})
	why(1, "does not work: 172.20.0.4:6444 refuses connections (1 of the last 1): nothing listens on this port (NFQ040)", "shell", "kubernetes:443")

	write("- {name: https, port: 6443, protocol: TCP}\nendpoints:", "- {name: http, port: 6443, protocol: TCP}\nendpoints:")
	why(1, `does not work: the EndpointSlices of Service default/kubernetes have no port "https"/TCP, which the Service has; they have "http"/TCP (NFQ015)`, "shell", "kubernetes:443")
}
