package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// lease is the time after a heartbeat for which packets are queued. When it has expired, the kernel's copy of the service
// table decided flows, because this process was stopped, or a worker made no progress. It is safe for concurrent use,
// except for beforeHeartbeat.
type lease struct {
	timeout time.Duration
	// catchUp is called after an expiry: before the next decision, and again before the next heartbeat, because
	// the copy decides until then.
	catchUp func()
	// last is when the last heartbeat was sent, in ns since 1970; 0: none was.
	last atomic.Int64
	mu   sync.Mutex
	// caughtUp is the last heartbeat before the expiry after which decisions were made. It belongs to mu.
	caughtUp int64
}

// beforeDecision is to be called before decisions. A nil lease never expires.
func (l *lease) beforeDecision(now time.Time) {
	if l == nil {
		return
	}
	last, expired := l.expired(now)
	if !expired {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.caughtUp != last {
		l.catchUp()
		l.caughtUp = last
	}
}

// beforeHeartbeat is to be called before each heartbeat, by one goroutine.
func (l *lease) beforeHeartbeat(now time.Time) {
	if _, expired := l.expired(now); expired {
		l.catchUp()
		now = time.Now()
	}
	l.last.Store(now.UnixNano())
}

func (l *lease) expired(now time.Time) (last int64, expired bool) {
	last = l.last.Load()
	return last, last != 0 && now.UnixNano()-last > int64(l.timeout)
}
