package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/control/limit"
)

// limitCollector reads at scrape time what clients take of the servers.
type limitCollector struct {
	set *atomic.Pointer[limit.Set]
}

var (
	descInUse   = desc("server_in_use", "Connections, streams and requests that clients have at a server at this time.", "server", "what")
	descMost    = desc("server_limit", "How many of them all clients together may have.", "server", "what")
	descRefused = desc("server_refused_total", "Those that a limit refused: the one for all clients together (total), or the one for each (client).", "server", "what", "limit")
)

// Describe is [prometheus.Collector]'s.
func (limitCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descInUse, descMost, descRefused} {
		to <- d
	}
}

// Collect is [prometheus.Collector]'s.
func (c limitCollector) Collect(to chan<- prometheus.Metric) {
	for _, n := range c.set.Load().Counts() {
		to <- prometheus.MustNewConstMetric(descInUse, prometheus.GaugeValue, float64(n.Taken), n.Server, n.What)
		to <- prometheus.MustNewConstMetric(descMost, prometheus.GaugeValue, float64(n.Total), n.Server, n.What)
		to <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(n.RefusedTotal), n.Server, n.What, "total")
		to <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(n.RefusedEach), n.Server, n.What, "client")
	}
}
