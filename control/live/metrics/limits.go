package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
)

// limitCollector reads the use of the servers' limits at scrape time.
type limitCollector struct {
	descs
	set *atomic.Pointer[limit.Set]
}

var (
	limitDescs descs

	descInUse   = limitDescs.add("nfqproxy_server_in_use", "Connections, streams and requests in use at a server.", "server", "what")
	descMost    = limitDescs.add("nfqproxy_server_limit", "Limit of connections, streams and requests of all clients together.", "server", "what")
	descRefused = limitDescs.add("nfqproxy_server_refused_total", "Connections, streams and requests refused by the limit of all clients together (total) or of one client (client).", "server", "what", "limit")
)

// Collect implements [prometheus.Collector].
func (c limitCollector) Collect(to chan<- prometheus.Metric) {
	for _, n := range c.set.Load().Counts() {
		to <- prometheus.MustNewConstMetric(descInUse, prometheus.GaugeValue, float64(n.Taken), n.Server, n.What)
		to <- prometheus.MustNewConstMetric(descMost, prometheus.GaugeValue, float64(n.Total), n.Server, n.What)
		to <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(n.RefusedTotal), n.Server, n.What, "total")
		to <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(n.RefusedEach), n.Server, n.What, "client")
	}
}
