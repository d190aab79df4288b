// Package metrics exports the proxy's metrics in Prometheus' format: under kube-proxy's names
// (kubeproxy_) where the meaning is the same, under nfqproxy_ for the rest.
//
// kube-proxy syncs each address family separately; here one table holds both. So metrics of
// syncs have no ip_family label, and metrics of flows, services and endpoints have it.
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
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Metrics has its own registry. It is safe for concurrent use; each of its Read methods is called once.
type Metrics struct {
	registry    *prometheus.Registry
	proxy       *proxy
	convergence *convergence
	table       atomic.Pointer[decision.Table] // in force; nil: none yet
}

// New returns the metrics of a program of the version.
func New(version string) *Metrics {
	r := prometheus.NewRegistry()
	m := &Metrics{registry: r, proxy: newProxy(r), convergence: newConvergence(r)}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "nfqproxy_build_info", Help: "Always 1; the label is the version of the program.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		info,
	)
	m.read(func(to scrape) {
		if t := m.table.Load(); t != nil {
			to.table(t)
		}
	})
	return m
}

// read makes every scrape from now on read metrics with the function.
func (m *Metrics) read(s source) { m.registry.MustRegister(s) }

// source is a [prometheus.Collector] of metrics that are read at scrape time.
type source func(scrape)

// Describe describes nothing: each metric comes with its description.
func (source) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (s source) Collect(to chan<- prometheus.Metric) { s(to) }

// scrape takes the metrics of one scrape.
type scrape chan<- prometheus.Metric

// counters returns a function that adds a time series of a counter, with the values of its labels.
func (to scrape) counters(name, help string, labels ...string) func(n uint64, values ...string) {
	d := prometheus.NewDesc(name, help, labels, nil)
	return func(n uint64, values ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), values...)
	}
}

// gauges is counters for a gauge.
func (to scrape) gauges(name, help string, labels ...string) func(v float64, values ...string) {
	d := prometheus.NewDesc(name, help, labels, nil)
	return func(v float64, values ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, values...)
	}
}

func (to scrape) counter(name, help string, n uint64) { to.counters(name, help)(n) }

func (to scrape) gauge(name, help string, n int) { to.gauges(name, help)(float64(n)) }

// ReadLimits makes every scrape from now on read the use of the quotas.
func (m *Metrics) ReadLimits(s *limit.Set) {
	m.read(func(to scrape) {
		inUse := to.gauges("nfqproxy_server_in_use", "Connections, streams and requests in use at a server.", "server", "what")
		most := to.gauges("nfqproxy_server_limit", "Limit of connections, streams and requests of all clients together.", "server", "what")
		refused := to.counters("nfqproxy_server_refused_total", "Connections, streams and requests refused by the limit of all clients together (total) or of one client (client).", "server", "what", "limit")
		for _, n := range s.Counts() {
			inUse(float64(n.Taken), n.Server, n.What)
			most(float64(n.Total), n.Server, n.What)
			refused(n.RefusedTotal, n.Server, n.What, "total")
			refused(n.RefusedEach, n.Server, n.What, "client")
		}
	})
}

// table reads the service table.
func (to scrape) table(t *decision.Table) {
	to.gauges("nfqproxy_table_generation", "Number of the service table in force, counted from 1.")(float64(t.Generation()))
	to.gauges("nfqproxy_table_built_timestamp_seconds", "When the service table in force was built; time() minus this is its age.")(float64(t.Built().UnixNano()) / 1e9)
	ports := to.gauges("nfqproxy_service_ports", "Ports of Services in the table in force.", familyLabel)
	endpoints := to.gauges("nfqproxy_endpoints", "Endpoints in the table in force, usable or not, once for each service port.", familyLabel)
	noLocal := to.gauges("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "Service ports with traffic policy Local and usable endpoints, but none on this node. A gauge.", "traffic_policy", familyLabel)
	for _, f := range families {
		c := t.Counts(f)
		ports(float64(c.ServicePorts), f.String())
		endpoints(float64(c.Endpoints), f.String())
		noLocal(float64(c.NoLocalInternal), "internal", f.String())
		noLocal(float64(c.NoLocalExternal), "external", f.String())
	}
}

// ReadScripts makes every scrape from now on read the failures of balancing scripts: the function calls each for every
// script, with its failures so far. Several goroutines may call the function at once.
func (m *Metrics) ReadScripts(scripts func(each func(script string, failures uint64))) {
	m.read(func(to scrape) {
		failures := to.counters("nfqproxy_balance_script_failures_total", "Calls of a balancing script that failed; the endpoints of such flows were drawn at random.", "script")
		scripts(func(script string, n uint64) { failures(n, script) })
	})
}

// ReadShadows makes every scrape from now on read the comparison of shadows; see [shadow.Shadows.Totals]. Several
// goroutines may call the function at once.
func (m *Metrics) ReadShadows(shadows func() (actual float64, totals []shadow.Total)) {
	m.read(func(to scrape) {
		flows := to.counters("nfqproxy_shadow_flows_total", "Flows that had a choice, by whether the algorithm of --shadow would have selected the same endpoint.", "algorithm", "same")
		imbalance := to.gauges("nfqproxy_shadow_imbalance", "Open connections of the services' fullest endpoints over the mean of their endpoints, as it is (algorithm empty) and as it would be with an algorithm of --shadow; 1: all equal, 0: no connections.", "algorithm")
		actual, totals := shadows()
		imbalance(actual, "")
		for _, t := range totals {
			imbalance(t.Imbalance, t.Algorithm)
			flows(t.Agree, t.Algorithm, "true")
			flows(t.Other, t.Algorithm, "false")
		}
	})
}

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
