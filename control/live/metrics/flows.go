package metrics

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// ServiceMetrics selects the Services with metrics of their own. Each service port has
// about a dozen time series, and each of its endpoints another dozen.
type ServiceMetrics struct {
	Services ServicePatterns // empty: none
	// Limit is the maximum number of time series; 0: [DefaultServiceLimit]. Those of the services
	// come first, then those of their endpoints, each in the order of namespace, name, port
	// and address family. From the first one that exceeds the limit on, all are left out.
	Limit int
}

// DefaultServiceLimit is the default limit of the time series of services.
const DefaultServiceLimit = 2000

// readTimeout is how long a scrape waits for an observer. Prometheus gives up after 10 s.
const readTimeout = 5 * time.Second

// flowSource is the observer that a scrape reads flows from.
type flowSource struct {
	observer observe.Observer
	services ServiceMetrics
}

// ReadFlows makes every scrape from now on read the counters of the node's observer and, as
// selected, its services. Before, there are no such metrics. The observer must be that of one
// node. Metrics that it cannot provide are left out of a scrape, and the reason is logged.
func (m *Metrics) ReadFlows(o observe.Observer, s ServiceMetrics) {
	s.Limit = cmp.Or(s.Limit, DefaultServiceLimit)
	m.flows.Store(&flowSource{o, s})
}

// flowCollector reads the flow counters of a node at scrape time.
type flowCollector struct {
	descs
	source *atomic.Pointer[flowSource]
}

var (
	flowDescs descs

	descReaders      = flowDescs.add("nfqproxy_flow_api_readers", "Clients that follow the flows at present.")
	descMissed       = flowDescs.add("nfqproxy_flow_records_missed_total", "Records that clients of the flow API missed, because they were slow or because of the rate limit of the API.")
	descKnown        = flowDescs.add("nfqproxy_known_flows", "Flows in the memory of the node. State open: the flow is open. State ended: it has ended, but the kernel may keep its entry for some time, as in TIME_WAIT.", "state")
	descCapacity     = flowDescs.add("nfqproxy_known_flows_capacity", "Maximum number of flows in the memory of the node.")
	descForgotten    = flowDescs.add("nfqproxy_forgotten_flows_total", "Open flows that were evicted for newer ones.")
	descGenerations  = flowDescs.add("nfqproxy_table_generations", "Generations of the service table in the memory of the node, the one in force included.")
	descDropped      = flowDescs.add("nfqproxy_table_generations_dropped_total", "Generations of the service table that were dropped for newer ones. Flows that they decided are explained by their service port alone.")
	descUnremembered = flowDescs.add("nfqproxy_unremembered_flows_total", "Flows lost by overflow of the flow memory's input. They are not in the metrics of services.")
	descFollowing    = flowDescs.add("nfqproxy_conntrack_events_followed", "1 if conntrack events are received; 0: flow life cycles are not available.")
	descEvents       = flowDescs.add("nfqproxy_conntrack_events_total", "Conntrack events received.")
	descOverruns     = flowDescs.add("nfqproxy_conntrack_event_overruns_total", "Times that the kernel lost conntrack events because the event socket overflowed.")
	descResyncs      = flowDescs.add("nfqproxy_conntrack_event_resyncs_total", "Dumps of the conntrack table to recover from lost events.")
	descPaused       = flowDescs.add("nfqproxy_conntrack_events_paused", "1 if conntrack events are paused because the rate of new flows is too high.")
)

// Collect implements [prometheus.Collector].
func (c flowCollector) Collect(to chan<- prometheus.Metric) {
	source := c.source.Load()
	if source == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	nodes, err := source.observer.Stats(ctx)
	if err == nil && len(nodes) != 1 {
		err = fmt.Errorf("want counters of one node, have %d", len(nodes))
	}
	if err != nil {
		to <- prometheus.NewInvalidMetric(descReaders, fmt.Errorf("counters of flows: %w", err))
		return
	}
	s := &nodes[0]
	counter := func(d *prometheus.Desc, n uint64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(descReaders, s.Readers)
	counter(descMissed, s.Missed)
	gauge(descKnown, s.Known.Open, "open")
	gauge(descKnown, s.Known.Flows-s.Known.Open, "ended")
	gauge(descCapacity, s.Known.Capacity)
	counter(descForgotten, s.Known.Forgotten)
	gauge(descGenerations, s.Generations.Kept)
	counter(descDropped, s.Generations.Dropped)
	counter(descUnremembered, s.Known.Lost)
	gauge(descFollowing, one(s.Kernel.Following))
	counter(descEvents, s.Kernel.Events)
	counter(descOverruns, s.Kernel.Overruns)
	counter(descResyncs, s.Kernel.Resyncs)
	gauge(descPaused, one(s.Kernel.Paused))
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
