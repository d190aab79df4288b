package traffic

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Steady is a load at a constant rate, whatever becomes of the connections before.
type Steady struct {
	// From is the first of Sources source addresses, which take turns.
	From    netip.Addr
	Sources uint32
	// TCP are the targets of PerSecond new connections each, and UDP those of as many exchanges of one
	// datagram from a new port.
	TCP, UDP             []netip.AddrPort
	PerSecond, UDPSecond int
	Time                 time.Duration
}

// SteadyCount is what became of the connections or exchanges with one target.
type SteadyCount struct{ Made, Failed, Delayed int }

// steadyTimeout is how long a connection may take: TCP repeats its SYN after 1, 3 and 7 s. A datagram
// is not repeated.
const (
	steadyTimeout = 10 * time.Second
	udpTimeout    = 2 * time.Second
	// delayed is less than the time after which TCP repeats its SYN.
	delayed = 900 * time.Millisecond
)

// Run carries the load out. It returns the counts of the TCP targets, and then those of the UDP targets.
func (s *Steady) Run(began, ended func()) ([]SteadyCount, error) {
	counts := make([]SteadyCount, len(s.TCP)+len(s.UDP))
	var mu sync.Mutex
	var open sync.WaitGroup
	began()
	end := time.Now().Add(s.Time)
	for i := range counts {
		network, to, rate := "tcp", netip.AddrPort{}, s.PerSecond
		if i < len(s.TCP) {
			to = s.TCP[i]
		} else {
			network, to, rate = "udp", s.UDP[i-len(s.TCP)], s.UDPSecond
		}
		open.Go(func() {
			tick := time.NewTicker(time.Second / time.Duration(rate))
			defer tick.Stop()
			for n := uint32(0); time.Now().Before(end); n++ {
				<-tick.C
				from := Advance(s.From, n%s.Sources)
				open.Go(func() {
					start := time.Now()
					err := exchange(network, from, to)
					took := time.Since(start)
					mu.Lock()
					defer mu.Unlock()
					c := &counts[i]
					c.Made++
					switch {
					case err != nil:
						c.Failed++
					case took > delayed:
						c.Delayed++
					}
				})
			}
		})
	}
	open.Wait()
	ended()
	return counts, nil
}

// exchange makes one connection or exchange of datagrams.
func exchange(network string, from netip.Addr, to netip.AddrPort) error {
	timeout := steadyTimeout
	local := net.Addr(net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
	if network == "udp" {
		timeout, local = udpTimeout, net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	deadline := time.Now().Add(timeout)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	d := net.Dialer{LocalAddr: local}
	conn, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0) // no TIME_WAIT
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{askIdentity}); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// Stream sends as much as it can over one TCP connection, for a time, and gives the
// bytes per second. began is called when the connection is established, ended before
// it is closed.
func Stream(to netip.AddrPort, d time.Duration, began, ended func()) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, errno := socket(unix.SOCK_STREAM)
	if errno != 0 {
		return 0, fmt.Errorf("socket: %w", errno)
	}
	defer closeFD(fd)
	a := sockaddr4(to)
	if errno := connect(fd, &a); errno != 0 {
		return 0, explain("connect to "+to.String(), errno)
	}
	buffer := make([]byte, 256<<10)
	buffer[0] = sink
	if _, errno := write(fd, buffer[:1]); errno != 0 {
		return 0, explain("write", errno)
	}
	if n, errno := read(fd, buffer[:1]); errno != 0 || n != 1 {
		return 0, explain("read", errno)
	}
	began()
	sent := 0
	start := time.Now()
	for time.Since(start) < d {
		n, errno := write(fd, buffer)
		if errno != 0 {
			return 0, explain("write", errno)
		}
		sent += n
	}
	took := time.Since(start)
	ended()
	return float64(sent) / took.Seconds(), nil
}
