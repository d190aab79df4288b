package metrics

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// ProxyMode is the answer to /proxyMode, where kube-proxy says iptables, ipvs or
// nftables. It is none of these: who reads "iptables" looks for iptables rules, and there are
// none.
const ProxyMode = "nfqueue"

// HandlerConfig is the configuration of the handler.
type HandlerConfig struct {
	// Profiling serves /debug/pprof, which tells much of the process to whoever asks.
	Profiling bool
	Log       *slog.Logger // of metrics that could not be collected
}

// Handler serves what kube-proxy serves on its metrics address: /metrics, /proxyMode,
// /healthz, which says no more than that somebody answers, and profiles.
func (m *Metrics) Handler(config HandlerConfig) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorLog:          slog.NewLogLogger(config.Log.Handler(), slog.LevelWarn),
		ErrorHandling:     promhttp.ContinueOnError, // the metrics that are there are served
	}))
	mux.HandleFunc("/proxyMode", text(ProxyMode))
	mux.HandleFunc("/healthz", text("ok"))
	if config.Profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index) // named profiles, too
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		fmt.Fprint(w, s)
	}
}
