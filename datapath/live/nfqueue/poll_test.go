package nfqueue

import (
	"testing"
	"time"
)

func TestBusyPoll(t *testing.T) {
	b := busyPoll{max: 50 * time.Microsecond}
	now := time.Unix(1000, 0)
	for i, step := range []struct {
		gap    time.Duration // until the packet comes
		polled time.Duration // the requested time
	}{
		{20 * time.Microsecond, 0}, // nothing is known yet
		{20 * time.Microsecond, 20 * time.Microsecond},
		{time.Second, 50 * time.Microsecond}, // for nothing, once
		{time.Second, 0},
		{50 * time.Microsecond, 0},
		{30 * time.Microsecond, 30 * time.Microsecond},
	} {
		b.begin(now)
		var polled time.Duration
		for ; polled < step.gap && b.on(now.Add(polled)); polled += time.Microsecond {
		}
		now = now.Add(step.gap)
		b.end(now)
		if polled != step.polled {
			t.Errorf("step %d: polls for %v, want %v", i, polled, step.polled)
		}
	}
}
