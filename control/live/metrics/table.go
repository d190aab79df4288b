package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// tableCollector reads the present service table at scrape time. Without a table it collects
// nothing.
type tableCollector struct {
	descs
	table *atomic.Pointer[decision.Table]
}

var (
	tableDescs descs

	descGeneration = tableDescs.add("nfqproxy_table_generation",
		"Number of the service table in force, counted from 1.")
	descBuilt = tableDescs.add("nfqproxy_table_built_timestamp_seconds",
		"When the service table in force was built; time() minus this is its age.")
	descServicePorts = tableDescs.add("nfqproxy_service_ports",
		"Ports of Services in the table in force.", familyLabel)
	descEndpoints = tableDescs.add("nfqproxy_endpoints",
		"Endpoints in the table in force, usable or not, once for each service port.", familyLabel)
	descNoLocalEndpoints = tableDescs.add("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
		"Service ports with traffic policy Local and usable endpoints, but none on this node. A gauge.",
		"traffic_policy", familyLabel)
)

// Collect implements [prometheus.Collector].
func (c tableCollector) Collect(to chan<- prometheus.Metric) {
	t := c.table.Load()
	if t == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(descGeneration, float64(t.Generation()))
	gauge(descBuilt, float64(t.Built().UnixNano())/1e9)
	for _, f := range families {
		c := t.Counts(f)
		gauge(descServicePorts, float64(c.ServicePorts), f.String())
		gauge(descEndpoints, float64(c.Endpoints), f.String())
		gauge(descNoLocalEndpoints, float64(c.NoLocalInternal), "internal", f.String())
		gauge(descNoLocalEndpoints, float64(c.NoLocalExternal), "external", f.String())
	}
}
