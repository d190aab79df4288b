package datapath

import "time"

// lapses notices times in which the kernel's copy of the service table may have decided flows: this
// process was stopped, a worker made no progress, or packets did not fit into the queues.
type lapses struct {
	last     time.Time
	stuck    bool
	unqueued uint64
}

// look reports whether there was one since the last look, an interval ago, that is over now. unqueued
// counts the packets that did not fit.
func (l *lapses) look(now time.Time, queueTimeout time.Duration, stuck bool, unqueued uint64) bool {
	stopped := !l.last.IsZero() && now.Sub(l.last) > tickInterval+queueTimeout/2
	over := stopped || l.stuck && !stuck || unqueued > l.unqueued
	l.last, l.stuck, l.unqueued = now, stuck, unqueued
	return over
}
