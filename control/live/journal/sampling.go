package journal

import (
	"cmp"
	"context"
	"time"
)

// sampling is how a journal that observes another proxy listens while there are more flows than it
// can follow: for a moment, every sampleRest. A window ends by the clock, before its events are
// processed: on a busy machine these wait for the CPU, while the kernel would make an event of
// each packet that changes a connection.
type sampling struct {
	since    time.Time     // the end of the last window
	window   time.Duration // how long that was; 0: there was none
	begun    uint64        // flows that had begun before it
	overruns uint64        // before it
	// rate is that of new flows per second before rest, the last pause that is over. Half of the flows of a pause are counted
	// as lost by the rate before it, half by that after it, which the next window shows.
	rate    float64
	atLeast bool // the rate is no lower: more came than were counted
	rest    time.Duration
}

const (
	sampleRest = 2 * time.Second
	// A window is as long as its flows are as many as are followed in one interval, within these limits.
	minWindow, maxWindow = 10 * time.Millisecond, watchInterval
)

// sample is called when a pause has been long enough. It listens for another window, or for good if the last one had few flows.
func (f *follower) sample(ctx context.Context, s *sampling) {
	now := time.Now()
	f.mu.Lock()
	begun, overruns := f.kernel.begun, f.kernel.Overruns
	f.mu.Unlock()
	rate, overrun := s.rate, overruns > s.overruns
	lose := func(in time.Duration, rate float64) { f.lost.Add(uint64(in.Seconds() * rate / 2)) }
	if s.window > 0 {
		rate = float64(begun-s.begun) / s.window.Seconds()
		if overrun {
			rate = max(rate, s.rate)
		}
		lose(s.rest, rate)
		if s.atLeast {
			lose(s.rest, max(0, rate-s.rate))
		}
	}
	next := sampling{begun: begun, overruns: overruns, rate: rate, atLeast: overrun || s.window == 0, rest: now.Sub(s.since)}
	lose(next.rest, rate)
	f.setPaused(false)
	if s.window > 0 && !overrun && rate <= f.DetailRate/2 {
		lose(next.rest, rate)
		return
	}
	window := maxWindow
	if most := f.DetailRate * watchInterval.Seconds() / rate; most < window.Seconds() {
		window = time.Duration(most * float64(time.Second))
	}
	if overrun { // more than is known
		window = cmp.Or(s.window, maxWindow) / 4
	}
	select {
	case <-ctx.Done():
	case <-time.After(max(window, minWindow)):
	}
	f.setPaused(true)
	next.since, next.window = time.Now(), time.Since(now)
	*s = next
}
