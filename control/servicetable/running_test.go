package servicetable

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// fixed is a source of objects that do not change.
func fixed(objects *kube.Objects) Source {
	return source(func(_ context.Context, publish func(Update)) error {
		publish(fullUpdate(objects))
		return nil
	})
}

// fakeSource publishes what a test gives it.
type fakeSource struct {
	objects chan Update
	end     chan error
	stopped bool
}

func (f *fakeSource) Run(ctx context.Context, publish func(Update)) error {
	for {
		select {
		case u := <-f.objects:
			publish(u)
		case err := <-f.end:
			return err
		case <-ctx.Done():
			f.stopped = true
			return ctx.Err()
		}
	}
}

// running is a controller that runs within a synctest bubble, so that "nothing
// happens" can be seen without waiting for it.
type running struct {
	t             *testing.T
	source        *fakeSource
	addresses     chan []netip.Addr
	addressesEnd  chan error
	mu            sync.Mutex // what the test read, a timer may have the controller write
	tables        []*decision.Table
	syncs         []Sync
	queued, taken Sync
	log           bytes.Buffer
	ended         chan error
	cancel        context.CancelFunc
}

func startController(t *testing.T, node NodeConfig) *running { return startControllerWith(t, node, 0) }

func startControllerWith(t *testing.T, node NodeConfig, minSync time.Duration) *running {
	r := &running{
		t:            t,
		source:       &fakeSource{objects: make(chan Update), end: make(chan error)},
		addresses:    make(chan []netip.Addr),
		addressesEnd: make(chan error),
		ended:        make(chan error, 1),
	}
	c, err := newController(Config{
		Node:          node,
		MinSyncPeriod: minSync,
		Objects:       r.source,
		Addresses: func(ctx context.Context, publish func([]netip.Addr)) error {
			for {
				select {
				case a := <-r.addresses:
					publish(a)
				case err := <-r.addressesEnd:
					return err
				case <-ctx.Done():
					return nil
				}
			}
		},
		Publish: func(table *decision.Table) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.tables = append(r.tables, table)
		},
		Progress: r,
		Warned:   func(Warning) {},
		Logger: slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		})),
	}, func() time.Time { return time.Unix(1713377699, 0) })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { r.ended <- c.Run(ctx) }()
	return r
}

// The controller's progress.
func (r *running) Queued(services, slices int) {
	r.queued.Services += services
	r.queued.EndpointSlices += slices
}
func (r *running) Taken() { r.taken, r.queued = r.queued, Sync{} }
func (r *running) Updated(s Sync) {
	if s.Services != r.taken.Services || s.EndpointSlices != r.taken.EndpointSlices {
		r.t.Errorf("%d Services and %d slices were taken, %d and %d are in force", r.taken.Services, r.taken.EndpointSlices, s.Services, s.EndpointSlices)
	}
	r.syncs = append(r.syncs, s)
}

func (r *running) load(services ...*corev1.Service) { r.loadAll(&kube.Objects{Services: services}) }
func (r *running) loadAll(o *kube.Objects) {
	r.update(fullUpdate(o))
}
func (r *running) update(u Update) {
	r.source.objects <- u
	synctest.Wait()
}
func (r *running) locate(a ...string) { r.addresses <- addrs(a...); synctest.Wait() }

// wantTables checks how many tables were published so far.
func (r *running) wantTables(n int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tables) != n {
		r.t.Fatalf("%d tables published, want %d", len(r.tables), n)
	}
	for i, table := range r.tables {
		if table.Generation() != uint64(i+1) {
			r.t.Errorf("table %d has generation %d", i+1, table.Generation())
		}
	}
}

// wantLog checks and forgets what was logged.
func (r *running) wantLog(lines ...string) {
	r.t.Helper()
	var got []string
	for line := range strings.Lines(r.log.String()) {
		got = append(got, strings.TrimSpace(line))
	}
	r.log.Reset()
	if !slices.Equal(got, lines) {
		r.t.Errorf("logged:\n %s\nwant:\n %s", strings.Join(got, "\n "), strings.Join(lines, "\n "))
	}
}

// stop ends the controller and gives what Run returned.
func (r *running) stop() error {
	r.cancel()
	return <-r.ended
}

type noProgress struct{}

func (noProgress) Queued(int, int) {}
func (noProgress) Taken()          {}
func (noProgress) Updated(Sync)    {}
