// Package metrics exports the proxy's metrics in Prometheus' format: under kube-proxy's names
// (kubeproxy_) where the meaning is the same, under nfqproxy_ for the rest.
//
// kube-proxy syncs each address family separately; here one table holds both. So metrics of
// syncs have no ip_family label, and metrics of flows, services and endpoints have it.
package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
)

// Metrics has its own registry. It is safe for concurrent use.
type Metrics struct {
	registry    *prometheus.Registry
	proxy       *proxy
	convergence *convergence
	table       atomic.Pointer[decision.Table]
	stats       atomic.Pointer[func() engine.Stats]
	flows       atomic.Pointer[flowSource]
	limits      atomic.Pointer[limit.Set]
	scripts     atomic.Pointer[scriptSource]
	shadows     atomic.Pointer[shadowSource]
}

var _ prometheus.Gatherer = (*Metrics)(nil)

// New returns the metrics of a program of the version.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), proxy: newProxy(), convergence: newConvergence()}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "nfqproxy_build_info", Help: "Always 1; the label is the version of the program.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		info,
		tableCollector{tableDescs, &m.table},
		datapathCollector{datapathDescs, &m.stats},
		flowCollector{flowDescs, &m.flows},
		serviceCollector{serviceDescs, &m.flows},
		limitCollector{limitDescs, &m.limits},
		scriptCollector{scriptDescs, &m.scripts},
		shadowCollector{shadowDescs, &m.shadows},
	)
	m.registry.MustRegister(m.proxy.collectors()...)
	m.registry.MustRegister(m.convergence.collectors()...)
	return m
}

// descs are the descriptions of a collector's metrics.
type descs []*prometheus.Desc

// add adds the description of a metric.
func (l *descs) add(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	*l = append(*l, d)
	return d
}

// Describe implements [prometheus.Collector].
func (l descs) Describe(to chan<- *prometheus.Desc) {
	for _, d := range l {
		to <- d
	}
}

// ReadLimits makes every scrape from now on read the use of the quotas.
func (m *Metrics) ReadLimits(s *limit.Set) { m.limits.Store(s) }

// Gather implements [prometheus.Gatherer]. With an error it returns the metrics that could be collected.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.registry.Gather() }

// ReadStats makes every scrape from now on read the datapath's counters with the
// function, which may be called by several goroutines at once. Before, there are no metrics of the
// datapath. [engine.Engine.Stats] is such a function.
func (m *Metrics) ReadStats(stats func() engine.Stats) { m.stats.Store(&stats) }
