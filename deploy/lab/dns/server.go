package dns

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"
)

// maxConnections bounds the connections of one listener.
const maxConnections = 256

// stopTimeout bounds how long connections may take to end.
const stopTimeout = 2 * time.Second

// Server serves DNS at sockets until Close. It is safe for concurrent use.
type Server struct {
	zone     func() *Zone
	identity func(client, local net.Addr) []byte

	mu      sync.Mutex // guards what follows
	closed  bool
	running []*dns.Server
}

// NewServer returns a server that answers each query from the zone that is current then. identity is what it sends to
// clients that request the server's identifier (NSID, RFC 5001: dig +nsid).
func NewServer(zone func() *Zone, identity func(client, local net.Addr) []byte) *Server {
	return &Server{zone: zone, identity: identity}
}

// ServePacket serves a socket for datagrams, in the background.
func (s *Server) ServePacket(c net.PacketConn) error { return s.serve(&dns.Server{PacketConn: c}, c) }

// Serve serves the connections of a listener, in the background.
func (s *Server) Serve(l net.Listener) error {
	return s.serve(&dns.Server{Listener: netutil.LimitListener(l, maxConnections)}, l)
}

// serve starts a server and waits until it serves. It closes the socket where it cannot.
func (s *Server) serve(d *dns.Server, socket interface{ Close() error }) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.Join(net.ErrClosed, socket.Close())
	}
	started, failed := make(chan struct{}), make(chan error, 1)
	d.Handler, d.NotifyStartedFunc = s, func() { close(started) }
	go func() { failed <- d.ActivateAndServe() }()
	select {
	case <-started:
		s.running = append(s.running, d)
		return nil
	case err := <-failed:
		return errors.Join(err, socket.Close())
	}
}

// Close closes all sockets and waits for the servers.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	for _, d := range s.running {
		errs = append(errs, d.ShutdownContext(ctx))
	}
	s.running = nil
	return errors.Join(errs...)
}

// ServeDNS answers a query.
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	_, stream := w.RemoteAddr().(*net.TCPAddr)
	r := s.zone().reply(q, !stream, func() string { return hex.EncodeToString(s.identity(w.RemoteAddr(), w.LocalAddr())) })
	if err := w.WriteMsg(r); err != nil {
		// The record of an object that has no form in a message; where the client is gone, this fails, too.
		_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
	}
}
