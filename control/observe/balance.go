package observe

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// Balancing switches the algorithms that balance Services while the proxy runs. It is safe for
// concurrent use. Errors of invalid requests are an [*Error].
type Balancing interface {
	Algorithms(ctx context.Context) (*Algorithms, error)
	// Balance returns when the tables with the algorithm are in force: on all nodes, or else with an error that
	// names those where they are not.
	Balance(ctx context.Context, c BalanceChange) error
	// Shadows compares the algorithms that decide beside; service is NAMESPACE/NAME, or empty for all.
	Shadows(ctx context.Context, service string) (*Shadows, error)
}

// Algorithms are the balancing algorithms there are, and what they balance.
type Algorithms struct {
	Algorithms []Algorithm `json:"algorithms"` // sorted by name
	// Services are those that are not balanced at random, sorted by name.
	Services []ServiceAlgorithm `json:"services"`
}

// Algorithm is a balancing algorithm, or a family of algorithms with a parameter.
type Algorithm struct {
	Name string `json:"name"`
	// Usage is how it is written, with its parameter: "jsq(N)", "maglev[(SLOTS)]". Without a parameter it is the name.
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
	// Algorithm is its new algorithm; empty: what its annotation or, without one, the daemon's flag names.
	// It does not outlive the daemon.
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

// Algorithms requests the algorithms.
func (c *Client) Algorithms(ctx context.Context) (*Algorithms, error) {
	return get[Algorithms](ctx, c, nil, "balance")
}

// Balance requests another algorithm for a Service.
func (c *Client) Balance(ctx context.Context, change BalanceChange) error {
	return c.exchange(ctx, http.MethodPost, []string{"balance"}, nil, change, nil)
}

// Algorithms returns the algorithms that all nodes have, and the Services of all nodes.
func (f *Fleet) Algorithms(ctx context.Context) (*Algorithms, error) {
	all, err := balancingOf(ctx, f, func(ctx context.Context, b Balancing) (*Algorithms, error) { return b.Algorithms(ctx) })
	if len(all) == 0 {
		return nil, err
	}
	sum := all[0]
	for _, a := range all[1:] {
		sum.Algorithms = slices.DeleteFunc(sum.Algorithms, func(one Algorithm) bool { return !slices.Contains(a.Algorithms, one) })
		for _, s := range a.Services {
			if !slices.ContainsFunc(sum.Services, func(known ServiceAlgorithm) bool { return known.Service == s.Service }) {
				sum.Services = append(sum.Services, s)
			}
		}
	}
	slices.SortFunc(sum.Services, func(a, b ServiceAlgorithm) int { return strings.Compare(a.Service, b.Service) })
	return sum, nil
}

// Balance switches the algorithm on all nodes.
func (f *Fleet) Balance(ctx context.Context, c BalanceChange) error {
	_, err := balancingOf(ctx, f, func(ctx context.Context, b Balancing) (struct{}, error) { return struct{}{}, b.Balance(ctx, c) })
	return err
}

// balancingOf calls all nodes. The error is of an invalid request, or of those that have failed.
func balancingOf[T any](ctx context.Context, f *Fleet, do func(context.Context, Balancing) (T, error)) ([]T, error) {
	members, _ := f.all()
	var v verdict
	var all []T
	for _, r := range queryAll(members, func(m Member) (answer T, err error) {
		g := m.Observer.(*guard)
		b, ok := g.observer.(Balancing)
		if !ok {
			return answer, errNoBalancing
		}
		return of(ctx, g, func(ctx context.Context) (T, error) { return do(ctx, b) })
	}) {
		if v.add(r.Name, r.err) {
			all = append(all, r.answer)
		}
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	return all, errors.Join(v.errs...)
}

var errNoBalancing = errors.New("its algorithms cannot be switched")
