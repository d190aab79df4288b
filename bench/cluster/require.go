package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nfqproxy/nfqproxy/deploy/netns"
)

// Names of the programs, see [Binary].
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	KubeProxy         = "kube-proxy"
	Kubectl           = "kubectl"
	Hubble            = "hubble"
	PortForward       = "portforward"
	PromQL            = "promql"
)

// Require ends a test if the programs of this package are not built: a skip with the
// command that builds them, or a failure with CI=true in the environment.
func Require(t netns.T) {
	t.Helper()
	for _, name := range []string{Etcd, APIServer, ControllerManager, KubeProxy, Kubectl} {
		RequireProgram(t, name)
	}
}

// RequireProgram does the same for one program, and gives its path.
func RequireProgram(t netns.T, name string) string {
	t.Helper()
	path, err := Binary(name)
	if err != nil {
		t.Fatalf("%v", err)
		return ""
	}
	netns.RequireTool(advisor{t}, path)
	return path
}

// advisor adds the remedy to the reason of a skip or failure.
type advisor struct{ netns.T }

func (a advisor) Skipf(format string, args ...any) {
	a.Helper()
	a.T.Skipf("%s: run make peers", fmt.Sprintf(format, args...))
}

func (a advisor) Fatalf(format string, args ...any) {
	a.Helper()
	a.T.Fatalf("%s: run make peers", fmt.Sprintf(format, args...))
}

// Binary gives the path where "make peers" puts a program. It looks for the
// repository from the working directory upwards, which is inside it for tests. The
// program need not be there; see [Require].
func Binary(name string) (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		peers := filepath.Join(dir, "bench", "peers")
		if _, err := os.Stat(filepath.Join(peers, "go.mod")); err == nil {
			return filepath.Join(peers, "bin", name), nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no bench/peers in %s or above: run this inside the repository", start)
		}
	}
}
