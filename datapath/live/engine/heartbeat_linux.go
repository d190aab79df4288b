package engine

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
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
	sockets []net.Conn
	stop    chan struct{}
	running sync.WaitGroup
}

// newHeartbeat opens the sockets, in the calling thread's network namespace. A family without a loopback
// address has no switch: its packets are always queued.
func newHeartbeat(lease *lease, workers []*worker, log *slog.Logger) *heartbeat {
	p := &heartbeat{alive: ruleset.Alive{Mark: heartbeatMark, Timeout: lease.timeout}, workers: workers, lease: lease, stop: make(chan struct{})}
	for _, f := range []struct {
		local  netip.Addr
		exists *bool
	}{{netip.AddrFrom4([4]byte{127, 0, 0, 1}), &p.alive.IPv4}, {netip.IPv6Loopback(), &p.alive.IPv6}} {
		conn, err := openHeartbeat(f.local)
		if err != nil {
			log.Warn("a frozen daemon will delay new flows: cannot send packets on the loopback interface", "family", decision.FamilyOf(f.local).String(), "error", err)
			continue
		}
		p.sockets = append(p.sockets, conn)
		*f.exists = true
	}
	return p
}

// heartbeatPort is the source port of heartbeats, or the next lower one that is free. It is neither a node port
// nor one that the kernel gives to other sockets.
const heartbeatPort = 29998

func openHeartbeat(local netip.Addr) (conn net.Conn, err error) {
	const discard, ports = 9, 100 // RFC 863; no packet arrives there
	mark := func(_, _ string, c syscall.RawConn) (err error) {
		e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, heartbeatMark) })
		return errors.Join(err, e)
	}
	for port := uint16(heartbeatPort); port > heartbeatPort-ports; port-- {
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, port)), Control: mark}
		if conn, err = d.Dial("udp", netip.AddrPortFrom(local, discard).String()); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return conn, err
}

// start sends heartbeats until Close.
func (p *heartbeat) start() {
	p.running.Go(func() {
		tick := time.NewTicker(p.alive.Timeout / 8)
		defer tick.Stop()
		for {
			if now := time.Now(); !stuck(p.workers, now, p.alive.Timeout/2) {
				p.lease.beforeHeartbeat(now)
				// The rule that drops a heartbeat makes the call fail; so it does after another program removed the rules.
				for _, c := range p.sockets {
					_, _ = c.Write([]byte{0})
				}
			}
			select {
			case <-p.stop:
				return
			case <-tick.C:
			}
		}
	})
}

// Close ends the heartbeats.
func (p *heartbeat) Close() (err error) {
	close(p.stop)
	p.running.Wait()
	for _, c := range p.sockets {
		err = errors.Join(err, c.Close())
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
