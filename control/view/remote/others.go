package remote

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Algorithms requests the algorithms.
func (c *Client) Algorithms(ctx context.Context) (*observe.Algorithms, error) {
	return get[observe.Algorithms](ctx, c, nil, "balance")
}

// Balance requests another algorithm for a Service.
func (c *Client) Balance(ctx context.Context, change observe.BalanceChange) error {
	return c.exchange(ctx, http.MethodPost, []string{"balance"}, nil, change, nil)
}

// Shadows requests the comparison of shadows.
func (c *Client) Shadows(ctx context.Context, service string) (*observe.Shadows, error) {
	q := url.Values{}
	if service != "" {
		q.Set("service", service)
	}
	return get[observe.Shadows](ctx, c, q, "shadows")
}

// Objects requests a service table.
func (c *Client) Objects(ctx context.Context, q observe.ObjectsQuery) (*observe.TableObjects, error) {
	return get[observe.TableObjects](ctx, c, parameters(q), "table", "objects")
}

// Algorithms returns the algorithms that all nodes have, and the Services of all nodes.
func (f *Relay) Algorithms(ctx context.Context) (*observe.Algorithms, error) {
	all, err := balancingOf(ctx, f, func(ctx context.Context, b observe.Balancing) (*observe.Algorithms, error) { return b.Algorithms(ctx) })
	if len(all) == 0 {
		return nil, err
	}
	sum := all[0]
	for _, a := range all[1:] {
		sum.Algorithms = slices.DeleteFunc(sum.Algorithms, func(one observe.Algorithm) bool { return !slices.Contains(a.Algorithms, one) })
		for _, s := range a.Services {
			if !slices.ContainsFunc(sum.Services, func(known observe.ServiceAlgorithm) bool { return known.Service == s.Service }) {
				sum.Services = append(sum.Services, s)
			}
		}
	}
	slices.SortFunc(sum.Services, func(a, b observe.ServiceAlgorithm) int { return strings.Compare(a.Service, b.Service) })
	return sum, nil
}

// Balance switches the algorithm on all nodes.
func (f *Relay) Balance(ctx context.Context, c observe.BalanceChange) error {
	_, err := balancingOf(ctx, f, func(ctx context.Context, b observe.Balancing) (struct{}, error) { return struct{}{}, b.Balance(ctx, c) })
	return err
}

// Shadows adds up the loads of all nodes. Algorithms that not all nodes have are left out.
func (f *Relay) Shadows(ctx context.Context, service string) (*observe.Shadows, error) {
	all, err := balancingOf(ctx, f, func(ctx context.Context, b observe.Balancing) (*observe.Shadows, error) {
		return b.Shadows(ctx, service)
	})
	if len(all) == 0 {
		return nil, err
	}
	sum := &observe.Shadows{Algorithms: slices.Clone(all[0].Algorithms), Services: []observe.ServiceShadows{}}
	for _, a := range all[1:] {
		sum.Algorithms = slices.DeleteFunc(sum.Algorithms, func(name string) bool { return !slices.Contains(a.Algorithms, name) })
	}
	for _, a := range all {
		for i := range a.Services {
			addShadows(sum, &a.Services[i])
		}
	}
	slices.SortFunc(sum.Services, func(a, b observe.ServiceShadows) int { return strings.Compare(shadowKey(&a), shadowKey(&b)) })
	return sum, nil
}

// Objects returns a service table of the node of the query.
func (f *Relay) Objects(ctx context.Context, q observe.ObjectsQuery) (*observe.TableObjects, error) {
	m, err := f.one(q.Node, "each node has its own service table")
	if err != nil {
		return nil, err
	}
	return m.Observer.Objects(ctx, q)
}

// one returns the member of the name, or the only one without a name. why is added to the error if there are several.
func (f *Relay) one(node, why string) (Member, error) {
	members, _ := f.all()
	var nodes []string
	switch {
	case node != "":
		nodes = []string{node}
	case len(members) > 1:
		return Member{}, &observe.Error{Status: http.StatusBadRequest, Field: "node", Message: "node is missing: " + why + ": want one of " + names(members)}
	}
	members, err := named(members, nodes)
	switch {
	case err != nil:
		return Member{}, err
	case len(members) == 0:
		return Member{}, errNoNodes
	}
	return members[0], nil
}

// balancingOf calls all nodes. The error is of an invalid request, or of those that have failed.
func balancingOf[T any](ctx context.Context, f *Relay, do func(context.Context, observe.Balancing) (T, error)) ([]T, error) {
	members, _ := f.all()
	var v verdict
	var all []T
	for _, r := range queryAll(members, func(m Member) (answer T, err error) {
		g := m.Observer.(*guard)
		b, ok := g.observer.(observe.Balancing)
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

// shadowKey is the same for the same service port on all nodes.
func shadowKey(s *observe.ServiceShadows) string {
	return s.Service + " " + s.Protocol + " " + s.Family
}

// addShadows adds the loads of a node.
func addShadows(s *observe.Shadows, o *observe.ServiceShadows) {
	i := slices.IndexFunc(s.Services, func(known observe.ServiceShadows) bool { return shadowKey(&known) == shadowKey(o) })
	if i < 0 {
		i = len(s.Services)
		s.Services = append(s.Services, observe.ServiceShadows{Service: o.Service, Protocol: o.Protocol, Family: o.Family, Shadows: make([]observe.ShadowLoad, len(s.Algorithms))})
	}
	to := &s.Services[i]
	to.Flows += o.Flows
	addLoad(&to.Actual, &o.Actual)
	for i, name := range s.Algorithms {
		to.Shadows[i].Algorithm = name
		if k := slices.IndexFunc(o.Shadows, func(l observe.ShadowLoad) bool { return l.Algorithm == name }); k >= 0 {
			addLoad(&to.Shadows[i], &o.Shadows[k])
		}
	}
}

func addLoad(l, o *observe.ShadowLoad) {
	l.Same += o.Same
	for _, e := range o.Endpoints {
		i := slices.IndexFunc(l.Endpoints, func(known observe.ShadowEndpoint) bool { return known.Endpoint == e.Endpoint })
		if i < 0 {
			l.Endpoints = append(l.Endpoints, e)
			continue
		}
		to := &l.Endpoints[i]
		to.Flows, to.Open, to.Removed = to.Flows+e.Flows, to.Open+e.Open, to.Removed && e.Removed
	}
	slices.SortFunc(l.Endpoints, func(a, b observe.ShadowEndpoint) int { return strings.Compare(a.Endpoint, b.Endpoint) })
	l.Measure()
}
