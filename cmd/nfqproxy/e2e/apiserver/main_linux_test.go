// Package apiserver tests the daemon with a real control plane and in place of a real kube-proxy.
package apiserver

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
)

func TestMain(m *testing.M) { e2etest.Main(m, cli.Main) }
