package live

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// The protocol of a connection. The server's first message is taken with the number of the endpoint, or
// refused; the client's is the time of the work in nanoseconds and whether the flow counts; the last one is done.
const (
	refused byte = iota + 1
	taken
	done

	answerSize  = 3 // with the endpoint's number
	requestSize = 9
)

// whole is the factor of work that is not slowed, in thousandths.
const whole = 1000

// server is an endpoint: workers, and a queue before them. Its methods are safe for concurrent use.
type server struct {
	ns      *netns.Namespace
	at      netip.AddrPort
	number  int  // of the endpoint
	early   bool // connections are answered before a worker takes them
	queue   chan queued
	backlog int
	workers int
	factor  atomic.Uint64  // of the time of work, in thousandths
	node    *atomic.Uint64 // that of the node

	open          atomic.Int32 // connections that were not refused
	flows, recent atomic.Int32 // counted ones, and all since the last window
	waited        atomic.Int32 // counted ones that waited for a worker

	mu       sync.Mutex
	busy     int // connections that wait or that a worker works on
	conns    map[net.Conn]bool
	listener net.Listener
	gone     bool
	running  sync.WaitGroup // workers and the listener
	awaited  sync.WaitGroup // connections after the work; there are no new ones once gone
}

// queued is a connection in the queue.
type queued struct {
	net.Conn
	waits bool // all workers were busy when it came
}

func newServer(ns *netns.Namespace, at netip.AddrPort, number, workers, backlog int, early bool, node *atomic.Uint64) *server {
	const most = 1 << 16 // connections of a server
	backlog = min(backlog, most)
	s := &server{ns: ns, at: at, number: number, early: early, workers: workers, backlog: backlog, node: node, conns: make(map[net.Conn]bool)}
	s.factor.Store(whole)
	s.queue = make(chan queued, workers+backlog)
	for range workers {
		s.running.Go(func() {
			for c := range s.queue {
				s.work(c)
			}
		})
	}
	return s
}

// listen accepts connections from now on.
func (s *server) listen(ctx context.Context) error {
	l, err := s.ns.Listen(ctx, s.at)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.listener != nil {
		return l.Close()
	}
	s.listener = l
	s.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.accept(c)
		}
	})
	return nil
}

// accept queues a connection, or refuses it.
func (s *server) accept(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		reset(c)
	case s.busy >= s.workers+s.backlog:
		_, _ = c.Write([]byte{refused, 0, 0})
		_ = c.Close()
	default:
		s.conns[c] = true
		s.busy++
		s.open.Add(1)
		s.recent.Add(1)
		if s.early {
			s.answer(c)
		}
		s.queue <- queued{c, s.busy > s.workers} // it has room for all of busy
	}
}

func (s *server) answer(c net.Conn) {
	_, _ = c.Write(binary.BigEndian.AppendUint16([]byte{taken}, uint16(s.number)))
}

// reset closes a connection as a host does that does not know it.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// work is a worker's work on a connection.
func (s *server) work(c queued) {
	if !s.early {
		s.answer(c.Conn)
	}
	var request [requestSize]byte
	if _, err := io.ReadFull(c, request[:]); err == nil {
		if request[8] != 0 {
			s.flows.Add(1)
			if c.waits {
				s.waited.Add(1)
			}
		}
		factor := max(s.factor.Load(), s.node.Load())
		// Sleeping in a system call would keep a processor from the others for some time.
		time.Sleep(time.Duration(binary.BigEndian.Uint64(request[:])) * time.Duration(factor) / whole)
		_, _ = c.Write([]byte{done})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	if !s.gone {
		s.awaited.Go(func() { s.await(c.Conn) })
	}
}

// await waits until the client closes the connection.
func (s *server) await(c net.Conn) {
	var b [1]byte
	_, _ = c.Read(b[:])
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
}

// forget notes that a connection has ended. The caller holds mu.
func (s *server) forget(c net.Conn) {
	if s.conns[c] {
		delete(s.conns, c)
		s.open.Add(-1)
	}
}

// deaf makes the server refuse new connections.
func (s *server) deaf() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		_ = s.listener.Close()
	}
}

// leave ends the server with its connections.
func (s *server) leave() {
	s.deaf()
	s.resetAll()
}

// resetAll ends all connections, and those that are still to come.
func (s *server) resetAll() {
	s.mu.Lock()
	s.gone = true
	for c := range s.conns {
		reset(c)
		s.forget(c)
	}
	s.mu.Unlock()
	// A socket is closed, and the RST sent, once nothing reads it.
	s.awaited.Wait()
}

// lose ends the server with its connections, and takes its pod off the network. It listens until then:
// otherwise the pod would refuse the connections that come in between, which a lost node does not.
func (s *server) lose() error {
	s.resetAll()
	defer s.deaf()
	return s.ns.SetDown(device)
}

// isGone reports whether lose or leave was called.
func (s *server) isGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// close ends the server and waits for its end.
func (s *server) close() {
	s.leave()
	close(s.queue)
	s.running.Wait()
}
