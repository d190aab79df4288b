package metrics

import (
	"cmp"
	"context"
	"fmt"
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

// ReadFlows makes every scrape from now on read the counters of the node's observer and, as
// selected, its services. Before, there are no such metrics. The observer must be that of one
// node. Metrics that it cannot provide are left out of a scrape, and the reason is logged.
func (m *Metrics) ReadFlows(o observe.Observer, s ServiceMetrics) {
	s.Limit = cmp.Or(s.Limit, DefaultServiceLimit)
	m.flows.set(func(to scrape) {
		if err := to.flows(o); err != nil {
			to.invalid(fmt.Errorf("counters of flows: %w", err))
		}
	})
	m.services.set(func(to scrape) {
		if err := to.services(o, s); err != nil {
			to.invalid(fmt.Errorf("flows of services: %w", err))
		}
	})
}

// invalid has the error logged.
func (to scrape) invalid(err error) {
	to <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
}

// flows reads the flow counters of a node.
func (to scrape) flows(o observe.Observer) error {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	nodes, err := o.Stats(ctx)
	if err == nil && len(nodes) != 1 {
		err = fmt.Errorf("want counters of one node, have %d", len(nodes))
	}
	if err != nil {
		return err
	}
	s := &nodes[0]
	to.gauge("nfqproxy_flow_api_readers", "Clients that follow the flows at present.", s.Readers)
	to.counter("nfqproxy_flow_records_missed_total", "Records that clients of the flow API missed, because they were slow or because of the rate limit of the API.", s.Missed)
	known := to.gauges("nfqproxy_known_flows", "Flows in the memory of the node. State open: the flow is open. State ended: it has ended, but the kernel may keep its entry for some time, as in TIME_WAIT.", "state")
	known(float64(s.Known.Open), "open")
	known(float64(s.Known.Flows-s.Known.Open), "ended")
	to.gauge("nfqproxy_known_flows_capacity", "Maximum number of flows in the memory of the node.", s.Known.Capacity)
	to.counter("nfqproxy_forgotten_flows_total", "Open flows that were evicted for newer ones.", s.Known.Forgotten)
	to.gauge("nfqproxy_table_generations", "Generations of the service table in the memory of the node, the one in force included.", s.Generations.Kept)
	to.counter("nfqproxy_table_generations_dropped_total", "Generations of the service table that were dropped for newer ones. Flows that they decided are explained by their service port alone.", s.Generations.Dropped)
	to.counter("nfqproxy_unremembered_flows_total", "Flows lost by overflow of the flow memory's input. They are not in the metrics of services.", s.Known.Lost)
	to.gauge("nfqproxy_conntrack_events_followed", "1 if conntrack events are received; 0: flow life cycles are not available.", one(s.Kernel.Following))
	to.counter("nfqproxy_conntrack_events_total", "Conntrack events received.", s.Kernel.Events)
	to.counter("nfqproxy_conntrack_event_overruns_total", "Times that the kernel lost conntrack events because the event socket overflowed.", s.Kernel.Overruns)
	to.counter("nfqproxy_conntrack_event_resyncs_total", "Dumps of the conntrack table to recover from lost events.", s.Kernel.Resyncs)
	to.gauge("nfqproxy_conntrack_events_paused", "1 if conntrack events are paused because the rate of new flows is too high.", one(s.Kernel.Paused))
	return nil
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
