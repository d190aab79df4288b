package engine

import (
	"testing"
	"time"
)

// TestLapses: after a lapse, workers catch up once, and again the pulses, before they begin.
func TestLapses(t *testing.T) {
	caughtUp := 0
	l := &lapses{timeout: time.Second, catchUp: func() { caughtUp++ }}
	expect := func(what string, want int) {
		t.Helper()
		if caughtUp != want {
			t.Errorf("%s: caught up %d times, want %d", what, caughtUp, want)
		}
	}
	start := time.Now()
	l.beforeDecision(start.Add(time.Hour))
	l.beforePulse(start)
	expect("before the first pulse", 0)
	l.beforeDecision(start.Add(time.Second))
	l.beforePulse(start.Add(time.Second))
	l.beforeDecision(start.Add(2 * time.Second))
	expect("in time", 0)
	for lapse := range 2 {
		l.last.Store(start.Add(-time.Duration(lapse+2) * time.Second).UnixNano())
		l.beforeDecision(start)
		l.beforeDecision(start)
		expect("before decisions", 2*lapse+1)
		l.beforePulse(start)
		l.beforePulse(time.Now())
		l.beforeDecision(time.Now())
		expect("with the next pulse", 2*lapse+2)
	}
	var none *lapses
	none.beforeDecision(start)
}
