package engine

import (
	"testing"
	"time"
)

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
