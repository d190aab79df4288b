package nfqueue

import "time"

// busyPoll decides how long to poll for packets before sleeping.
type busyPoll struct {
	max   time.Duration
	quick bool // the last wait was no longer than max
	since time.Time
}

// begin begins a wait.
func (b *busyPoll) begin(now time.Time) { b.since = now }

// on reports whether to poll again. If the previous packet took long to arrive, the next one is
// expected to take long, too: so after a burst at most max is wasted.
func (b *busyPoll) on(now time.Time) bool { return b.quick && now.Sub(b.since) < b.max }

// end ends a wait, with a packet.
func (b *busyPoll) end(now time.Time) { b.quick = now.Sub(b.since) <= b.max }
