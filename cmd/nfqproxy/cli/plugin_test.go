package cli

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

// TestPlugin: by the name of a kubectl plugin, the commands observe the cluster unless a flag selects another
// source, and their help has that name.
func TestPlugin(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config") // missing
	run := func(args ...string) string {
		cmd := e2etest.Command(args...)
		cmd.Args[0] = filepath.Join("/opt", pluginName)
		cmd.Env = append(cmd.Env, "KUBECONFIG="+config, "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
		return string(out)
	}
	const none = "no API server configured"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"flows"}, none},
		{[]string{"status"}, none},
		{[]string{"web", "--no-open"}, none},
		{[]string{"why", "a", "b"}, none},
		{[]string{"doctor"}, none},
		{[]string{"watch-for"}, none},
		{[]string{"flows", "--server", "unix:/run/none/x"}, "socket not found"},
		{[]string{"flows", "--lab", "none"}, "lab none is not running"},
		{[]string{"flows", "--cluster=false", "--server", "unix:/run/none/x"}, "socket not found"},
		{[]string{"flows", "--cluster", "--server", "unix:/run/none/x"}, "--cluster cannot be used with"},
		{[]string{"doctor", "--objects", "none.yaml"}, "none.yaml"},
		{[]string{"flows", "--help"}, "Usage:\n  kubectl nfqproxy flows [ID] [flags]"},
		{[]string{"flows", "--help"}, "  kubectl nfqproxy flows $(kubectl nfqproxy flows -o name --limit 1)"},
		{[]string{"flow"}, `unknown command "kubectl nfqproxy flow" (did you mean "flows"?)`},
		{[]string{"__complete", "flows", "--proto"}, "--protocol"},
	} {
		if got := run(tt.args...); !strings.Contains(got, tt.want) {
			t.Errorf("%q: %s; want %s", tt.args, got, tt.want)
		}
	}
	for program, want := range map[string]bool{"nfqproxy": false, "/usr/bin/kubectl-nfqproxy": true, "kubectl-nfqproxy.exe": true, "kubectl-nfqproxy-x": false} {
		if isPlugin(program) != want {
			t.Errorf("%s: %v", program, !want)
		}
	}
}
