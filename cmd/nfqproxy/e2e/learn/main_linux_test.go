// Package learn tests the course in real labs.
package learn

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
)

func TestMain(m *testing.M) { e2etest.Main(tests{m}, cli.Main) }

// tests share a browser.
type tests struct{ m *testing.M }

func (t tests) Run() int {
	defer webtest.Close()
	return t.m.Run()
}
