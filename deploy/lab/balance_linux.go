package lab

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/live/localnode"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
)

var _ observe.Balancing = (*Lab)(nil)

// algorithmsOf are those of the daemons of a lab. Errors are those of its scripts.
func algorithmsOf(spec *Spec) (*balance.Registry, error) {
	r := balance.NewRegistry()
	var scripts []*script.Script
	for _, path := range spec.Proxy.Scripts {
		s, err := script.Load(path)
		if err != nil {
			return nil, err
		}
		scripts = append(scripts, s)
	}
	return r, script.Register(r, scripts...)
}

// Algorithms implements [observe.Balancing].
func (l *Lab) Algorithms(ctx context.Context) (*observe.Algorithms, error) {
	objects, config, _ := l.live.load(ctx) // never an error
	table, _ := servicetable.Table(&objects.Objects, config)
	return localnode.AlgorithmsOf(l.algorithms, table), nil
}

// Shadows implements [observe.Balancing].
func (l *Lab) Shadows(ctx context.Context, service string) (*observe.Shadows, error) {
	m, ok := l.Observer.(*mapped)
	if !ok {
		return nil, errors.New("the lab's flow API is not open")
	}
	return m.Shadows(ctx, service)
}

// Balance implements [observe.Balancing]. It changes the annotation of the Service, as kubectl annotate does.
func (l *Lab) Balance(ctx context.Context, c observe.BalanceChange) error {
	if _, err := c.Name(); err != nil {
		return err
	}
	if c.Algorithm != "" {
		if _, err := localnode.Canonical(l.algorithms, c.Algorithm); err != nil {
			return err
		}
	}
	_, err := l.live.change(ctx, func(s *state, _ time.Time) ([]string, error) { return nil, s.annotate(c.Service, c.Algorithm) })
	if err != nil {
		return err
	}
	if late := l.live.settle(ctx); len(late) > 0 {
		return errors.New(strings.Join(late, "; "))
	}
	return nil
}

// annotate sets the algorithm in a Service's annotation; empty: that of the files.
func (s *state) annotate(service, algorithm string) error {
	is := func(o *corev1.Service) bool { return nameOf(o) == service }
	all := merge(s.written.Services, s.applied.services)
	i := slices.IndexFunc(all, is)
	if i < 0 {
		return &observe.Error{Status: http.StatusNotFound, Field: "service", Message: "there is no service " + service}
	}
	o := all[i].DeepCopy()
	if algorithm == "" {
		if i := slices.IndexFunc(s.written.Services, is); i >= 0 {
			algorithm = s.written.Services[i].Annotations[servicetable.AnnotationBalance]
		}
	}
	switch {
	case algorithm == "":
		delete(o.Annotations, servicetable.AnnotationBalance)
	case o.Annotations == nil:
		o.Annotations = map[string]string{servicetable.AnnotationBalance: algorithm}
	default:
		o.Annotations[servicetable.AnnotationBalance] = algorithm
	}
	if s.applied.services == nil {
		s.applied.services = make(map[string]*corev1.Service)
	}
	s.applied.services[service] = o
	return nil
}
