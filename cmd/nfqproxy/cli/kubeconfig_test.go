package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/deploy/apiserver"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

const credentialPlugin = `
current-context: one
contexts: [{name: one, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: "false", interactiveMode: Never}}}]
`

// TestKubeconfig: why, doctor and explain ask the cluster that kubectl would, where nothing of nfqproxy is installed.
func TestKubeconfig(t *testing.T) {
	objects, err := labfile.LoadOnce(nil, []string{"../../../control/paper/diagnose/testdata/path.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	objects.Lab = new(labfile.Lab) // for the addresses of the API server's own Service
	server := new(apiserver.Server)
	if err := server.Set(&objects.Objects); err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(server)
	t.Cleanup(h.Close)
	denying := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis/apps/v1/daemonsets" {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"DaemonSetList","apiVersion":"apps/v1","items":[{"metadata":{"namespace":"kube-system","name":"nfqproxy"}},{"metadata":{"namespace":"shop","name":"agent"}}]}`)
			return
		}
		if strings.Contains(r.URL.Path, "/daemonsets/") {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`)
			return
		}
		server.ServeHTTP(w, r)
	}))
	t.Cleanup(denying.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	// As kubectl, it joins the files of a list.
	contexts := write("contexts", `
current-context: shop
contexts:
- {name: shop, context: {cluster: here, user: me, namespace: shop}}
- {name: denying, context: {cluster: denying, user: me, namespace: shop}}
- {name: away, context: {cluster: away, user: me}}
`)
	clusters := write("clusters", fmt.Sprintf(`
clusters:
- {name: here, cluster: {server: %q}}
- {name: denying, cluster: {server: %q}}
- {name: away, cluster: {server: "http://127.0.0.1:1"}}
users: [{name: me, user: {token: secret}}]
`, h.URL, denying.URL))
	both := contexts + string(filepath.ListSeparator) + clusters
	const works = "works, as far as the objects show: one endpoint"
	explain := []string{"explain", "--protocol", "tcp", "--source", "pod/shop/client-a", "--destination", "node/node-b:30024"}
	for _, tt := range []struct {
		name      string
		plugin    bool
		env, home string
		args      []string
		want      string // part of the output
		code      int
	}{
		{name: "variable", env: both, args: []string{"why", "client-a", "cluster-b"}, want: works},
		{name: "variable, doctor", env: both, args: []string{"doctor"}, want: "Service shop/local-none", code: 1},
		{name: "doctor, a bundle compared with a cluster", env: both, args: []string{"doctor", "--node", "../../../control/paper/savednode/testdata/worker1", "--context", "shop"}, want: "service ports, such as shop/cluster-b", code: 1},
		{name: "variable, explain", env: both, args: explain, want: "next, on node node-b"},
		{name: "plugin", plugin: true, env: both, args: []string{"why", "client-a", "cluster-b"}, want: works},
		{name: "plugin, doctor", plugin: true, env: both, args: []string{"doctor"}, want: "Service shop/local-none", code: 1},
		{name: "plugin, explain", plugin: true, env: both, args: explain, want: "next, on node node-b"},
		{name: "plugin that may not see DaemonSets", plugin: true, env: both, args: []string{"why", "client-a", "cluster-b", "--context", "denying"}, want: "note: from objects only, without flows"},
		{name: "plugin that is asked for flows", plugin: true, env: both, args: []string{"why", "client-a", "cluster-b", "--cluster"}, want: "DaemonSet kube-system/nfqproxy not found", code: 2},
		{name: "completion of a DaemonSet", env: both, args: []string{"__complete", "status", "--context", "denying", "--daemonset", ""}, want: "kube-system/nfqproxy\nshop/agent\n:4"},
		{name: "completion without DaemonSets", env: both, args: []string{"__complete", "status", "--daemonset", ""}, want: ":4"},
		{name: "variable, explain, names of the context's namespace", env: both, args: []string{"explain", "--protocol", "tcp", "--source", "client-a", "--destination", "node/node-b:30024"}, want: "next, on node node-b"},
		{name: "explain, another namespace", env: both, args: []string{"explain", "-n", "other", "--protocol", "tcp", "--source", "client-a", "--destination", "node/node-b:30024"}, want: "source \"client-a\"", code: 2},
		{name: "another context", env: both, args: []string{"why", "client-a", "cluster-b", "--context", "away"}, want: "127.0.0.1:1", code: 2},
		{name: "another context, explain", env: both, args: append([]string{"--context", "away"}, explain...), want: "127.0.0.1:1", code: 2},
		{name: "a list with a missing file", env: filepath.Join(dir, "missing") + string(filepath.ListSeparator) + both, args: []string{"why", "client-a", "cluster-b"}, want: works},
		{name: "the first file of a list has the current context", env: write("first", "current-context: away\n") + string(filepath.ListSeparator) + both, args: []string{"why", "client-a", "cluster-b"}, want: "127.0.0.1:1", code: 2},
		{name: "missing file", env: filepath.Join(dir, "missing"), args: []string{"why", "client-a", "cluster-b"}, want: "missing: no such file", code: 2},
		{name: "unreadable file in a list", env: dir + string(filepath.ListSeparator) + both, args: []string{"why", "client-a", "cluster-b"}, want: "is a directory", code: 2},
		{name: "current context that does not exist", env: write("gone", "current-context: gone\n") + string(filepath.ListSeparator) + both, args: []string{"why", "client-a", "cluster-b"}, want: `current context "gone" does not exist; there are away, denying, shop`, code: 2},
		{name: "no current context", env: write("none", "contexts: [{name: one, context: {cluster: here}}]\n"), args: []string{"why", "client-a", "cluster-b"}, want: "it has no current context: give --context; there are one", code: 2},
		{name: "context without its cluster", env: contexts, args: []string{"why", "client-a", "cluster-b"}, want: `current context "shop" names the cluster "here", which does not exist`, code: 2},
		{name: "credential plugin that fails", env: write("exec", credentialPlugin), args: []string{"why", "client-a", "cluster-b"}, want: "failed with exit code 1", code: 2},
		{name: "no such context", env: both, args: []string{"why", "client-a", "cluster-b", "--context", "none"}, want: `context "none" does not exist`, code: 2},
		{name: "a file before the variable", env: contexts, args: []string{"why", "client-a", "cluster-b", "--kubeconfig", clusters, "--context", "shop"}, want: `context "shop" does not exist`, code: 2},
		{name: "objects before the variable", env: both, args: []string{"why", "default/a", "b", "--objects", clusterFile}, want: "there is no Pod default/a", code: 2},
		{name: "no variable", args: []string{"why", "client-a", "cluster-b"}, home: both, want: "no lab is running, and KUBECONFIG is not set", code: 2},
		{name: "plugin without a configuration", plugin: true, args: []string{"why", "client-a", "cluster-b"}, want: "no API server configured", code: 2},
		{name: "objects and a context", env: both, args: []string{"explain", "--objects", clusterFile, "--context", "shop", "--protocol", "tcp", "--source", "10.0.0.1", "--destination", "10.0.0.2:80"}, want: "--objects and --context cannot be used together", code: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.args[0] == "--context" { // a flag of the command, not of the program
				tt.args = append(tt.args[2:], tt.args[:2]...)
			}
			cmd := e2etest.Command(tt.args...)
			if tt.plugin {
				cmd.Args[0] = filepath.Join("/opt", pluginName)
			}
			cmd.Env = append(cmd.Env, "KUBECONFIG="+tt.env, "HOME="+t.TempDir())
			out, err := cmd.CombinedOutput()
			code := 0
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != tt.code || !strings.Contains(string(out), tt.want) {
				t.Errorf("exit code %d, want %d with %q:\n%s", code, tt.code, tt.want, out)
			}
		})
	}
}
