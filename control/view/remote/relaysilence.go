package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// How long a relay waits for a node. A request may take long on a node that is busy, or has much to say. So what is
// limited is not its duration: a node without an answer after quiet is asked for its counters, and is silent if that
// has no answer either until the silence timeout is over.
const (
	quiet          = 500 * time.Millisecond
	silenceTimeout = 2 * time.Second
	// recheckTimeout is how long the request lasts by which a silent node is found to answer again.
	recheckTimeout = 10 * time.Second
)

// SilentError is an [observe.ErrSilent] of a node.
type SilentError struct {
	Since time.Time // of the first request without an answer
	// Answered is when the node answered last; zero: it has not answered this program.
	Answered time.Time
}

// Error says for how long requests have had no answer. The last answer may be older, if there were no requests in
// between.
func (e *SilentError) Error() string {
	last := ""
	if !e.Answered.IsZero() {
		last = fmt.Sprintf(" (the last one at %s)", e.Answered.Format(time.TimeOnly))
	}
	return fmt.Sprintf("no answer for %s%s: %v", time.Since(e.Since).Round(time.Second), last, observe.ErrSilent)
}

// Unwrap returns [observe.ErrSilent].
func (e *SilentError) Unwrap() error { return observe.ErrSilent }

// guard is the observer of a relay's member. Its requests end with a [*SilentError] when the node is silent, and
// while it is: a view that sends several requests waits once.
type guard struct {
	observer observe.Observer

	mu        sync.Mutex
	answered  time.Time
	silent    *SilentError // nil: the node answers, as far as is known
	rechecked bool         // the request that finds that it answers again is under way
}

var _ observe.Observer = (*guard)(nil)

// guardOf returns the guard of a member: the one that it has had before, if it is the same daemon.
func guardOf(before []Member, m Member) *guard {
	for _, b := range before {
		if g := b.Observer.(*guard); b.Name == m.Name && g.observer == m.Observer {
			return g
		}
	}
	return &guard{observer: m.Observer}
}

// ask sends a request, and cancels it if the node is silent: it checks that after quiet, and then as often as given.
func (g *guard) ask(ctx context.Context, every time.Duration, request func(context.Context) error) error {
	if err := g.silence(); err != nil {
		return err
	}
	begun := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	var checks sync.WaitGroup
	checks.Add(1)
	check := time.AfterFunc(quiet, func() {
		defer checks.Done()
		for ctx.Err() == nil {
			if silent := g.reach(ctx, begun, silenceTimeout-quiet); silent != nil {
				cancel(silent)
				return
			}
			begun = time.Now()
			select {
			case <-time.After(every):
			case <-ctx.Done():
			}
		}
	})
	err := request(ctx)
	var silent *SilentError
	if err != nil && errors.As(context.Cause(ctx), &silent) {
		err = silent
	} else if err == nil || errors.As(err, new(*observe.Error)) {
		g.heard()
	}
	cancel(nil)
	if check.Stop() {
		checks.Done()
	}
	checks.Wait()
	return err
}

// reach asks for the node's counters. The error, if any, is that it is silent, since the given time; a machine that
// refuses the connection answers, too.
func (g *guard) reach(ctx context.Context, since time.Time, within time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := g.observer.Stats(limited)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil || errors.As(err, new(*observe.Error)):
		g.answered, g.silent = time.Now(), nil
		return nil
	case limited.Err() == nil: // another error, which the request itself will have
		g.silent = nil
		return nil
	case g.silent == nil:
		g.silent = &SilentError{Since: since, Answered: g.answered}
	}
	return g.silent
}

func (g *guard) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answered, g.silent = time.Now(), nil
}

// silence returns the error of a silent node, and nil while it answers. It finds out whether it answers again.
func (g *guard) silence() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.silent == nil {
		return nil
	}
	if !g.rechecked {
		g.rechecked = true
		go func() {
			_ = g.reach(context.Background(), time.Time{}, recheckTimeout)
			g.mu.Lock()
			defer g.mu.Unlock()
			g.rechecked = false
		}()
	}
	return g.silent
}

// of is ask for a request with an answer.
func of[T any](ctx context.Context, g *guard, request func(context.Context) (T, error)) (answer T, err error) {
	err = g.ask(ctx, quiet, func(ctx context.Context) (err error) {
		answer, err = request(ctx)
		return err
	})
	return answer, err
}

func (g *guard) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	every := quiet
	if q.Follow { // with keepalives
		every = observe.KeepAliveSeconds * time.Second
	}
	return g.ask(ctx, every, func(ctx context.Context) error { return g.observer.Flows(ctx, q, each) })
}

func (g *guard) Flow(ctx context.Context, id string) (*flow.Record, error) {
	return of(ctx, g, func(ctx context.Context) (*flow.Record, error) { return g.observer.Flow(ctx, id) })
}

func (g *guard) Services(ctx context.Context, q observe.ServiceQuery) (*observe.Services, error) {
	return of(ctx, g, func(ctx context.Context) (*observe.Services, error) { return g.observer.Services(ctx, q) })
}

func (g *guard) Tables(ctx context.Context) ([]observe.Table, error) {
	return of(ctx, g, g.observer.Tables)
}

func (g *guard) Stats(ctx context.Context) ([]observe.Stats, error) {
	return of(ctx, g, g.observer.Stats)
}

func (g *guard) Status(ctx context.Context) ([]observe.Status, error) {
	return of(ctx, g, g.observer.Status)
}

func (g *guard) Objects(ctx context.Context, q observe.ObjectsQuery) (*observe.TableObjects, error) {
	return of(ctx, g, func(ctx context.Context) (*observe.TableObjects, error) { return g.observer.Objects(ctx, q) })
}

func (g *guard) Topology(ctx context.Context) (*observe.Topology, error) {
	return of(ctx, g, g.observer.Topology)
}

func (g *guard) Explain(ctx context.Context, q observe.Question) (*flow.Record, error) {
	return of(ctx, g, func(ctx context.Context) (*flow.Record, error) { return g.observer.Explain(ctx, q) })
}

func (g *guard) Holder() observe.Holder {
	h := g.observer.Holder()
	if h == nil {
		return nil
	}
	return &guardedHolder{h, g}
}

// guardedHolder limits all requests but Get, which waits for a change.
type guardedHolder struct {
	observe.Holder
	guard *guard
}

func (h *guardedHolder) Hold(ctx context.Context, q observe.HoldQuery) (*observe.Hold, error) {
	return of(ctx, h.guard, func(ctx context.Context) (*observe.Hold, error) { return h.Holder.Hold(ctx, q) })
}

func (h *guardedHolder) Holds(ctx context.Context) ([]observe.Hold, error) {
	return of(ctx, h.guard, h.Holder.Holds)
}

func (h *guardedHolder) Act(ctx context.Context, id string, a observe.Act) (*observe.Hold, error) {
	return of(ctx, h.guard, func(ctx context.Context) (*observe.Hold, error) { return h.Holder.Act(ctx, id, a) })
}

func (h *guardedHolder) Cancel(ctx context.Context, id string) error {
	return h.guard.ask(ctx, quiet, func(ctx context.Context) error { return h.Holder.Cancel(ctx, id) })
}
