package observetest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Balancing is an [observe.Balancing] with the algorithms lc and random and the service default/web.
type Balancing struct {
	Err error // of all requests

	mu      sync.Mutex
	changes []observe.BalanceChange
}

// Changes returns the changes in their order.
func (b *Balancing) Changes() []observe.BalanceChange {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.changes)
}

// Algorithms returns the algorithms, and the service with the algorithm of the last change.
func (b *Balancing) Algorithms(context.Context) (*observe.Algorithms, error) {
	a := &observe.Algorithms{
		Algorithms: []observe.Algorithm{
			{Name: "jsq", Usage: "jsq(N)", Summary: "N at random, the one with the fewest open connections"},
			{Name: "lc", Usage: "lc", Summary: "fewest open connections"},
			{Name: "random", Usage: "random", Summary: "each endpoint with the same probability"},
		},
		Services: []observe.ServiceAlgorithm{},
	}
	if changes := b.Changes(); len(changes) > 0 && changes[len(changes)-1].Algorithm != "" {
		a.Services = append(a.Services, observe.ServiceAlgorithm(changes[len(changes)-1]))
	}
	return a, b.Err
}

// Shadows compares p2c, which selects the second endpoint of two where the first is selected.
func (b *Balancing) Shadows(_ context.Context, service string) (*observe.Shadows, error) {
	s := &observe.Shadows{Algorithms: []string{"p2c"}, Services: []observe.ServiceShadows{}}
	if service != "" && service != "default/web" {
		return s, b.Err
	}
	load := func(algorithm string, same uint64, flows ...uint64) observe.ShadowLoad {
		l := observe.ShadowLoad{Algorithm: algorithm, Same: same}
		for i, n := range flows {
			l.Endpoints = append(l.Endpoints, observe.ShadowEndpoint{Endpoint: fmt.Sprintf("10.244.%d.2:8080", i+1), Flows: n, Open: int(n)})
		}
		l.Measure()
		return l
	}
	s.Services = append(s.Services, observe.ServiceShadows{
		Service: "default/web:http", Protocol: "TCP", Family: "IPv4", Flows: 4, Actual: load("", 4, 3, 1), Shadows: []observe.ShadowLoad{load("p2c", 1, 2, 2)},
	})
	return s, b.Err
}

// Balance accepts changes of default/web.
func (b *Balancing) Balance(_ context.Context, c observe.BalanceChange) error {
	if c.Service != "default/web" {
		return &observe.Error{Status: http.StatusNotFound, Field: "service", Message: "there is no service " + c.Service}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes = append(b.changes, c)
	return b.Err
}

// Lab is an [labapi.Lab] that keeps what it is given. Its exported fields may be changed between requests.
type Lab struct {
	Status  labapi.Status
	Changes []string // the lines of each change
	Err     error    // of changes and faults

	mu       sync.Mutex
	requests []any
}

// Requests returns the changes, the faults and the numbers of removed faults, in their order.
func (l *Lab) Requests() []any {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests
}

func (l *Lab) note(request any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, request)
}

// LabStatus returns Status.
func (l *Lab) LabStatus(context.Context) (*labapi.Status, error) { return &l.Status, nil }

// Change returns Changes or Err.
func (l *Lab) Change(_ context.Context, c labapi.Change) ([]string, error) {
	l.note(c)
	return l.Changes, l.Err
}

// AddFault returns the fault with the number 7, or Err.
func (l *Lab) AddFault(_ context.Context, f labapi.Fault) (labapi.Fault, error) {
	l.note(f)
	f.ID, f.Text = 7, f.String()
	return f, l.Err
}

// RemoveFault returns the faults of Status, or Err.
func (l *Lab) RemoveFault(_ context.Context, id int) ([]labapi.Fault, error) {
	l.note(id)
	return l.Status.Faults, l.Err
}
