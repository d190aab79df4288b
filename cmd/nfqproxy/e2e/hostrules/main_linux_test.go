// Package hostrules tests the daemon beside other rules of the host, and its repair of its own.
package hostrules

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

func TestMain(m *testing.M) { e2etest.Main(m, cli.Main) }
