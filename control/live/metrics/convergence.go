package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// convergence are the metrics of what flows show about the work of a service proxy. It is the journal's meter.
type convergence struct {
	seconds                                 *prometheus.HistogramVec
	outdated, unknownEndpoint, untranslated prometheus.Counter
}

// convergenceBuckets are close around one second, the objective of the alerts.
var convergenceBuckets = []float64{0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60}

func newConvergence() *convergence {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	c := &convergence{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nfqproxy_convergence_seconds",
			Help:    "Time from the service table with a change of an endpoint, 0 if before: to the first flow to one that gets new flows since (first_flow); to the last flow to one that gets none any more and had some before, within a minute, 0 if none came later (last_flow); until the rules of the observed service proxy had the change, where the kernel notifies (rules). One observation for each endpoint and change; of a change, the first 10 endpoints.",
			Buckets: convergenceBuckets,
		}, []string{"event"}),
		outdated:        counter("nfqproxy_observed_outdated_flows_total", "New flows that the observed service proxy sent to an endpoint that was out of use when they began, by the objects that the node knew."),
		unknownEndpoint: counter("nfqproxy_observed_unknown_endpoint_flows_total", "New flows to a service that the observed service proxy sent to what is none of its endpoints in any table that the node keeps."),
		untranslated:    counter("nfqproxy_observed_untranslated_flows_total", "New flows to a service that the observed service proxy did not translate."),
	}
	for _, event := range []string{observe.FirstFlow, observe.LastFlow, observe.Rules} {
		c.seconds.WithLabelValues(event)
	}
	return c
}

func (c *convergence) collectors() []prometheus.Collector {
	return []prometheus.Collector{c.seconds, c.outdated, c.unknownEndpoint, c.untranslated}
}

// Converged records what happened after a change of an endpoint, and how long after: see [observe.FirstFlow].
func (m *Metrics) Converged(event string, after time.Duration) {
	m.convergence.seconds.WithLabelValues(event).Observe(after.Seconds())
}

// Odd counts flows that the observed proxy did not treat as the objects say.
func (m *Metrics) Odd(f observe.Flows) {
	m.convergence.outdated.Add(float64(f.Outdated))
	m.convergence.unknownEndpoint.Add(float64(f.UnknownEndpoint))
	m.convergence.untranslated.Add(float64(f.NotTranslated))
}
