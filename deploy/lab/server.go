package lab

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/nfqproxy/nfqproxy/deploy/lab/dns"
)

// Answer is the response of a built-in server: its identity and the client address.
type Answer struct {
	Pod    string `json:"pod,omitempty"`  // namespace/name
	Node   string `json:"node,omitempty"` // the node the server runs on
	Host   string `json:"host,omitempty"` // a client's name
	Client string `json:"client"`         // the client's address, as the server sees it
	Local  string `json:"local"`          // the server's address of the connection
}

// Who names the server: the pod, or else the machine.
func (a *Answer) Who() string {
	switch {
	case a.Pod != "":
		return a.Pod
	case a.Host != "":
		return a.Host
	}
	return a.Node
}

// line is the response as one line of JSON.
func (a Answer) line(client, local net.Addr) []byte {
	a.Client, a.Local = client.String(), local.String()
	line, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings only
	}
	return append(line, '\n')
}

// Limits of the built-in servers.
const (
	maxConnections = 4096     // of one port
	maxFirstLine   = 4096     // bytes
	maxDownload    = 10 << 30 // bytes
	maxEcho        = 16 << 10 // bytes of a datagram that are echoed
	idleTimeout    = 2 * time.Minute
	drainTimeout   = 2 * time.Second
)

// healthPaths are for probes. They are those of Kubernetes' own programs.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// server is the built-in server of one host. It serves listeners until Close.
type server struct {
	identity Answer // without Client and Local
	http     http.Server
	names    *dns.Server // nil: no port serves DNS
	wg       sync.WaitGroup

	mu      sync.Mutex // guards what follows
	closed  bool
	sockets map[io.Closer]struct{}
}

func newServer(identity Answer) *server {
	s := &server{identity: identity, sockets: make(map[io.Closer]struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.who)
	mux.HandleFunc("GET /download", s.download)
	for _, path := range healthPaths {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	}
	s.http = http.Server{Handler: mux, ReadHeaderTimeout: idleTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10}
	return s
}

// keep registers a socket for Close; false: the server is closed, and so is the socket.
func (s *server) keep(c io.Closer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return false
	}
	s.sockets[c] = struct{}{}
	return true
}

func (s *server) forget(c io.Closer) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sockets, c)
}

// Close closes all sockets and waits for the servers.
func (s *server) Close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.sockets {
		_ = c.Close()
	}
	s.mu.Unlock()
	_ = s.http.Close()
	if s.names != nil {
		_ = s.names.Close() // its clients are gone, or go with their namespaces
	}
	s.wg.Wait()
}

// serveTCP serves HTTP. A client with another protocol gets the response to GET / after its
// first line, or at the end of its data.
func (s *server) serveTCP(l net.Listener) {
	if !s.keep(l) {
		return
	}
	queue := &connQueue{addr: l.Addr(), conns: make(chan net.Conn), done: make(chan struct{})}
	s.wg.Go(func() { _ = s.http.Serve(queue) })
	s.wg.Go(func() {
		defer s.forget(l)
		defer queue.Close() // cannot fail
		limit := make(chan struct{}, maxConnections)
		for {
			limit <- struct{}{}
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !s.keep(c) {
				return
			}
			s.wg.Go(func() {
				s.dispatch(&conn{Conn: c, reader: bufio.NewReaderSize(c, maxFirstLine), closed: sync.OnceFunc(func() {
					s.forget(c)
					<-limit
				})}, queue)
			})
		}
	})
}

var requestLine = regexp.MustCompile(`^[A-Z]+ [^ ]+ HTTP/1\.[01]\r?\n$`)

// dispatch reads the first line and passes the connection on if it is HTTP.
func (s *server) dispatch(c *conn, queue *connQueue) {
	_ = c.SetReadDeadline(time.Now().Add(idleTimeout))
	line, err := c.peekLine()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		_ = c.Close()
		return
	}
	if requestLine.Match(line) {
		_ = c.SetReadDeadline(time.Time{})
		select {
		case queue.conns <- c:
		case <-queue.done:
			_ = c.Close()
		}
		return
	}
	defer c.Close() // the response is complete
	_, _ = c.Write(s.identity.line(c.RemoteAddr(), c.LocalAddr()))
	// Closing with unread data in the buffer would reset the connection, and the client might
	// lose the response.
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	_ = c.SetReadDeadline(time.Now().Add(drainTimeout))
	_, _ = io.Copy(io.Discard, io.LimitReader(c, 1<<20))
}

// conn is a connection with a peeked first line.
type conn struct {
	net.Conn
	reader *bufio.Reader
	closed func()
}

func (c *conn) Read(b []byte) (int, error) { return c.reader.Read(b) }

func (c *conn) Close() error {
	c.closed()
	return nil
}

// peekLine returns the first line, with its newline, without consuming it.
func (c *conn) peekLine() ([]byte, error) {
	for seen := 0; ; {
		// Wait for one more byte, then peek everything that is buffered.
		b, err := c.reader.Peek(seen + 1)
		if err != nil {
			return b, err
		}
		if b, err = c.reader.Peek(c.reader.Buffered()); err != nil {
			return b, err
		}
		if i := bytes.IndexByte(b[seen:], '\n'); i >= 0 {
			return b[:seen+i+1], nil
		}
		seen = len(b)
	}
}

// connQueue is the listener of the HTTP server.
type connQueue struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (q *connQueue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

func (q *connQueue) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

func (q *connQueue) Addr() net.Addr { return q.addr }

func (s *server) who(w http.ResponseWriter, r *http.Request) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	client, err := net.ResolveTCPAddr("tcp", r.RemoteAddr) // an address, not a name
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(s.identity.line(client, local))
}

func (s *server) download(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.URL.Query().Get("bytes"), 10, 64)
	if err != nil || n < 0 || n > maxDownload {
		http.Error(w, "want /download?bytes=N with N up to "+strconv.Itoa(maxDownload), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	_, _ = io.CopyN(w, zeros{}, n)
}

// zeros is /dev/zero.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// serveUDP replies to each datagram with the line of GET / and the datagram itself.
func (s *server) serveUDP(c net.PacketConn) {
	if !s.keep(c) {
		return
	}
	s.wg.Go(func() {
		defer s.forget(c)
		b := make([]byte, 64<<10)
		for {
			n, client, err := c.ReadFrom(b)
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				continue // an ICMP error for an earlier reply
			}
			_, _ = c.WriteTo(append(s.identity.line(client, c.LocalAddr()), b[:min(n, maxEcho)]...), client)
		}
	})
}

// ParseAnswer reads a response, of TCP or UDP, and returns the data after its line.
func ParseAnswer(b []byte) (a Answer, rest []byte, err error) {
	line, rest, ok := bytes.Cut(b, []byte("\n"))
	if !ok {
		return a, nil, fmt.Errorf("%q is not the response of a built-in server", b)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, nil, fmt.Errorf("%q is not the response of a built-in server: %w", line, err)
	}
	return a, rest, nil
}
