package otlp

import "github.com/prometheus/client_golang/prometheus"

// State is the state of the export of one signal.
type State struct {
	Signal    string // logs, traces or metrics
	Delivered uint64
	// Evicted records were not sent before newer ones needed their memory: the collector was away or too
	// slow. Rejected ones were not accepted by it. Overflow counts flows that were lost on the node before any reader
	// could see them. Unsent records were left at the end; of metrics, those of failed requests.
	Evicted, Rejected, Overflow, Unsent uint64
	// Error is the reason why the latest request failed; empty: it did not.
	Error string
}

// Lost is the number of items that were not delivered.
func (s *State) Lost() uint64 { return s.Evicted + s.Rejected + s.Overflow + s.Unsent }

var (
	descDelivered = prometheus.NewDesc("nfqproxy_otlp_delivered_total", "Log records and spans that the OpenTelemetry collector took, and exports of all metrics.", []string{"signal"}, nil)
	descLost      = prometheus.NewDesc("nfqproxy_otlp_lost_total", "Log records and spans that were not delivered, and failed exports of all metrics. Reason evicted: newer ones needed their memory, because the collector was away or slow; rejected: by the collector; overflow: the flow memory's input overflowed on the node; unsent: the request failed, or the export ended.", []string{"signal", "reason"}, nil)
	descFailing   = prometheus.NewDesc("nfqproxy_otlp_failing", "1 if the latest request failed.", []string{"signal"}, nil)
)

// Describe implements [prometheus.Collector].
func (e *Exporter) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descDelivered, descLost, descFailing} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (e *Exporter) Collect(to chan<- prometheus.Metric) {
	for _, x := range e.States() {
		to <- prometheus.MustNewConstMetric(descDelivered, prometheus.CounterValue, float64(x.Delivered), x.Signal)
		for reason, n := range map[string]uint64{"evicted": x.Evicted, "rejected": x.Rejected, "overflow": x.Overflow, "unsent": x.Unsent} {
			to <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue, float64(n), x.Signal, reason)
		}
		failing := 0.0
		if x.Error != "" {
			failing = 1
		}
		to <- prometheus.MustNewConstMetric(descFailing, prometheus.GaugeValue, failing, x.Signal)
	}
}
