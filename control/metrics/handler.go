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

// ProxyMode is the answer to /proxyMode: the mode of kube-proxy whose service semantics these
// are. The readers of it choose by it what to expect of services (Kubernetes' e2e test of
// localhost node ports does). That there are no iptables rules behind it is said by
// nfqproxy_build_info and the header Server.
const ProxyMode = "iptables"

// HandlerConfig is the configuration of the handler.
type HandlerConfig struct {
	// Profiling serves /debug/pprof, which tells much of the process to whoever asks.
	Profiling bool
	Log       *slog.Logger // of metrics that could not be collected
}

// maxScrapes is how many scrapes are answered at a time: each takes some MiB for a moment.
const maxScrapes = 4

// Handler serves what kube-proxy serves on its metrics address: /metrics, /proxyMode,
// /healthz, which says no more than that somebody answers, and profiles. Requests to a loopback
// address by another host name than localhost are refused: a web page that has a name lead
// there (DNS rebinding) could read them with the browser of a user of this machine. At
// other addresses any name may be right, for scrapers use the names that DNS has for nodes;
// who makes them reachable has to restrict who reaches them.
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
			http.Error(w, fmt.Sprintf("host %q is no name of this server: use localhost or an IP address", r.Host), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// isAddress says whether a Host header names an address, which no web page can have lead
// elsewhere, or localhost, or nothing, as in HTTP/1.0, which no browser speaks.
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
