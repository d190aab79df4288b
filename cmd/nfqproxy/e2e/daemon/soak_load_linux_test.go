package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// soakLoad is clients that connect all the time.
type soakLoad struct {
	c        *soakCluster
	stopped  atomic.Bool
	clients  sync.WaitGroup
	nextPort uint16
	tooMany  chan struct{} // closed when so much has failed that there is no use in going on

	tcp, udp, flapping atomic.Int64 // answered
	// repeated are the requests of UDP that were sent again. One whose endpoint is taken out
	// while it is on its way may get no answer: its flow is removed.
	repeated atomic.Int64
	slow     atomic.Int64 // connections that took as long as a SYN that is sent again

	mu     sync.Mutex
	failed int
	errs   []error // the first ones
}

// Source ports. Each client has its own, all over the lab: two clients that are masqueraded
// to one address could otherwise be taken for each other by an endpoint, as they could
// where one has only one address.
const (
	firstSoakPort = 11000 // above the ports of daemons and servers, below node ports and those that the kernel takes itself
	freshPorts    = 1999  // a prime, so that it takes long until a tuple comes again
	fewPorts      = 29    // tuples come again as soon as this
)

// newSoakLoad starts the clients: outside by node port, a pod and a node by cluster IP.
func (c *soakCluster) newSoakLoad() *soakLoad {
	l := &soakLoad{c: c, nextPort: firstSoakPort, tooMany: make(chan struct{})}
	c.T.Cleanup(l.end)
	always := append(c.changing, c.steady)
	for i, network := range []string{"tcp", "udp"} {
		at := func(f decision.Family, services ...*soakService) (list []netip.AddrPort) {
			for _, s := range services {
				list = append(list, netip.AddrPortFrom(s.clusterIP(f), s.port(network)))
			}
			return list
		}
		nodePorts := func(f decision.Family, node string) (list []netip.AddrPort) {
			for _, s := range always {
				list = append(list, netip.AddrPortFrom(c.AddressOf(node, f), s.nodePort()))
			}
			return list
		}
		families := []decision.Family{decision.IPv4, decision.IPv6}
		one, other := families[i], families[1-i]
		l.start("outside", network, freshPorts, nodePorts(one, "node-a"))
		l.start("outside", network, fewPorts, nodePorts(other, "node-b"))
		l.start("shell", network, freshPorts, at(other, always...))
		l.start("shell", network, fewPorts, at(one, always...))
		l.start("node-b", network, freshPorts, at(one, always...))
		l.start("node-b", network, fewPorts, at(other, always...))
		l.startTrying("shell", network, at(one, c.flapping))
	}
	return l
}

// start starts a client whose connections have to be answered.
func (l *soakLoad) start(host, network string, ports int, to []netip.AddrPort) {
	made := &l.tcp
	if network == "udp" {
		made = &l.udp
	}
	l.client(host, network, ports, to, e2etest.Timeout, made, l.fail)
}

// startTrying starts a client whose connections may be refused, or get no answer.
func (l *soakLoad) startTrying(host, network string, to []netip.AddrPort) {
	l.client(host, network, freshPorts, to, 300*time.Millisecond, &l.flapping, func(error) {})
}

func (l *soakLoad) client(host, network string, ports int, to []netip.AddrPort, within time.Duration, made *atomic.Int64, fail func(error)) {
	ns, first := l.c.Host(host), l.nextPort
	l.nextPort += uint16(ports)
	own := netip.IPv4Unspecified()
	if to[0].Addr().Is6() {
		own = netip.IPv6Unspecified()
	}
	exchange := l.askTCP
	if network == "udp" {
		exchange = l.askUDP
	}
	l.clients.Go(func() {
		// One thread for the client: it stays in the namespace.
		if err := ns.Do(func() error {
			for i := 0; !l.stopped.Load(); i++ {
				began, target := time.Now(), to[i%len(to)]
				a, err := exchange(netip.AddrPortFrom(own, first+uint16(i%ports)), target, began.Add(within))
				if err == nil && a.Pod == "" {
					err = fmt.Errorf("answered by %s, which is no pod", a.Who())
				}
				if err != nil {
					fail(fmt.Errorf("%s: %s from %s port %d to %s: %w", began.Format(time.StampMicro), network, host, int(first)+i%ports, target, err))
					continue
				}
				made.Add(1)
			}
			return nil
		}); err != nil {
			l.fail(err)
		}
	})
}

// dial connects from the namespace of the calling thread.
func dial(network string, from, to netip.AddrPort, deadline time.Time) (net.Conn, error) {
	d := net.Dialer{Deadline: deadline, LocalAddr: net.UDPAddrFromAddrPort(from)}
	if network == "tcp" {
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	d.SetMultipathTCP(false)
	// The connection before may not be quite over.
	d.Control = func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }), err)
	}
	return d.DialContext(context.Background(), network, to.String())
}

// askTCP reads to the end, so that it is the server who closes first and waits: from here
// the next connection can come by the same port.
func (l *soakLoad) askTCP(from, to netip.AddrPort, deadline time.Time) (lab.Answer, error) {
	began := time.Now()
	conn, err := dial("tcp", from, to, deadline)
	if err != nil {
		return lab.Answer{}, err
	}
	defer conn.Close()
	if time.Since(began) > 900*time.Millisecond {
		l.slow.Add(1)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return lab.Answer{}, err
	}
	if _, err := io.WriteString(conn, "?\n"); err != nil {
		return lab.Answer{}, err
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		return lab.Answer{}, err
	}
	a, _, err := lab.ParseAnswer(b)
	return a, err
}

// askUDP asks again if there is no answer for a second, as a resolver would.
func (l *soakLoad) askUDP(from, to netip.AddrPort, deadline time.Time) (lab.Answer, error) {
	conn, err := dial("udp", from, to, deadline)
	if err != nil {
		return lab.Answer{}, err
	}
	defer conn.Close()
	question, b := fmt.Sprint(time.Now().UnixNano()), make([]byte, 1024)
	for {
		if _, err := io.WriteString(conn, question); err != nil {
			return lab.Answer{}, err
		}
		until := time.Now().Add(time.Second)
		if until.After(deadline) {
			until = deadline
		}
		if err := conn.SetReadDeadline(until); err != nil {
			return lab.Answer{}, err
		}
		for {
			n, err := conn.Read(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if until.Equal(deadline) {
					return lab.Answer{}, err
				}
				l.repeated.Add(1)
				break
			}
			if err != nil {
				return lab.Answer{}, err
			}
			// Another one is for who had the port before, and asked twice.
			if a, rest, err := lab.ParseAnswer(b[:n]); err != nil || string(rest) == question {
				return a, err
			}
		}
	}
}

func (l *soakLoad) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const told, enough = 10, 100
	if l.failed++; l.failed <= told {
		l.errs = append(l.errs, err)
	}
	if l.failed == enough {
		close(l.tooMany)
	}
}

// goOn lets time pass.
func (l *soakLoad) goOn(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.tooMany:
	}
}

func (l *soakLoad) end() {
	l.stopped.Store(true)
	l.clients.Wait()
}

// stop ends the clients and tells of what failed. The service that came and went has to be
// there in the end.
func (l *soakLoad) stop() {
	l.c.T.Helper()
	before := l.flapping.Load()
	for end := time.Now().Add(e2etest.Timeout); l.flapping.Load() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			l.c.T.Errorf("waited %s for the service that was made again", e2etest.Timeout)
			break
		}
	}
	l.end()
	l.c.T.Logf("%d connections of TCP, %d conversations of UDP; %d failed, %d connections took almost a second or longer, %d datagrams sent again; %d to the service that came and went",
		l.tcp.Load(), l.udp.Load(), l.failed, l.slow.Load(), l.repeated.Load(), l.flapping.Load())
	for _, err := range l.errs {
		l.c.T.Errorf("failed: %v", err)
	}
	if n := l.failed - len(l.errs); n > 0 {
		l.c.T.Errorf("and %d more", n)
	}
}
