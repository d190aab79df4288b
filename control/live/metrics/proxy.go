package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// proxy are the metrics that kube-proxy has as well (pkg/proxy/metrics), except those
// that are read from the table.
type proxy struct {
	syncDuration       prometheus.Histogram
	lastSync           prometheus.Gauge
	lastQueued         prometheus.Gauge
	networkProgramming *prometheus.HistogramVec
	endpointsPending   prometheus.Gauge
	endpointsTotal     prometheus.Counter
	servicesPending    prometheus.Gauge
	servicesTotal      prometheus.Counter
	healthz, livez     *prometheus.CounterVec
	reconcileDuration  *prometheus.HistogramVec
	reconcileDeleted   *prometheus.CounterVec
}

const familyLabel = "ip_family"

var families = []decision.Family{decision.IPv4, decision.IPv6}

func newProxy(r prometheus.Registerer) *proxy {
	in := promauto.With(r)
	gauge := func(name, help string) prometheus.Gauge {
		return in.NewGauge(prometheus.GaugeOpts{Name: "kubeproxy_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return in.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_" + name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return in.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_" + name, Help: help}, []string{label})
	}
	p := &proxy{
		syncDuration: in.NewHistogram(prometheus.HistogramOpts{
			Name:    "kubeproxy_sync_proxy_rules_duration_seconds",
			Help:    "Time to apply a batch of changes: build a service table and publish it to the datapath.",
			Buckets: syncBuckets,
		}),
		lastSync:   gauge("sync_proxy_rules_last_timestamp_seconds", "Time of the last sync: when the present service table was applied."),
		lastQueued: gauge("sync_proxy_rules_last_queued_timestamp_seconds", "Time when a change was last queued. If it is much later than the last sync, the proxy hangs."),
		networkProgramming: in.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubeproxy_network_programming_duration_seconds",
			Help:    "Time from a change of a pod or Service (the EndpointSlice's trigger time) until it is applied on this node.",
			Buckets: programmingBuckets,
		}, []string{familyLabel}),
		endpointsPending:  gauge("sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices that are not applied yet."),
		endpointsTotal:    counter("sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices received."),
		servicesPending:   gauge("sync_proxy_rules_service_changes_pending", "Changes of Services that are not applied yet."),
		servicesTotal:     counter("sync_proxy_rules_service_changes_total", "Changes of Services received."),
		healthz:           counters("proxy_healthz_total", "Responses of /healthz, by status code.", "code"),
		livez:             counters("proxy_livez_total", "Responses of /livez, by status code.", "code"),
		reconcileDuration: in.NewHistogramVec(prometheus.HistogramOpts{Name: "kubeproxy_conntrack_reconciler_sync_duration_seconds", Help: "Time of one pass over the conntrack table that removes stale entries.", Buckets: syncBuckets}, []string{familyLabel}),
		reconcileDeleted:  counters("conntrack_reconciler_deleted_entries_total", "Stale conntrack entries removed.", familyLabel),
	}
	for _, code := range []string{"200", "503"} {
		p.healthz.WithLabelValues(code)
		p.livez.WithLabelValues(code)
	}
	for _, f := range families {
		p.networkProgramming.WithLabelValues(f.String())
		p.reconcileDuration.WithLabelValues(f.String())
		p.reconcileDeleted.WithLabelValues(f.String())
	}
	return p
}

// syncBuckets go from a millisecond to 16 s.
var syncBuckets = prometheus.ExponentialBuckets(0.001, 2, 15)

// programmingBuckets are close around the service level objective of some seconds, and
// wide up to 5 minutes, as kube-proxy's are.
var programmingBuckets = slices.Concat(
	prometheus.LinearBuckets(0.25, 0.25, 2),
	prometheus.LinearBuckets(1, 1, 59),
	prometheus.LinearBuckets(60, 5, 12),
	prometheus.LinearBuckets(120, 30, 7),
)

// Queued counts changes of objects that are not applied yet.
func (m *Metrics) Queued(services, endpointSlices int) {
	p := m.proxy
	p.servicesTotal.Add(float64(services))
	p.servicesPending.Add(float64(services))
	p.endpointsTotal.Add(float64(endpointSlices))
	p.endpointsPending.Add(float64(endpointSlices))
	p.lastQueued.SetToCurrentTime()
}

// Applied records a sync at the moment it is applied.
func (m *Metrics) Applied(s servicetable.Sync) {
	p, now := m.proxy, time.Now()
	m.table.Store(s.Table)
	p.syncDuration.Observe(now.Sub(s.Began).Seconds())
	p.servicesPending.Sub(float64(s.Services))
	p.endpointsPending.Sub(float64(s.EndpointSlices))
	p.lastSync.Set(float64(now.UnixNano()) / 1e9)
	for f, triggers := range s.Triggers {
		h := p.networkProgramming.WithLabelValues(f.String())
		for _, t := range triggers {
			// The clock that took the trigger time may be ahead of ours.
			h.Observe(max(now.Sub(t), 0).Seconds())
		}
	}
}

// Reconciled records a pass of the conntrack reconciler over the entries of one family.
func (m *Metrics) Reconciled(f decision.Family, duration time.Duration, deleted int) {
	m.proxy.reconcileDuration.WithLabelValues(f.String()).Observe(duration.Seconds())
	m.proxy.reconcileDeleted.WithLabelValues(f.String()).Add(float64(deleted))
}

// Answered counts a response of /healthz or /livez; others are not counted.
func (m *Metrics) Answered(path string, code int) {
	switch path {
	case "/healthz":
		m.proxy.healthz.WithLabelValues(strconv.Itoa(code)).Inc()
	case "/livez":
		m.proxy.livez.WithLabelValues(strconv.Itoa(code)).Inc()
	}
}

// convergence are the metrics of what flows show about the work of a service proxy. It is the journal's meter.
type convergence struct {
	seconds                                 *prometheus.HistogramVec
	outdated, unknownEndpoint, untranslated prometheus.Counter
}

// convergenceBuckets are close around one second, the objective of the alerts.
var convergenceBuckets = []float64{0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60}

func newConvergence(r prometheus.Registerer) *convergence {
	in := promauto.With(r)
	counter := func(name, help string) prometheus.Counter {
		return in.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	c := &convergence{
		seconds: in.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nfqproxy_convergence_seconds",
			Help:    "Time from the service table with a change of an endpoint, 0 if before: to the first flow to one that gets new flows since (first_flow); to the last flow to one that gets none any more and had some before, within a minute, 0 if none came later (last_flow); until the rules of the observed service proxy had the change, where the kernel notifies (rules). One observation for each endpoint and change; of a change, the first 10 endpoints.",
			Buckets: convergenceBuckets,
		}, []string{"event"}),
		outdated:        counter("nfqproxy_observed_outdated_flows_total", "New flows that the observed service proxy sent to an endpoint that was out of use when they began, by the objects that the node knew."),
		unknownEndpoint: counter("nfqproxy_observed_unknown_endpoint_flows_total", "New flows to a service that the observed service proxy sent to what is none of its endpoints in any table that the node keeps."),
		untranslated:    counter("nfqproxy_observed_untranslated_flows_total", "New flows to a service that the observed service proxy did not translate."),
	}
	for _, event := range []string{observe.FirstFlow, observe.LastFlow, observe.Rules} {
		c.seconds.WithLabelValues(event)
	}
	return c
}

// Converged records what happened after a change of an endpoint, and how long after: see [observe.FirstFlow].
func (m *Metrics) Converged(event string, after time.Duration) {
	m.convergence.seconds.WithLabelValues(event).Observe(after.Seconds())
}

// Odd counts flows that the observed proxy did not treat as the objects say.
func (m *Metrics) Odd(f observe.Flows) {
	m.convergence.outdated.Add(float64(f.Outdated))
	m.convergence.unknownEndpoint.Add(float64(f.UnknownEndpoint))
	m.convergence.untranslated.Add(float64(f.NotTranslated))
}
