package datapath

import (
	"testing"
	"time"
)

// TestLapses: each lapse is noticed once.
func TestLapses(t *testing.T) {
	noticed, start := 0, time.Now()
	l := &lapses{timeout: time.Second, over: func() { noticed++ }}
	expect := func(what string, want int) {
		t.Helper()
		if noticed != want {
			t.Errorf("%s: noticed %d lapses, want %d", what, noticed, want)
		}
	}
	l.check(start.Add(time.Hour))
	expect("before the first pulse", 0)
	l.pulsed(start)
	l.check(start.Add(time.Second))
	expect("in time", 0)
	l.pulsed(start.Add(-2 * time.Second))
	l.check(start)
	l.check(start)
	expect("without pulses", 1)
	var none *lapses
	none.check(start)
}
