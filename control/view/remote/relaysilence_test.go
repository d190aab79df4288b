package remote_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// frozen is a node whose daemon accepts requests and does not answer while it is stopped.
type frozen struct {
	*observetest.Fake
	resumed chan struct{} // closed: it answers
	slow    time.Duration // of services
}

func (f *frozen) wait(ctx context.Context) error {
	select {
	case <-f.resumed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *frozen) Stats(ctx context.Context) ([]observe.Stats, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	return f.Fake.Stats(ctx)
}

func (f *frozen) Services(ctx context.Context, q observe.ServiceQuery) (*observe.Services, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	time.Sleep(f.slow)
	return f.Fake.Services(ctx, q)
}

func (f *frozen) Status(ctx context.Context) ([]observe.Status, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	return f.Fake.Status(ctx)
}

func (f *frozen) Explain(ctx context.Context, q observe.Question) (*flow.Record, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	return f.Fake.Explain(ctx, q)
}

func (f *frozen) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	if err := f.wait(ctx); err != nil {
		return err
	}
	return f.Fake.Flows(ctx, q, each)
}

// withFrozen is a relay of node-a, which answers, and node-b, which is stopped.
func withFrozen(t *testing.T) (*remote.Relay, *frozen) {
	t.Helper()
	node := &frozen{Fake: observetest.New("node-b"), resumed: make(chan struct{})}
	f, err := remote.NewRelay([]remote.Member{{Name: "node-a", Observer: observetest.New("node-a")}, {Name: "node-b", Observer: node}}, remote.RelayOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f, node
}

// TestSilentNode: a view that sends several requests waits two seconds for a silent node, in all, and shows the others.
func TestSilentNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, node := withFrozen(t)
		start := time.Now()
		if _, err := f.Services(t.Context(), observe.ServiceQuery{}); err != nil {
			t.Errorf("services: error %v, want those of node-a", err)
		}
		status, err := f.Status(t.Context())
		if err != nil || len(status) != 2 || len(status[1].Problems) != 1 || !strings.Contains(status[1].Problems[0].Text, "no answer for 2s") {
			t.Errorf("status %+v, error %v, want that node-b does not answer", status, err)
		}
		var missed []string
		for _, follow := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			err = f.Flows(ctx, observe.FlowQuery{Follow: follow}, func(i observe.Item) error {
				if i.Missed != nil {
					missed = append(missed, i.Missed.Node+" "+i.Missed.Why)
					cancel()
				}
				return nil
			})
			cancel()
		}
		if want := "node-b unreachable,node-b unreachable"; strings.Join(missed, ",") != want {
			t.Errorf("missed %v, error %v, want %s", missed, err, want)
		}
		var silent *remote.SilentError
		if _, err := f.Explain(t.Context(), observe.Question{Node: "node-b"}); !errors.As(err, &silent) {
			t.Errorf("explain on node-b: error %v, want that it is silent", err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("it took %v, want 2s", took)
		}

		close(node.resumed)
		synctest.Wait()
		if _, err := f.Explain(t.Context(), observe.Question{Node: "node-b"}); err != nil {
			t.Errorf("explain on node-b when it answers again: %v", err)
		}
		if status, _ := f.Status(t.Context()); len(status) != 2 || len(status[1].Problems) > 0 {
			t.Errorf("status %+v, want that node-b answers again", status)
		}
	})
}

// TestSlowNode: a node that works for long on an answer is waited for.
func TestSlowNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, node := withFrozen(t)
		node.slow = time.Minute
		close(node.resumed)
		start := time.Now()
		s, err := f.Services(t.Context(), observe.ServiceQuery{})
		if err != nil || time.Since(start) != time.Minute {
			t.Errorf("services %v, error %v after %v, want them after a minute", s, err, time.Since(start))
		}
	})
}
