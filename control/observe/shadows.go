package observe

import (
	"slices"
	"strings"
)

// Shadows compares the Services' algorithms with shadow algorithms, which decide without effect.
type Shadows struct {
	Algorithms []string         `json:"algorithms"` // in the order of the flag --shadow; empty: none
	Services   []ServiceShadows `json:"services"`   // service ports that have had flows, sorted by name
}

// ServiceShadows compares the shadows of a service port.
type ServiceShadows struct {
	Service  string `json:"service"` // namespace/name:port
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	Flows    uint64 `json:"flows"` // that had a choice
	// Actual is the real load, and Shadows the load that each shadow algorithm would cause, in the order of [Shadows.Algorithms].
	Actual  ShadowLoad   `json:"actual"`
	Shadows []ShadowLoad `json:"shadows"`
}

// ShadowLoad is the endpoints' load under an algorithm.
type ShadowLoad struct {
	Algorithm string `json:"algorithm,omitempty"` // absent for the actual load
	Same      uint64 `json:"same"`                // flows with a choice that would get the same endpoint
	// FlowImbalance and OpenImbalance divide the busiest endpoint's number by the mean, for flows and open connections:
	// 1 if all endpoints have the same number, 0 without any. Removed endpoints do not count.
	FlowImbalance float64          `json:"flowImbalance"`
	OpenImbalance float64          `json:"openImbalance"`
	Endpoints     []ShadowEndpoint `json:"endpoints"`
}

// ShadowEndpoint is the load of an endpoint.
type ShadowEndpoint struct {
	Endpoint string `json:"endpoint"`
	Flows    uint64 `json:"flows"`             // with and without a choice
	Open     int    `json:"open"`              // connections
	Removed  bool   `json:"removed,omitempty"` // it has connections, but is no longer an endpoint
}

// Measure fills in the imbalances.
func (l *ShadowLoad) Measure() {
	var flows, open []float64
	for _, e := range l.Endpoints {
		if !e.Removed {
			flows, open = append(flows, float64(e.Flows)), append(open, float64(e.Open))
		}
	}
	l.FlowImbalance, l.OpenImbalance = imbalance(flows), imbalance(open)
}

// imbalance is the highest value over the mean; 0: all are 0.
func imbalance(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	if sum == 0 {
		return 0
	}
	return slices.Max(values) * float64(len(values)) / sum
}

// Key is the same for the same service port on all nodes.
func (s *ServiceShadows) Key() string { return s.Service + " " + s.Protocol + " " + s.Family }

// Add adds the loads of a node.
func (s *Shadows) Add(o *ServiceShadows) {
	i := slices.IndexFunc(s.Services, func(known ServiceShadows) bool { return known.Key() == o.Key() })
	if i < 0 {
		i = len(s.Services)
		s.Services = append(s.Services, ServiceShadows{Service: o.Service, Protocol: o.Protocol, Family: o.Family, Shadows: make([]ShadowLoad, len(s.Algorithms))})
	}
	to := &s.Services[i]
	to.Flows += o.Flows
	to.Actual.add(&o.Actual)
	for i, name := range s.Algorithms {
		to.Shadows[i].Algorithm = name
		if k := slices.IndexFunc(o.Shadows, func(l ShadowLoad) bool { return l.Algorithm == name }); k >= 0 {
			to.Shadows[i].add(&o.Shadows[k])
		}
	}
}

func (l *ShadowLoad) add(o *ShadowLoad) {
	l.Same += o.Same
	for _, e := range o.Endpoints {
		i := slices.IndexFunc(l.Endpoints, func(known ShadowEndpoint) bool { return known.Endpoint == e.Endpoint })
		if i < 0 {
			l.Endpoints = append(l.Endpoints, e)
			continue
		}
		to := &l.Endpoints[i]
		to.Flows, to.Open, to.Removed = to.Flows+e.Flows, to.Open+e.Open, to.Removed && e.Removed
	}
	slices.SortFunc(l.Endpoints, func(a, b ShadowEndpoint) int { return strings.Compare(a.Endpoint, b.Endpoint) })
	l.Measure()
}
