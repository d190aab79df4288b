package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/ruleset"
)

// DefaultQueueTimeout is how long packets are queued while a worker makes no progress.
const DefaultQueueTimeout = time.Second

// pulseMark is the packet mark of pulses.
const pulseMark = 0x6e667170

// pulse keeps packets queued as long as every worker makes progress. It sends a packet with pulseMark
// on the loopback interface; a rule extends the time in which packets are queued, and drops the packet.
// A process that is stopped, swapped out or deadlocked sends none.
type pulse struct {
	alive   ruleset.Alive
	workers []*worker
	lapses  *lapses
	sockets []int
	stop    chan struct{}
	running sync.WaitGroup
}

// newPulse opens the sockets, in the calling thread's network namespace. A family without a loopback
// address has no switch: its packets are always queued.
func newPulse(lapses *lapses, workers []*worker, log *slog.Logger) *pulse {
	p := &pulse{alive: ruleset.Alive{Mark: pulseMark, Timeout: lapses.timeout}, workers: workers, lapses: lapses, stop: make(chan struct{})}
	for _, f := range []struct {
		name   string
		domain int
		local  func(port int) unix.Sockaddr
		exists *bool
	}{
		{"IPv4", unix.AF_INET, func(port int) unix.Sockaddr { return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}} }, &p.alive.IPv4},
		{"IPv6", unix.AF_INET6, func(port int) unix.Sockaddr { return &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}} }, &p.alive.IPv6},
	} {
		fd, err := openPulse(f.domain, f.local)
		if err != nil {
			log.Warn("a frozen daemon will delay new flows: cannot send packets on the loopback interface", "family", f.name, "error", err)
			continue
		}
		p.sockets = append(p.sockets, fd)
		*f.exists = true
	}
	return p
}

// pulsePort is the source port of pulses, or the next lower one that is free. It is neither a node port
// nor one that the kernel gives to other sockets.
const pulsePort = 29998

func openPulse(domain int, local func(port int) unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	const discard, ports = 9, 100 // RFC 863; no packet arrives there
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, pulseMark); err == nil {
		for port := pulsePort; port > pulsePort-ports; port-- {
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

// start sends pulses until Close.
func (p *pulse) start() {
	p.running.Go(func() {
		tick := time.NewTicker(p.alive.Timeout / 8)
		defer tick.Stop()
		for {
			if now := time.Now(); !stuck(p.workers, now, p.alive.Timeout/2) {
				p.lapses.beforePulse(now)
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

// send sends a pulse in each family. The rule that drops it makes the call fail; so it does after
// another program removed the rules.
func (p *pulse) send() {
	for _, fd := range p.sockets {
		_, _ = unix.Write(fd, []byte{0})
	}
}

// Close ends the pulses.
func (p *pulse) Close() (err error) {
	close(p.stop)
	p.running.Wait()
	for _, fd := range p.sockets {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}
