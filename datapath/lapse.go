package datapath

import (
	"sync"
	"sync/atomic"
	"time"
)

// lapses notices times in which the kernel's copy of the service table decided flows because this process
// did not: it was stopped, or a worker made no progress. Then pulses are missing. It is safe for concurrent
// use.
type lapses struct {
	timeout time.Duration
	// over is called after a lapse, before the next decision and the next pulse.
	over func()
	// last is when the last pulse was sent, in ns since 1970; 0: none was.
	last atomic.Int64
	mu   sync.Mutex
}

// check calls over if there was a lapse. A nil lapses has none.
func (l *lapses) check(now time.Time) {
	if l == nil || !l.lapsed(now) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lapsed(now) { // no other goroutine was first
		l.over()
		l.last.Store(time.Now().UnixNano())
	}
}

func (l *lapses) lapsed(now time.Time) bool {
	last := l.last.Load()
	return last != 0 && now.UnixNano()-last > int64(l.timeout)
}

// pulsed records a pulse.
func (l *lapses) pulsed(now time.Time) { l.last.Store(now.UnixNano()) }
