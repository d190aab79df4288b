// Package clustertest ends tests that lack the programs of package cluster.
package clustertest

import (
	"fmt"
	"testing"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// Require ends a test if the programs of package cluster are not built: a skip with the
// command that builds them, or a failure with CI=true in the environment.
func Require(t testing.TB) {
	t.Helper()
	for _, name := range []string{cluster.Etcd, cluster.APIServer, cluster.ControllerManager, cluster.KubeProxy, cluster.Kubectl} {
		RequireProgram(t, name)
	}
}

// RequireProgram does the same for one program, and returns its path.
func RequireProgram(t testing.TB, name string) string {
	t.Helper()
	path, err := cluster.Binary(name)
	if err != nil {
		t.Fatalf("%v", err)
		return ""
	}
	netnstest.RequireTool(advisor{t}, path)
	return path
}

// advisor adds the remedy to the reason of a skip or failure.
type advisor struct{ testing.TB }

func (a advisor) Skipf(format string, args ...any) {
	a.Helper()
	a.TB.Skipf("%s: run make peers", fmt.Sprintf(format, args...))
}

func (a advisor) Fatalf(format string, args ...any) {
	a.Helper()
	a.TB.Fatalf("%s: run make peers", fmt.Sprintf(format, args...))
}
