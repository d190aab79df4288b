package health

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
)

// Limits of the servers, which every client that reaches the node can use. Probes and
// scrapes are short; load balancers keep their connections for the next probe. A
// profile extends the time to write by itself.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
	shutdownGrace  = time.Second
)

// The connections of the servers, each of which takes some 30 KiB and a descriptor. Every client
// that reaches the node, pods included, reaches :10256 and the health check node ports. Load
// balancers probe from a few addresses, with a connection or two from each. The reserve is
// for kubelet, whose probes come from root on this machine.
var (
	Connections        = limit.Numbers{Total: 256, Each: 32, Reserved: 32}
	CheckConnections   = limit.Numbers{Total: 512, Each: 32, Reserved: 32} // of all health check node ports together
	MetricsConnections = limit.Numbers{Total: 64, Each: 16, Reserved: 16}
)

// RebindInterval is the time before an address that could not be bound is retried. kube-proxy has
// the same for its own two addresses.
const RebindInterval = 5 * time.Second

func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ConnContext:    limit.ConnContext,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// HTTPServer serves one address: the proxy's health, or its metrics.
type HTTPServer struct {
	Name    string // for logs and errors: what is served
	Address string // host:port; the host may be empty: all addresses
	Handler http.Handler
	// HardFail ends Run when the address cannot be bound or served any more. Otherwise the
	// error is logged, and Run retries after RebindInterval (kube-proxy:
	// bindAddressHardFail).
	HardFail bool
	// Connections is the quota of connections; see [Connections].
	Connections *limit.Quota
	Log         *slog.Logger
}

// Run serves until the context ends, then waits shortly for requests to end, and returns nil.
func (s *HTTPServer) Run(ctx context.Context) error {
	for {
		var listen net.ListenConfig
		l, err := listen.Listen(ctx, "tcp", s.Address)
		if err == nil {
			err = s.serve(ctx, l)
		}
		if ctx.Err() != nil {
			return nil
		}
		err = fmt.Errorf("%s: %w", s.Name, err)
		if s.HardFail {
			return err
		}
		s.Log.Error("cannot serve "+s.Name+"; retrying", "address", s.Address, "in", RebindInterval, "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(RebindInterval):
		}
	}
}

// serve is Run on a listener, which it closes; it ends when that fails.
func (s *HTTPServer) serve(ctx context.Context, l net.Listener) error {
	return limit.Serve(ctx, newHTTPServer(s.Handler, s.Log), limit.Listen(l, s.Connections, limit.Text), shutdownGrace)
}
