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
	e := &Engine{workers: []*worker{since(time.Hour)}, cfg: Config{QueueTimeout: time.Minute}}
	if !e.Stuck() {
		t.Error("the engine is not stuck")
	}
	e.workers[0].busySince.Store(0)
	if e.Stuck() {
		t.Error("the engine is stuck")
	}
}

// TestLease: after an expiry, workers catch up once, and again the heartbeats, before they begin.
func TestLease(t *testing.T) {
	caughtUp := 0
	l := &lease{timeout: time.Second, catchUp: func() { caughtUp++ }}
	expect := func(what string, want int) {
		t.Helper()
		if caughtUp != want {
			t.Errorf("%s: caught up %d times, want %d", what, caughtUp, want)
		}
	}
	start := time.Now()
	l.beforeDecision(start.Add(time.Hour))
	l.beforeHeartbeat(start)
	expect("before the first heartbeat", 0)
	l.beforeDecision(start.Add(time.Second))
	l.beforeHeartbeat(start.Add(time.Second))
	l.beforeDecision(start.Add(2 * time.Second))
	expect("in time", 0)
	for expiry := range 2 {
		l.last.Store(start.Add(-time.Duration(expiry+2) * time.Second).UnixNano())
		l.beforeDecision(start)
		l.beforeDecision(start)
		expect("before decisions", 2*expiry+1)
		l.beforeHeartbeat(start)
		l.beforeHeartbeat(time.Now())
		l.beforeDecision(time.Now())
		expect("with the next heartbeat", 2*expiry+2)
	}
	var none *lease
	none.beforeDecision(start)
}
