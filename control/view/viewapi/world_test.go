package viewapi

import (
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi/flowapitest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// longTimeout is longer than any test waits.
const longTimeout = time.Hour

// longTiming waits for nothing but for a stream to begin.
var longTiming = flowapi.Timing{Write: longTimeout, Answer: longTimeout, Read: longTimeout, FirstSign: time.Millisecond, KeepAlive: longTimeout, Poll: longTimeout}

// newWorld is a server with the token "secret" over a fake node.
func newWorld(t *testing.T, c Config, timing flowapi.Timing) *flowapitest.World {
	t.Helper()
	return flowapitest.New(t, func(fake *observetest.Fake, log io.Writer) http.Handler {
		return flowapi.New(flowapi.Config{
			Observer: fake, Balancing: new(observetest.Balancing), Routes: Routes(c), Token: "secret", OpenLoopback: true, Timing: &timing,
			Log: slog.New(slog.NewTextHandler(log, nil)),
		})
	})
}

func record(id string) observe.Item { return observe.Item{Record: &flow.Record{ID: id}} }
