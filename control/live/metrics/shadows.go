package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
)

// shadowSource returns what compares shadows; see [shadow.Shadows.Totals].
type shadowSource func() (actual float64, totals []shadow.Total)

// shadowCollector reads the comparison of shadows at scrape time.
type shadowCollector struct {
	descs
	shadows *atomic.Pointer[shadowSource]
}

var (
	shadowDescs descs

	descShadowFlows     = shadowDescs.add("nfqproxy_shadow_flows_total", "Flows that had a choice, by whether the algorithm of --shadow would have selected the same endpoint.", "algorithm", "same")
	descShadowImbalance = shadowDescs.add("nfqproxy_shadow_imbalance", "Open connections of the services' fullest endpoints over the mean of their endpoints, as it is (algorithm empty) and as it would be with an algorithm of --shadow; 1: all equal, 0: no connections.", "algorithm")
)

// Collect implements [prometheus.Collector].
func (c shadowCollector) Collect(to chan<- prometheus.Metric) {
	read := c.shadows.Load()
	if read == nil {
		return
	}
	actual, totals := (*read)()
	gauge := func(algorithm string, v float64) {
		to <- prometheus.MustNewConstMetric(descShadowImbalance, prometheus.GaugeValue, v, algorithm)
	}
	gauge("", actual)
	for _, t := range totals {
		gauge(t.Algorithm, t.Imbalance)
		to <- prometheus.MustNewConstMetric(descShadowFlows, prometheus.CounterValue, float64(t.Agree), t.Algorithm, "true")
		to <- prometheus.MustNewConstMetric(descShadowFlows, prometheus.CounterValue, float64(t.Other), t.Algorithm, "false")
	}
}

// ReadShadows makes every scrape from now on read the comparison of shadows. Several goroutines may call the
// function at once.
func (m *Metrics) ReadShadows(shadows func() (actual float64, totals []shadow.Total)) {
	source := shadowSource(shadows)
	m.shadows.Store(&source)
}
