package reconcile

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// passes are the times of a world's passes, in seconds from its beginning.
func (w *world) passes(start time.Time) func() []float64 {
	var at []float64
	w.onDump = func(ipv6 bool) {
		if !ipv6 {
			at = append(at, time.Since(start).Seconds())
		}
	}
	return func() []float64 { return at }
}

func TestLoop(t *testing.T) {
	const base = "udp 10.96.0.10:53 10.244.0.2:53"
	tests := []struct {
		name string
		do   func(*world, *Reconciler)
		want []float64
	}{
		{"no table", func(*world, *Reconciler) { time.Sleep(100 * time.Second) }, nil},
		{"one table: twice, then at intervals", func(_ *world, r *Reconciler) {
			time.Sleep(5 * time.Second)
			r.SetTable(table(base))
			time.Sleep(65 * time.Second)
		}, []float64{5, 6, 36, 66}},
		{"a change", func(_ *world, r *Reconciler) {
			r.SetTable(table(base))
			time.Sleep(10 * time.Second)
			r.SetTable(table())
			time.Sleep(10 * time.Second)
		}, []float64{0, 1, 10, 11}},
		{"changes that do not concern UDP", func(_ *world, r *Reconciler) {
			r.SetTable(table(base))
			for i := range 20 {
				time.Sleep(time.Second)
				r.SetTable(table(base, fmt.Sprintf("tcp 10.96.0.20:80 10.244.0.%d:80", i+1)))
			}
		}, []float64{0, 1}},
		{"a burst is coalesced", func(_ *world, r *Reconciler) {
			for i := range 100 {
				r.SetTable(table(fmt.Sprintf("udp 10.96.0.10:53 10.244.0.%d:53", i+1)))
				time.Sleep(25 * time.Millisecond)
			}
			time.Sleep(10 * time.Second)
		}, []float64{0, 1, 2, 3, 4}},
		{"a failed pass is repeated", func(w *world, r *Reconciler) {
			count := w.onDump
			n := 0
			w.onDump = func(ipv6 bool) {
				count(ipv6)
				w.dumpErr = nil
				if n++; n <= 6 { // two of each pass
					w.dumpErr = syscall.ENOBUFS
				}
			}
			r.SetTable(table(base))
			time.Sleep(12 * time.Second)
		}, []float64{0, 1, 2, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				passes := w.passes(time.Now())
				r := w.reconciler()
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { r.Loop(ctx); close(done) }()
				tt.do(w, r)
				cancel()
				<-done
				if !slices.Equal(passes(), tt.want) {
					t.Errorf("passes at %v s, want %v", passes(), tt.want)
				}
			})
		})
	}
}

// TestLoopUsesTheLatestTable: the one that is in force when a pass begins counts.
func TestLoopUsesTheLatestTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, toTwo, toThree)
		r := w.reconciler()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r.SetTable(table())
		r.SetTable(table(onlyTwo))
		go r.Loop(ctx)
		synctest.Wait()
		if _, ok := w.kernel.Get(flow(toTwo).Original); !ok || w.kernel.Len() != 1 {
			t.Errorf("%d entries are left, want that to 10.244.0.2", w.kernel.Len())
		}
	})
}
