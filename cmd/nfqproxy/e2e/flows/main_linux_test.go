// Package flows tests what the daemon reports of flows: records, metrics, Hubble's API, the web page, and
// the replay of records and captures.
package flows

import (
	"testing"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/cli"
	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
)

func TestMain(m *testing.M) { e2etest.Main(webtest.Tests{M: m}, cli.Main) }
