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
	since  time.Time     // the end of the last window
	rate   float64       // of new flows per second, as far as is known
	window time.Duration // how long the last window was; 0: there was none
	before uint64        // flows that had begun before it
	lost   uint64        // overruns before it
}

const (
	sampleRest = 2 * time.Second
	// A window is as long as its flows are as many as are followed in one interval, within these limits.
	minWindow, maxWindow = 10 * time.Millisecond, watchInterval
)

// sample is called when a rest is over. It listens for another window, or for good if the last one had few flows.
func (f *follower) sample(ctx context.Context, s *sampling) {
	now := time.Now()
	f.mu.Lock()
	begun, overruns := f.kernel.begun, f.kernel.Overruns
	f.mu.Unlock()
	overrun := overruns > s.lost
	if s.window > 0 {
		if rate := float64(begun-s.before) / s.window.Seconds(); rate > s.rate || !overrun {
			s.rate = rate
		}
	}
	f.lost.Add(uint64(s.rate * now.Sub(s.since).Seconds()))
	f.setPaused(false)
	if s.window > 0 && !overrun && s.rate <= f.DetailRate/2 {
		return
	}
	window := maxWindow
	if most := f.DetailRate * watchInterval.Seconds() / s.rate; most < window.Seconds() {
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
	*s = sampling{since: time.Now(), rate: s.rate, window: time.Since(now), before: begun, lost: overruns}
}
