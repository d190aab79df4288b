package localnode

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Shadows implements [observe.Balancing].
func (n *Node) Shadows(_ context.Context, service string) (*observe.Shadows, error) {
	r := &observe.Shadows{Algorithms: []string{}, Services: []observe.ServiceShadows{}}
	shadows := n.config.Shadows
	if shadows == nil {
		return r, nil
	}
	r.Algorithms = shadows.Algorithms()
	for _, s := range shadows.Report() {
		if service != "" && s.Service.Service().String() != service {
			continue
		}
		one := observe.ServiceShadows{Service: s.Service.String(), Protocol: s.Protocol.String(), Family: s.Family.String(), Flows: s.Flows, Actual: loadOf(s.Loads[0])}
		one.Actual.Same = s.Flows
		for i, name := range r.Algorithms {
			l := loadOf(s.Loads[i+1])
			l.Algorithm, l.Same = name, s.Agree[i]
			one.Shadows = append(one.Shadows, l)
		}
		r.Services = append(r.Services, one)
	}
	return r, nil
}

func loadOf(endpoints []shadow.Load) observe.ShadowLoad {
	l := observe.ShadowLoad{Endpoints: make([]observe.ShadowEndpoint, len(endpoints))}
	for i, e := range endpoints {
		l.Endpoints[i] = observe.ShadowEndpoint{Endpoint: e.Endpoint.String(), Flows: e.Flows, Open: e.Open, Removed: !e.Current}
	}
	l.Measure()
	return l
}

// Algorithms implements [observe.Balancing].
func (n *Node) Algorithms(context.Context) (*observe.Algorithms, error) {
	t := n.config.Table()
	if t == nil {
		return nil, notReady()
	}
	return AlgorithmsOf(n.config.Algorithms, t), nil
}

// AlgorithmsOf describes the algorithms of a registry and the Services of a table.
func AlgorithmsOf(r *balance.Registry, t *decision.Table) *observe.Algorithms {
	a := &observe.Algorithms{Algorithms: []observe.Algorithm{}, Services: []observe.ServiceAlgorithm{}}
	for _, e := range r.Entries() {
		a.Algorithms = append(a.Algorithms, observe.Algorithm{Name: e.Name, Usage: e.Usage(), Summary: e.Summary})
	}
	for _, s := range t.Services() {
		if s.Balance != "" {
			a.Services = append(a.Services, observe.ServiceAlgorithm{Service: s.Name.Service().String(), Algorithm: s.Balance})
		}
	}
	slices.SortFunc(a.Services, func(a, b observe.ServiceAlgorithm) int { return strings.Compare(a.Service, b.Service) })
	a.Services = slices.CompactFunc(a.Services, func(a, b observe.ServiceAlgorithm) bool { return a.Service == b.Service })
	return a
}

// Balance implements [observe.Balancing].
func (n *Node) Balance(ctx context.Context, c observe.BalanceChange) error {
	service, err := c.Name()
	if err != nil {
		return err
	}
	var algorithm *string
	if c.Algorithm != "" {
		if algorithm, err = Canonical(n.config.Algorithms, c.Algorithm); err != nil {
			return err
		}
	}
	t := n.config.Table()
	if t == nil {
		return notReady()
	}
	if len(t.Service(service)) == 0 {
		return &observe.Error{Status: http.StatusNotFound, Field: "service", Message: "there is no service " + c.Service + " with a cluster IP"}
	}
	return n.config.Switch(ctx, service, algorithm)
}

// Canonical reads an algorithm's name as [balance.Registry.Canonical] does. The error is an [*observe.Error].
func Canonical(r *balance.Registry, algorithm string) (*string, error) {
	canonical, err := r.Canonical(algorithm)
	if err != nil {
		return nil, &observe.Error{Status: http.StatusBadRequest, Field: "algorithm", Message: err.Error()}
	}
	return &canonical, nil
}
