package observe

import (
	"context"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Balancing switches the algorithms that balance Services while the proxy runs. It is safe for
// concurrent use. Errors of invalid requests are an [*Error].
type Balancing interface {
	Algorithms(ctx context.Context) (*Algorithms, error)
	// Balance returns when the tables with the algorithm are in force on all nodes, or with an error that names those
	// where they are not.
	Balance(ctx context.Context, c BalanceChange) error
	// Shadows compares the shadow algorithms; service is NAMESPACE/NAME, or empty for all.
	Shadows(ctx context.Context, service string) (*Shadows, error)
}

// Algorithms are the available balancing algorithms, and what they balance.
type Algorithms struct {
	Algorithms []Algorithm `json:"algorithms"` // sorted by name
	// Services lists the Services that are not balanced at random, sorted by name.
	Services []ServiceAlgorithm `json:"services"`
}

// Algorithm is a balancing algorithm, or a family of algorithms with a parameter.
type Algorithm struct {
	Name string `json:"name"`
	// Usage is the name, with the parameter if it has one: "jsq(N)", "maglev[(SLOTS)]".
	Usage   string `json:"usage"`
	Summary string `json:"summary"` // one line
}

// ServiceAlgorithm is the algorithm of a Service.
type ServiceAlgorithm struct {
	Service   string `json:"service"` // namespace/name
	Algorithm string `json:"algorithm"`
}

// BalanceChange switches the algorithm of a Service.
type BalanceChange struct {
	Service string `json:"service"` // namespace/name
	// Algorithm is the new algorithm; empty: that of its annotation or, without one, of the daemon's flag. It does not
	// outlive the daemon.
	Algorithm string `json:"algorithm"`
}

// Name returns the Service's name. The error is an [*Error].
func (c *BalanceChange) Name() (decision.ServiceName, error) { return parseServiceName(c.Service) }

func parseServiceName(s string) (decision.ServiceName, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return decision.ServiceName{}, badParameter("service", "service %q: want NAMESPACE/NAME", s)
	}
	return decision.ServiceName{Namespace: namespace, Name: name}, nil
}

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
