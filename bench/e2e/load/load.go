// Package load makes a steady load of new connections to one address, and counts those that fail.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Load is a load at a constant rate, whatever becomes of the connections before.
type Load struct {
	Target string        // host:port of a [Server], in TCP and UDP
	Period time.Duration // between two new connections, and between two exchanges of datagrams
	Held   int           // connections that are held open the whole time, with a byte to and fro every Period
}

// Counts is what became of a load.
type Counts struct {
	TCP, UDP int // connections, and exchanges of one datagram from a new port
	Failed   int // connections
	Refused  int // of those that failed: refused instead of opened
	Lost     int // exchanges of datagrams, which are not repeated
	// Slow are connections that took longer than 900 ms: TCP repeated its SYN, which the
	// client does not notice otherwise.
	Slow   int
	Held   int // connections that were held to the end
	Broken int // and those that were not
	// Errors are the first of all kinds.
	Errors []string
	// First and Last are when the first and the last connection or exchange began that failed,
	// was lost or was slow. Zero: there was none.
	First, Last time.Time
}

// Held is the number of connections that clients of the checks hold open.
const Held = 4

// The timeouts: TCP repeats its SYN after 1, 3 and 7 s. A datagram is not repeated.
const (
	tcpTimeout = 10 * time.Second
	udpTimeout = 2 * time.Second
	slow       = 900 * time.Millisecond
	maxErrors  = 5
)

// Add adds the counts of another load.
func (c *Counts) Add(o Counts) {
	c.TCP += o.TCP
	c.UDP += o.UDP
	c.Failed += o.Failed
	c.Refused += o.Refused
	c.Lost += o.Lost
	c.Slow += o.Slow
	c.Held += o.Held
	c.Broken += o.Broken
	for _, e := range o.Errors {
		c.note(e)
	}
	if !o.First.IsZero() {
		c.hit(o.First)
		c.hit(o.Last)
	}
}

// hit extends the time of disturbance.
func (c *Counts) hit(at time.Time) {
	if c.First.IsZero() || at.Before(c.First) {
		c.First = at
	}
	if at.After(c.Last) {
		c.Last = at
	}
}

func (c *Counts) note(e string) {
	if len(c.Errors) < maxErrors {
		c.Errors = append(c.Errors, e)
	}
}

// Run makes the load until the end of ctx. It returns when all connections have ended.
func (l Load) Run(ctx context.Context) Counts {
	var (
		c    Counts
		mu   sync.Mutex
		open sync.WaitGroup
	)
	count := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
	for range l.Held {
		open.Go(func() {
			err := l.hold(ctx)
			count(func() {
				if err == nil {
					c.Held++
					return
				}
				c.Broken++
				c.note("held connection: " + err.Error())
			})
		})
	}
	tick := time.NewTicker(l.Period)
	defer tick.Stop()
	for ctx.Err() == nil {
		for network, counters := range map[string][2]*int{"tcp": {&c.TCP, &c.Failed}, "udp": {&c.UDP, &c.Lost}} {
			open.Go(func() {
				began := time.Now()
				err := l.exchange(network)
				took := time.Since(began)
				count(func() {
					*counters[0]++
					switch {
					case err != nil:
						*counters[1]++
						if network == "tcp" && errors.Is(err, syscall.ECONNREFUSED) {
							c.Refused++
						}
						c.hit(began)
						c.note(fmt.Sprintf("%s %s: %v", began.Format(time.TimeOnly), network, err))
					case took > slow && network == "tcp":
						c.Slow++
						c.hit(began)
					}
				})
			})
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	open.Wait()
	return c
}

// exchange makes one connection, or sends one datagram from a new port, and reads the answer.
func (l Load) exchange(network string) error {
	timeout := tcpTimeout
	if network == "udp" {
		timeout = udpTimeout
	}
	deadline := time.Now().Add(timeout)
	conn, err := (&net.Dialer{Deadline: deadline}).Dial(network, l.Target)
	if err != nil {
		return err
	}
	defer conn.Close()
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0) // no TIME_WAIT: the ports would run out
	}
	return echo(conn, deadline)
}

// hold keeps one connection until the end of ctx. The error is that of its earlier end.
func (l Load) hold(ctx context.Context) error {
	conn, err := (&net.Dialer{Timeout: tcpTimeout}).Dial("tcp", l.Target)
	if err != nil {
		return err
	}
	defer conn.Close()
	tick := time.NewTicker(l.Period)
	defer tick.Stop()
	for {
		if err := echo(conn, time.Now().Add(tcpTimeout)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func echo(conn net.Conn, deadline time.Time) error {
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

// Server sends back what it receives.
type Server struct {
	tcp net.Listener
	udp net.PacketConn
}

// Listen opens a port in TCP and UDP, on all addresses of both families.
func Listen(port string) (*Server, error) {
	tcp, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return nil, err
	}
	_, port, _ = net.SplitHostPort(tcp.Addr().String()) // for port 0
	udp, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	return &Server{tcp, udp}, nil
}

// Addr is the address in TCP.
func (s *Server) Addr() net.Addr { return s.tcp.Addr() }

// Serve serves until Close.
func (s *Server) Serve() error {
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := s.udp.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = s.udp.WriteTo(b[:n], from)
			}
		}
	}()
	for {
		conn, err := s.tcp.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}

// Close ends Serve. Open connections stay.
func (s *Server) Close() error { return errors.Join(s.tcp.Close(), s.udp.Close()) }
