package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// tableCollector reads the service table that is in force, at scrape time. Before the
// first there is nothing.
type tableCollector struct {
	table *atomic.Pointer[decision.Table]
}

var (
	descGeneration = prometheus.NewDesc("nfqproxy_table_generation",
		"Number of the service table in force, counted from 1.", nil, nil)
	descBuilt = prometheus.NewDesc("nfqproxy_table_built_timestamp_seconds",
		"When the service table in force was made; time() minus this is its age.", nil, nil)
	descServicePorts = prometheus.NewDesc("nfqproxy_service_ports",
		"Ports of Services in the table in force.", []string{familyLabel}, nil)
	descEndpoints = prometheus.NewDesc("nfqproxy_endpoints",
		"Endpoints in the table in force, usable or not, once for each service port.", []string{familyLabel}, nil)
	descNoLocalEndpoints = prometheus.NewDesc("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
		"Service ports whose traffic policy is Local and that have usable endpoints, but none on this node. A gauge.",
		[]string{"traffic_policy", familyLabel}, nil)
)

// Describe is [prometheus.Collector]'s.
func (c tableCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descGeneration, descBuilt, descServicePorts, descEndpoints, descNoLocalEndpoints} {
		to <- d
	}
}

// Collect is [prometheus.Collector]'s.
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
	type key struct {
		family decision.Family
		policy string
	}
	ports, noLocal := make(map[decision.Family]int), make(map[key]int)
	for _, s := range t.Services() {
		ports[s.Family]++
		internal, external := noLocalEndpoints(s)
		if internal {
			noLocal[key{s.Family, "internal"}]++
		}
		if external {
			noLocal[key{s.Family, "external"}]++
		}
	}
	for _, f := range families {
		gauge(descServicePorts, float64(ports[f]), f.String())
		gauge(descEndpoints, float64(t.EndpointCount(f)), f.String())
		for _, policy := range []string{"internal", "external"} {
			gauge(descNoLocalEndpoints, float64(noLocal[key{f, policy}]), policy, f.String())
		}
	}
}

// noLocalEndpoints says under which traffic policy the service port's flows are
// dropped for want of a local endpoint. With no endpoint anywhere they are refused, which
// is not counted here. Nor is the external policy of a Service that cannot be reached
// from outside, which kube-proxy counts.
func noLocalEndpoints(s *decision.ServicePort) (internal, external bool) {
	lacks := s.HasEndpoints && len(s.Usable[decision.Local]) == 0
	return lacks && s.InternalPolicy == decision.Local, lacks && s.ExternalPolicy == decision.Local && s.External()
}
