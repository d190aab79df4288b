package health

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	// Level is the level at which that is logged; nil: error.
	Level func(error) slog.Level
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
		level := slog.LevelError
		if s.Level != nil {
			level = s.Level(err)
		}
		s.Log.Log(ctx, level, "cannot serve "+s.Name+"; retrying", "address", s.Address, "in", RebindInterval, "error", err)
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

// answer is the response body of /healthz and /livez (kube-proxy: ProxyHealth).
type answer struct {
	LastUpdated  time.Time                        `json:"lastUpdated"`
	CurrentTime  time.Time                        `json:"currentTime"`
	NodeEligible *bool                            `json:"nodeEligible,omitempty"`
	Healthy      bool                             `json:"healthy"`
	Status       map[corev1.IPFamily]familyStatus `json:"status,omitempty"`
	// Fault is an addition of nfqproxy: what is wrong with the rules in the kernel.
	Fault string `json:"fault,omitempty"`
}

// familyStatus is that of one address family (kube-proxy: ProxierHealth).
type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler serves these paths, with status 200 or 503:
//
//   - /healthz: healthy, and the node is eligible. Load balancers probe it for Services with
//     externalTrafficPolicy Cluster.
//   - /livez: healthy. A node about to be deleted is no reason to restart the proxy.
//   - /readyz: a table is in force; before, the text is what the proxy waits for.
//
// The Host header is not checked: load balancers of clouds use various names. So a web page with a
// name that resolves to this node (DNS rebinding) can read the responses, as can every pod that
// reaches the node. They contain only the state of this proxy, times, and the name of its Node
// object while the proxy waits for it: no addresses, no services, no errors of the API server.
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s := p.state()
		a := p.answer(&s)
		a.NodeEligible = &s.eligible
		p.write(w, "/healthz", a, s.healthy && s.eligible)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		s := p.state()
		p.write(w, "/livez", p.answer(&s), s.healthy)
	})
	mux.HandleFunc("/readyz", p.serveReadyz)
	return mux
}

func (p *Proxy) answer(s *state) *answer {
	a := &answer{LastUpdated: s.updated, CurrentTime: s.now, Healthy: s.healthy, Fault: s.fault}
	if !s.updated.IsZero() {
		a.Status = make(map[corev1.IPFamily]familyStatus, len(p.config.Families))
		for _, f := range p.config.Families {
			a.Status[f] = familyStatus{s.updated, s.healthy}
		}
	}
	return a
}

func (p *Proxy) write(w http.ResponseWriter, path string, a *answer, ok bool) {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		// kube-proxy once reported its last sync, which came round even without a change:
		// clients may treat an old time as a failure.
		a.LastUpdated = a.CurrentTime
	}
	if p.config.Answered != nil {
		p.config.Answered(path, code)
	}
	writeJSON(w, code, a, "")
}

func (p *Proxy) serveReadyz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if s := p.state(); s.updated.IsZero() {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "waiting for %s\n", s.waiting)
		return
	}
	fmt.Fprintln(w, "ok")
}

// writeJSON writes a response with kube-proxy's headers.
func writeJSON(w http.ResponseWriter, code int, body any, indent string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	var b []byte
	if indent == "" {
		b, _ = json.Marshal(body) // of plain structs: it cannot fail
	} else {
		b, _ = json.MarshalIndent(body, "", indent)
	}
	w.WriteHeader(code)
	_, _ = w.Write(b) // the client may be gone
}
