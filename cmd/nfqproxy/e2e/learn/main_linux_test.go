// Package learn tests the course in real labs.
package learn

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
)

func TestMain(m *testing.M) { e2etest.Main(tests{webtest.Tests{M: m}}, cli.Main) }

type tests struct{ webtest.Tests }

func (t tests) Run() int {
	// A proof waits for more than half of its time.
	if err := flag.Set("test.parallel", strconv.Itoa(min(3*runtime.NumCPU(), 12))); err != nil {
		panic(err)
	}
	return t.Tests.Run()
}
