// Package serving tests the flows that the daemon translates: which endpoint a client reaches, by which
// address, and what the endpoint sees.
package serving

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

func TestMain(m *testing.M) { e2etest.Main(m, cli.Main) }
