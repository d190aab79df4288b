package offpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
)

// Below these, the log has too little of what the target selects.
const (
	fewEffective      = 100
	fewEffectiveShare = 0.05
)

// report makes the estimates of all flows and of each service.
func (s *sample) report(h *replay.History, c *Config) *Report {
	r := &Report{
		Flows: len(h.Flows), Counted: len(s.flows), LeftOut: s.reasons(), Others: h.Others,
		Replications: c.Replications, Confidence: c.Confidence, Seed: c.Seed, Services: []Group{},
	}
	var invalid []string
	for _, name := range slices.Sorted(maps.Keys(s.services)) {
		of := s.services[name]
		if len(of.flows) == 0 {
			continue
		}
		of.robust()
		g := newGroup(of.flows, c.Confidence)
		g.Service, g.Algorithm = name, of.algorithm
		f := flowsOf{of.flows, c.Confidence / 100}
		g.Outcomes = append(g.Outcomes, f.imbalance(len(of.endpoints), g.Weights.Effective > 0))
		g.Unlogged = of.unlogged()
		of.warn(&g, significant/float64(len(s.services)))
		if g.has(Interference) {
			invalid = append(invalid, name)
		}
		r.Services = append(r.Services, g)
	}
	r.All = newGroup(s.flows, c.Confidence)
	if len(invalid) > 0 {
		r.All.invalid()
		r.All.warn(Interference, "the estimate of connect latency is invalid, as in "+quantity.Some(invalid, 5))
	}
	return r
}

// newGroup makes the estimates that all groups have.
func newGroup(flows []*counted, percent float64) Group {
	f := flowsOf{flows, percent / 100}
	g := Group{Flows: len(flows), Weights: f.weights(), Unlogged: []Unlogged{}, Warnings: []Warning{}}
	for k := range outcomes {
		g.Outcomes = append(g.Outcomes, f.mean(k, g.Weights.Effective > 0))
	}
	if n := g.Weights.Effective; n < fewEffective || n < fewEffectiveShare*float64(g.Flows) {
		g.warn(Overlap, fmt.Sprintf("little overlap: the weighted flows are worth %.0f of %s", n, quantity.Count(g.Flows, "flow")))
	}
	if g.Outcomes[latency].Recorded == nil {
		g.warn(Missing, "connect latency is not known: no flow that counts has life.answeredAfter")
	}
	return g
}

// unlogged are the endpoints that the target selects and no counted flow went to, the most frequent first.
func (s *service) unlogged() []Unlogged {
	logged := make([]bool, len(s.endpoints))
	shares := make([]float64, len(s.endpoints))
	for _, c := range s.flows {
		logged[c.endpoint] = true
		for _, e := range c.picks {
			shares[e] += 1 / float64(len(c.picks)*len(s.flows))
		}
	}
	list := []Unlogged{} // never null in JSON
	for e, share := range shares {
		if !logged[e] && share > 0 {
			list = append(list, Unlogged{s.endpoints[e].String(), share})
		}
	}
	slices.SortStableFunc(list, func(a, b Unlogged) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), strings.Compare(a.Endpoint, b.Endpoint))
	})
	return list
}

// warn adds the warnings of a service. significance is the probability below which a dependence is none by chance.
func (s *service) warn(g *Group, significance float64) {
	if len(g.Unlogged) > 0 {
		var list []string
		for _, u := range g.Unlogged {
			list = append(list, fmt.Sprintf("%s (%.1f %%)", u.Endpoint, 100*u.Share))
		}
		g.warn(Overlap, fmt.Sprintf("no overlap: %s selects endpoints to which no flow of the log went: %s", s.algorithm, quantity.Some(list, 5)))
	}
	if s.feedback {
		g.invalid()
		g.warn(Interference, fmt.Sprintf("interference: %s depends on the load of endpoints, which depends on the other flows: the estimate of connect latency is invalid", s.algorithm))
	}
	if g.LoadDependence = s.dependence(); g.LoadDependence != nil && g.LoadDependence.P < significance {
		g.invalid()
		g.warn(Interference, fmt.Sprintf("interference: connect latency depends on the endpoint's open connections (rank correlation %.2f, p = %.2g): the estimate of connect latency is invalid",
			g.LoadDependence.Correlation, g.LoadDependence.P))
	}
}

func (g *Group) has(kind string) bool {
	return slices.ContainsFunc(g.Warnings, func(w Warning) bool { return w.Kind == kind })
}
