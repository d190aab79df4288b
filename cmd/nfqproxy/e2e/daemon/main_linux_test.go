// Package daemon tests the daemon's life: its start, its end, overload, and a long run.
package daemon

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

func TestMain(m *testing.M) { e2etest.Main(m, cli.Main) }
