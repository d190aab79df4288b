package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// DefaultQueueTimeout is how long packets are queued while a worker makes no progress.
const DefaultQueueTimeout = time.Second

// heartbeatMark is the packet mark of heartbeats.
const heartbeatMark = 0x6e667170

// heartbeat keeps packets queued as long as every worker makes progress. It sends a packet with heartbeatMark
// on the loopback interface; a rule extends the time in which packets are queued, and drops the packet.
// A process that is stopped, swapped out or deadlocked sends none.
type heartbeat struct {
	alive   ruleset.Alive
	workers []*worker
	lease   *lease
	sockets []int
	stop    chan struct{}
	running sync.WaitGroup
}

// newHeartbeat opens the sockets, in the calling thread's network namespace. A family without a loopback
// address has no switch: its packets are always queued.
func newHeartbeat(lease *lease, workers []*worker, log *slog.Logger) *heartbeat {
	p := &heartbeat{alive: ruleset.Alive{Mark: heartbeatMark, Timeout: lease.timeout}, workers: workers, lease: lease, stop: make(chan struct{})}
	for _, f := range []struct {
		name   string
		domain int
		local  func(port int) unix.Sockaddr
		exists *bool
	}{
		{"IPv4", unix.AF_INET, func(port int) unix.Sockaddr { return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}} }, &p.alive.IPv4},
		{"IPv6", unix.AF_INET6, func(port int) unix.Sockaddr { return &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}} }, &p.alive.IPv6},
	} {
		fd, err := openHeartbeat(f.domain, f.local)
		if err != nil {
			log.Warn("a frozen daemon will delay new flows: cannot send packets on the loopback interface", "family", f.name, "error", err)
			continue
		}
		p.sockets = append(p.sockets, fd)
		*f.exists = true
	}
	return p
}

// heartbeatPort is the source port of heartbeats, or the next lower one that is free. It is neither a node port
// nor one that the kernel gives to other sockets.
const heartbeatPort = 29998

func openHeartbeat(domain int, local func(port int) unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	const discard, ports = 9, 100 // RFC 863; no packet arrives there
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, heartbeatMark); err == nil {
		for port := heartbeatPort; port > heartbeatPort-ports; port-- {
			if err = unix.Bind(fd, local(port)); !errors.Is(err, unix.EADDRINUSE) {
				break
			}
		}
	}
	if err == nil {
		err = unix.Connect(fd, local(discard))
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("connect: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// start sends heartbeats until Close.
func (p *heartbeat) start() {
	p.running.Go(func() {
		tick := time.NewTicker(p.alive.Timeout / 8)
		defer tick.Stop()
		for {
			if now := time.Now(); !stuck(p.workers, now, p.alive.Timeout/2) {
				p.lease.beforeHeartbeat(now)
				p.send()
			}
			select {
			case <-p.stop:
				return
			case <-tick.C:
			}
		}
	})
}

// send sends a heartbeat in each family. The rule that drops it makes the call fail; so it does after
// another program removed the rules.
func (p *heartbeat) send() {
	for _, fd := range p.sockets {
		_, _ = unix.Write(fd, []byte{0})
	}
}

// Close ends the heartbeats.
func (p *heartbeat) Close() (err error) {
	close(p.stop)
	p.running.Wait()
	for _, fd := range p.sockets {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

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
