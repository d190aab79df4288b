package engine

import (
	"testing"
	"time"
)

// TestStuck: a worker is stuck that has had one batch for too long, and no other is.
func TestStuck(t *testing.T) {
	now := time.Now()
	since := func(d time.Duration) *worker {
		w := new(worker)
		w.busySince.Store(now.Add(-d).UnixNano())
		return w
	}
	for name, c := range map[string]struct {
		worker *worker
		want   bool
	}{
		"waiting for packets": {new(worker), false},
		"at work":             {since(499 * time.Millisecond), false},
		"stuck":               {since(501 * time.Millisecond), true},
	} {
		if got := stuck([]*worker{new(worker), c.worker}, now, 500*time.Millisecond); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	e := &Engine{workers: []*worker{since(time.Hour)}, queueTimeout: time.Minute}
	if !e.Stuck() {
		t.Error("the engine is not stuck")
	}
	e.workers[0].busySince.Store(0)
	if e.Stuck() {
		t.Error("the engine is stuck")
	}
}
