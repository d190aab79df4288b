package datapath

import (
	"testing"
	"time"
)

func TestLapses(t *testing.T) {
	start := time.Now()
	for _, tt := range []struct {
		name     string
		pause    time.Duration
		before   bool // a worker was stuck
		stuck    bool
		unqueued uint64
		want     bool
	}{
		{name: "none", pause: tickInterval},
		{name: "a late tick", pause: tickInterval + 400*time.Millisecond},
		{name: "stopped", pause: 3 * time.Second, want: true},
		{name: "worker goes on", pause: tickInterval, before: true, want: true},
		{name: "worker still stuck", pause: tickInterval, before: true, stuck: true},
		{name: "queue was full", pause: tickInterval, unqueued: 1, want: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var l lapses
			if l.look(start, time.Second, tt.before, 0) {
				t.Error("a lapse at the first look")
			}
			if got := l.look(start.Add(tt.pause), time.Second, tt.stuck, tt.unqueued); got != tt.want {
				t.Errorf("got %t, want %t", got, tt.want)
			}
			if l.look(start.Add(tt.pause+tickInterval), time.Second, tt.stuck, tt.unqueued) {
				t.Error("noticed twice")
			}
		})
	}
}
