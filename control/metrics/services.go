package metrics

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
)

// serviceCollector reads at scrape time how the flows of chosen services spread.
type serviceCollector struct {
	source *atomic.Pointer[flowSource]
}

// counted are the metrics that service ports have, and endpoints as well.
type counted struct {
	flows, unanswered, refused, reset, open, bytes *prometheus.Desc
}

func newCounted(prefix, of string, labels ...string) counted {
	with := func(more ...string) []string { return slices.Concat(labels, more) }
	return counted{
		flows:      desc(prefix+"flows_total", "Flows "+of+", without first packets that came again. The result is what was decided: drawn, affinity, rejected, dropped, or failed, where no connection entry could be made.", with("result")...),
		unanswered: desc(prefix+"unanswered_flows", "Flows "+of+" that ended without an answer, or have had none for three seconds. Less by one when a late answer comes.", labels...),
		refused:    desc(prefix+"refused_flows_total", "Flows "+of+" that the endpoint answered with a RST or an ABORT.", labels...),
		reset:      desc(prefix+"reset_flows_total", "Flows "+of+" that one side broke off with a RST or an ABORT.", labels...),
		open:       desc(prefix+"open_flows", "Flows "+of+" that are open: not ended, and with an entry in the kernel; of those that are remembered.", labels...),
		bytes:      desc(prefix+"bytes_total", "Bytes of the flows "+of+" whose entry is gone from the kernel, with IP headers: sent by clients, or received.", with("direction")...),
	}
}

func (c counted) descs() []*prometheus.Desc {
	return []*prometheus.Desc{c.flows, c.unanswered, c.refused, c.reset, c.open, c.bytes}
}

var (
	serviceLabels  = []string{"namespace", "service", "port", familyLabel}
	endpointLabels = []string{"namespace", "service", "port", familyLabel, "endpoint", "pod"}

	serviceCounts  = newCounted("service_", "of a service port", serviceLabels...)
	endpointCounts = newCounted("service_endpoint_", "to an endpoint of a service port", endpointLabels...)

	descSpread = desc("service_spread_p_value", "How likely draws with equal chances are to spread over the endpoints as unequally as those since they last changed did, or more. Less than 0.01 is suspicious if there were 5 draws or more for each endpoint.", serviceLabels...)
	descShare  = desc("service_endpoint_share_ratio", "The endpoint's share of the draws since the endpoints last changed: observed, and expected.", slices.Concat(endpointLabels, []string{"share"})...)
	descCut    = desc("service_metrics_dropped_series", "Time series of services and endpoints that are left out, because there are too many.")
)

// Describe is [prometheus.Collector]'s.
func (c serviceCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range slices.Concat(serviceCounts.descs(), endpointCounts.descs(), []*prometheus.Desc{descSpread, descShare, descCut}) {
		to <- d
	}
}

// Collect is [prometheus.Collector]'s.
func (c serviceCollector) Collect(to chan<- prometheus.Metric) {
	source := c.source.Load()
	if source == nil || len(source.services.Services) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	var chosen []observe.Service
	_, err := observe.EachService(ctx, source.observer, observe.ServiceQuery{}, func(*observe.Services) error { return nil }, func(s *observe.Service) error {
		if source.services.Services.Match(s.Namespace, s.Name) {
			chosen = append(chosen, *s)
		}
		return nil
	})
	if err != nil {
		to <- prometheus.NewInvalidMetric(serviceCounts.flows, fmt.Errorf("flows of services: %w", err))
		return
	}
	r := budget{left: source.services.Limit, to: to}
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
	to <- prometheus.MustNewConstMetric(descCut, prometheus.GaugeValue, float64(r.dropped))
}

// room is how many time series there may be still.
type budget struct {
	left    int
	dropped int
	to      chan<- prometheus.Metric
}

// add exports all of them or, if there is no room for all, none, and none from then on:
// what is there does not depend on how much what comes later needs.
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

// of gives what services and endpoints have in common. What is rejected or dropped has no
// endpoint.
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

// labelsOf gives the labels of a service port, which is named as Kubernetes does: by its
// name or, if it has none, its number.
func labelsOf(s *observe.Service) []string {
	port := s.PortName
	if port == "" {
		port = strconv.Itoa(int(s.Port))
	}
	return []string{s.Namespace, s.Name, port, s.Family}
}

func with(labels []string, more string) []string { return slices.Concat(labels, []string{more}) }
