package nfqueue

import (
	"errors"
	"os"
	"strings"
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

func TestReadCounters(t *testing.T) {
	const file = `  100   4711     3 2   192     5     6       77  1
  101 4294843840     0 2   192     0     0        0  1
`
	c, err := readCounters(strings.NewReader(file), 100)
	if want := (Counters{PortID: 4711, Waiting: 3, Dropped: 5, UserDropped: 6, Sequence: 77}); err != nil || c != want {
		t.Errorf("got %+v, error %v; want %+v", c, err, want)
	}
	if _, err := readCounters(strings.NewReader(file), 102); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unbound queue: error %v", err)
	}
	if _, err := readCounters(strings.NewReader("what is this\n"), 1); err == nil {
		t.Error("nonsense is no error")
	}
}
