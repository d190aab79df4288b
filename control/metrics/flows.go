package metrics

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
)

// ServiceMetrics says which Services have metrics of their own. Each service port has
// about a dozen time series, and each of its endpoints another dozen.
type ServiceMetrics struct {
	Services ServicePatterns // empty: none
	// Limit is how many time series there are at most; 0: [DefaultServiceLimit]. Those of the services
	// come first, then those of their endpoints, each in the order of namespace, name, port
	// and address family, until there is no room for the next one's: that and all behind are left out.
	Limit int
}

// DefaultServiceLimit bounds the time series of services if nothing else is said.
const DefaultServiceLimit = 2000

// readTimeout is how long a scrape waits for an observer. Prometheus gives up after 10 s.
const readTimeout = 5 * time.Second

// flowSource is who is asked for flows at a scrape.
type flowSource struct {
	observer observe.Observer
	services ServiceMetrics
}

// ReadFlows lets every scrape from now on ask the node's observer for its counters and, as
// far as wanted, for its services. Before, there are no such metrics. The observer has to be
// of one node. What it cannot answer is left out of a scrape, which says why in the log.
func (m *Metrics) ReadFlows(o observe.Observer, s ServiceMetrics) {
	s.Limit = cmp.Or(s.Limit, DefaultServiceLimit)
	m.flows.Store(&flowSource{o, s})
}

// flowCollector reads at scrape time what a node remembers of flows.
type flowCollector struct {
	source *atomic.Pointer[flowSource]
}

var (
	descReaders      = desc("flow_api_readers", "Readers that follow the flows at this time.")
	descMissed       = desc("flow_records_missed_total", "Records that readers of the flow API missed: they were too slow, or there were more than it gives out.")
	descKnown        = desc("known_flows", "Flows that are remembered. State open: the flow may go on. State ended: it does not, though the kernel may keep its entry for some time, as in TIME_WAIT.", "state")
	descCapacity     = desc("known_flows_capacity", "How many flows are remembered at most.")
	descForgotten    = desc("forgotten_flows_total", "Flows that were open when they made room for newer ones.")
	descUnremembered = desc("unremembered_flows_total", "Flows that there was no room for. They are in no metric of a service.")
	descFollowing    = desc("conntrack_events_followed", "1 if the kernel's events of connections are received; 0: it is not known what becomes of flows.")
	descEvents       = desc("conntrack_events_total", "Events of connections that the kernel sent.")
	descOverruns     = desc("conntrack_event_overruns_total", "Times that the kernel lost such events, because they came too fast.")
	descResyncs      = desc("conntrack_event_resyncs_total", "Passes over the connection table that made up for lost events.")
	descPaused       = desc("conntrack_events_paused", "1 if so many flows are new that the kernel is not asked what becomes of them.")
	flowDescs        = []*prometheus.Desc{descReaders, descMissed, descKnown, descCapacity, descForgotten, descUnremembered, descFollowing, descEvents, descOverruns, descResyncs, descPaused}
)

// Describe is [prometheus.Collector]'s.
func (c flowCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range flowDescs {
		to <- d
	}
}

// Collect is [prometheus.Collector]'s.
func (c flowCollector) Collect(to chan<- prometheus.Metric) {
	source := c.source.Load()
	if source == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	nodes, err := source.observer.Stats(ctx)
	if err == nil && len(nodes) != 1 {
		err = fmt.Errorf("want those of one node, got those of %d", len(nodes))
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
