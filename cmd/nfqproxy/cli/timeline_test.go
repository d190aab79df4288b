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
