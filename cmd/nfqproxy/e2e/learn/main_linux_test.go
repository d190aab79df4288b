// Package learn tests the course in real labs.
package learn

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/nfqproxy/nfqproxy/bench/cluster"
	"github.com/nfqproxy/nfqproxy/bench/cluster/clustertest"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	"github.com/nfqproxy/nfqproxy/deploy/learn"
)

func TestMain(m *testing.M) { e2etest.Main(tests{webtest.Tests{M: m}}, cli.Main) }

type tests struct{ webtest.Tests }

func (t tests) Run() int {
	// A proof waits for more than half of its time.
	if err := flag.Set("test.parallel", strconv.Itoa(min(3*runtime.NumCPU(), 12))); err != nil {
		panic(err)
	}
	if path, err := cluster.Binary(cluster.KubeProxy); err == nil {
		if err := os.Setenv(lab.KubeProxyVariable, path); err != nil {
			panic(err)
		}
	}
	return t.Tests.Run()
}

// requireProgramsOf ends a test of a unit whose programs the machine lacks. Labs find kube-proxy where "make peers" builds it.
func requireProgramsOf(t testing.TB, u *learn.Unit) {
	t.Helper()
	for _, program := range u.Requires {
		if program == labfile.KubeProxy {
			clustertest.RequireProgram(t, program)
			continue
		}
		netnstest.RequireTool(t, program)
	}
}
