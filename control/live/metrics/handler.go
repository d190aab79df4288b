package metrics

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ProxyMode is the response of /proxyMode: the mode of kube-proxy with these service semantics.
// Clients derive from it what to expect of services (for example Kubernetes' e2e test of localhost
// node ports). nfqproxy_build_info and the header Server identify nfqproxy.
const ProxyMode = "iptables"

// HandlerConfig is the configuration of the handler.
type HandlerConfig struct {
	// Profiling serves /debug/pprof, which exposes internals of the process to every client.
	Profiling bool
	Log       *slog.Logger // of metrics that could not be collected
}

// maxScrapes is the maximum number of concurrent scrapes: each takes some MiB for a moment.
const maxScrapes = 4

// Handler serves the paths of kube-proxy's metrics address: /metrics, /proxyMode, /healthz,
// which only shows that the server responds, and profiles. Requests to a loopback address by a host
// name other than localhost are rejected: a web page with a name that resolves to it (DNS
// rebinding) could read the response with the browser of a user of this machine. At other addresses
// any host name is accepted, as scrapers use the DNS names of nodes; operators must restrict access
// to them.
func (m *Metrics) Handler(config HandlerConfig) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorLog:          slog.NewLogLogger(config.Log.Handler(), slog.LevelWarn),
		ErrorHandling:     promhttp.ContinueOnError, // the metrics that are there are served

		MaxRequestsInFlight: maxScrapes, // further ones are answered 503, with a text
	}))
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "nfqproxy")
		text(ProxyMode)(w, r)
	})
	mux.HandleFunc("/healthz", text("ok"))
	if config.Profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index) // named profiles, too
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && local.IP.IsLoopback() && !isAddress(r.Host) {
			http.Error(w, fmt.Sprintf("host %q is not a name of this server: use localhost or an IP address", r.Host), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// isAddress reports whether a Host header is an address, localhost or empty. DNS rebinding cannot
// use these: an empty one is of HTTP/1.0, which browsers do not send.
func isAddress(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	_, err := netip.ParseAddr(name)
	return host == "" || err == nil || strings.EqualFold(name, "localhost")
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprint(w, s)
	}
}
