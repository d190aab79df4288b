package metrics

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
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
	m.read(func(to scrape) {
		if err := to.flows(o); err != nil {
			to.invalid(fmt.Errorf("counters of flows: %w", err))
		}
	})
	m.read(func(to scrape) {
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

// counted are the metrics that both service ports and endpoints have.
type counted struct {
	flows, unanswered, refused, reset, open, bytes *prometheus.Desc
}

func newCounted(prefix, of string, labels ...string) counted {
	with := func(more ...string) []string { return slices.Concat(labels, more) }
	return counted{
		flows:      newDesc("nfqproxy_"+prefix+"flows_total", "Flows "+of+", without retransmissions of the first packet. The result is that of the decision: drawn, affinity, rejected, dropped, or failed, where the conntrack entry could not be created.", with("result")...),
		unanswered: newDesc("nfqproxy_"+prefix+"unanswered_flows", "Flows "+of+" that ended without a reply, or have had none for three seconds. It decreases when a late reply arrives.", labels...),
		refused:    newDesc("nfqproxy_"+prefix+"refused_flows_total", "Flows "+of+" refused by the endpoint with a RST or an ABORT.", labels...),
		reset:      newDesc("nfqproxy_"+prefix+"reset_flows_total", "Flows "+of+" aborted by one side with a RST or an ABORT.", labels...),
		open:       newDesc("nfqproxy_"+prefix+"open_flows", "Flows "+of+" that are open: not ended, and with a conntrack entry; of those in the memory of the node.", labels...),
		bytes:      newDesc("nfqproxy_"+prefix+"bytes_total", "Bytes of the flows "+of+" whose conntrack entry is gone, with IP headers: sent or received by clients.", with("direction")...),
	}
}

var (
	serviceLabels  = []string{"namespace", "service", "port", familyLabel}
	endpointLabels = []string{"namespace", "service", "port", familyLabel, "endpoint", "pod"}

	serviceCounts  = newCounted("service_", "of a service port", serviceLabels...)
	endpointCounts = newCounted("service_endpoint_", "to an endpoint of a service port", endpointLabels...)

	descSpread = newDesc("nfqproxy_service_spread_p_value", "P-value of Pearson's chi-square test for equal probabilities of the endpoints, over the random selections since the endpoints last changed. Less than 0.01 is suspicious with 5 selections or more for each endpoint.", serviceLabels...)
	descShare  = newDesc("nfqproxy_service_endpoint_share_ratio", "The endpoint's share of the random selections since the endpoints last changed: observed and expected.", slices.Concat(endpointLabels, []string{"share"})...)
)

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// services reads the flow counters of the selected services.
func (to scrape) services(o observe.Observer, selected ServiceMetrics) error {
	if len(selected.Services) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var chosen []observe.Service
	_, err := observe.EachService(ctx, o, observe.ServiceQuery{}, func(*observe.Services) error { return nil }, func(s *observe.Service) error {
		if selected.Services.Match(s.Namespace, s.Name) {
			chosen = append(chosen, *s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r := budget{left: selected.Limit, to: to}
	for i := range chosen {
		r.add(ofService(&chosen[i]))
	}
	for i := range chosen {
		s := &chosen[i]
		for k := range s.Endpoints {
			if e := &s.Endpoints[k]; !e.Removed {
				r.add(ofEndpoint(s, e))
			}
		}
	}
	to.gauge("nfqproxy_service_metrics_dropped_series", "Time series of services and endpoints that are left out by the limit.", r.dropped)
	return nil
}

// budget is the number of time series left within the limit.
type budget struct {
	left    int
	dropped int
	to      scrape
}

// add exports all of the series or, if they exceed the limit, none, and none from then on: the
// exported series do not depend on the size of later ones.
func (r *budget) add(list []series) {
	if r.dropped > 0 || len(list) > r.left {
		r.dropped += len(list)
		return
	}
	r.left -= len(list)
	for _, s := range list {
		r.to <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value, s.labels...)
	}
}

// series is a time series at this moment.
type series struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	value  float64
	labels []string
}

func ofService(s *observe.Service) []series {
	labels := labelsOf(s)
	list := serviceCounts.of(&s.Flows, labels)
	list = append(list,
		serviceCounts.result("rejected", s.Flows.Rejected, labels),
		serviceCounts.result("dropped", s.Flows.Dropped, labels))
	if s.Fit != nil {
		list = append(list, series{descSpread, prometheus.GaugeValue, s.Fit.PValue, labels})
	}
	return list
}

func ofEndpoint(s *observe.Service, e *observe.Endpoint) []series {
	labels := append(labelsOf(s), e.Endpoint, e.Pod)
	list := endpointCounts.of(&e.Flows, labels)
	if s.Fit != nil {
		list = append(list,
			series{descShare, prometheus.GaugeValue, e.Expected, with(labels, "expected")},
			series{descShare, prometheus.GaugeValue, e.Observed, with(labels, "observed")})
	}
	return list
}

// of returns the series that services and endpoints have in common. Rejected and dropped flows
// have no endpoint.
func (c counted) of(f *observe.Flows, labels []string) []series {
	return []series{
		c.result("drawn", f.Drawn, labels),
		c.result("affinity", f.Affinity, labels),
		c.result("failed", f.Failed, labels),
		{c.unanswered, prometheus.GaugeValue, float64(f.Unanswered), labels},
		{c.refused, prometheus.CounterValue, float64(f.Refused), labels},
		{c.reset, prometheus.CounterValue, float64(f.Reset), labels},
		{c.open, prometheus.GaugeValue, float64(f.Open), labels},
		{c.bytes, prometheus.CounterValue, float64(f.BytesSent), with(labels, "sent")},
		{c.bytes, prometheus.CounterValue, float64(f.BytesReceived), with(labels, "received")},
	}
}

func (c counted) result(result string, n uint64, labels []string) series {
	return series{c.flows, prometheus.CounterValue, float64(n), with(labels, result)}
}

// labelsOf returns the labels of a service port. As in Kubernetes the port label is its name or,
// without one, its number.
func labelsOf(s *observe.Service) []string {
	return []string{s.Namespace, s.Name, cmp.Or(s.PortName, strconv.Itoa(int(s.Port))), s.Family}
}

func with(labels []string, more string) []string { return slices.Concat(labels, []string{more}) }

// ServicePatterns select Services: NAMESPACE/NAME each, where * matches any characters
// except the slash. The zero value selects none.
type ServicePatterns []string

// ParseServicePatterns parses patterns separated by commas, for example "shop/*,default/web".
// The empty text has no patterns.
func ParseServicePatterns(text string) (ServicePatterns, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var patterns ServicePatterns
	for p := range strings.SplitSeq(text, ",") {
		p = strings.TrimSpace(p)
		namespace, name, ok := strings.Cut(p, "/")
		if !ok || namespace == "" || name == "" {
			return nil, fmt.Errorf(`service pattern %q: want NAMESPACE/NAME, where * matches anything: "shop/*", "*/web"`, p)
		}
		if wrong := strings.Trim(namespace+name, inNames); wrong != "" {
			return nil, fmt.Errorf("service pattern %q: invalid character %q: want lower-case letters, digits, - and the wildcard *", p, []rune(wrong)[0])
		}
		patterns = append(patterns, p)
	}
	return patterns, nil
}

// inNames are the characters of names (DNS labels, RFC 1123) and patterns.
const inNames = "abcdefghijklmnopqrstuvwxyz0123456789-*"

// Match reports whether one of the patterns matches the Service.
func (p ServicePatterns) Match(namespace, name string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool {
		ok, _ := path.Match(pattern, namespace+"/"+name) // patterns that were parsed are valid
		return ok
	})
}
