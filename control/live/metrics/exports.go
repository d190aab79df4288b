package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// exportCollector reads the state of the export to an OpenTelemetry collector at scrape time.
type exportCollector struct {
	descs
	exports *atomic.Pointer[func() []observe.Export]
}

var (
	exportDescs descs

	descDelivered  = exportDescs.add("nfqproxy_otlp_delivered_total", "Log records and spans that the OpenTelemetry collector took, and exports of all metrics.", "signal")
	descExportLost = exportDescs.add("nfqproxy_otlp_lost_total", "Log records and spans that were not delivered, and failed exports of all metrics. Reason evicted: newer flows needed their memory, because the collector was away or slow; rejected: by the collector; overflow: the flow memory's input overflowed; unsent: the request failed, or the daemon ended.", "signal", "reason")
	descExporting  = exportDescs.add("nfqproxy_otlp_failing", "1 if the latest request failed.", "signal")
)

// Collect implements [prometheus.Collector].
func (c exportCollector) Collect(to chan<- prometheus.Metric) {
	read := c.exports.Load()
	if read == nil {
		return
	}
	for _, x := range (*read)() {
		to <- prometheus.MustNewConstMetric(descDelivered, prometheus.CounterValue, float64(x.Delivered), x.Signal)
		for reason, n := range map[string]uint64{"evicted": x.Evicted, "rejected": x.Rejected, "overflow": x.Overflow, "unsent": x.Unsent} {
			to <- prometheus.MustNewConstMetric(descExportLost, prometheus.CounterValue, float64(n), x.Signal, reason)
		}
		to <- prometheus.MustNewConstMetric(descExporting, prometheus.GaugeValue, float64(one(x.Error != "")), x.Signal)
	}
}
