package observe

import (
	"context"
	"strings"
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

// Name returns the parts of the Service's name. The error is an [*Error].
func (c *BalanceChange) Name() (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(c.Service, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", badParameter("service", "service %q: want NAMESPACE/NAME", c.Service)
	}
	return namespace, name, nil
}
