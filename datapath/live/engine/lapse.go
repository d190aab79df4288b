package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// lapses notices times in which the kernel's copy of the service table decided flows because this process
// did not: it was stopped, or a worker made no progress. Then pulses are missing. It is safe for concurrent
// use, except for beforePulse.
type lapses struct {
	timeout time.Duration
	// catchUp is called after a lapse: before the next decision, and again before the next pulse, because
	// the copy decides until then.
	catchUp func()
	// last is when the last pulse was sent, in ns since 1970; 0: none was.
	last atomic.Int64
	mu   sync.Mutex
	// caughtUp is the last pulse before the lapse after which decisions were made. It belongs to mu.
	caughtUp int64
}

// beforeDecision is to be called before decisions. A nil lapses has no lapse.
func (l *lapses) beforeDecision(now time.Time) {
	if l == nil {
		return
	}
	last, lapsed := l.lapsed(now)
	if !lapsed {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.caughtUp != last {
		l.catchUp()
		l.caughtUp = last
	}
}

// beforePulse is to be called before each pulse, by one goroutine.
func (l *lapses) beforePulse(now time.Time) {
	if _, lapsed := l.lapsed(now); lapsed {
		l.catchUp()
		now = time.Now()
	}
	l.last.Store(now.UnixNano())
}

func (l *lapses) lapsed(now time.Time) (last int64, lapsed bool) {
	last = l.last.Load()
	return last, last != 0 && now.UnixNano()-last > int64(l.timeout)
}
