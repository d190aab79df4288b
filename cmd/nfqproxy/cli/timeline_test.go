package cli

import (
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// TestStartOf: a change starts with the earliest of its times that are known.
func TestStartOf(t *testing.T) {
	at := func(seconds int64) *time.Time { return new(time.Unix(seconds, 0)) }
	for want, c := range map[int64]observe.Change{
		1: {Changed: at(1), Received: at(2), Time: *at(3)},
		2: {Received: at(2), Time: *at(3)},
		3: {Time: *at(3)},
	} {
		if got := startOf(&c); !got.Equal(*at(want)) {
			t.Errorf("%v, want %v", got, *at(want))
		}
	}
}

// TestOffset: times far from the start of a change are not in milliseconds.
func TestOffset(t *testing.T) {
	start := time.Unix(1000, 0)
	for want, after := range map[string]time.Duration{
		"+0.0 ms": 0, "+19.2 ms": 19200 * time.Microsecond, "-4.9 ms": -4900 * time.Microsecond, "+9999.9 ms": 9999900 * time.Microsecond,
		"+20m28.3s": 1228265800 * time.Microsecond, "-1m0s": -time.Minute,
	} {
		if got := offset(start, new(start.Add(after))); got != want {
			t.Errorf("%s: %s, want %s", after, got, want)
		}
	}
	if got := offset(start, nil); got != "-" {
		t.Error(got)
	}
}
