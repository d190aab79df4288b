package health

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
)

// node is a listener of a real address, to which pods connect, too, without a network.
type node struct {
	net.Listener
	conns chan net.Conn
}

func newNode(t *testing.T) *node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{l, make(chan net.Conn)}
	go func() {
		defer close(n.conns)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.conns <- c
		}
	}()
	return n
}

func (n *node) Accept() (net.Conn, error) {
	if c, ok := <-n.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

// pod is a connection from a pod's address.
type pod struct {
	net.Conn
	address netip.Addr
}

func (p pod) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.address, 1024))
}

// connect opens a connection from a pod that sends nothing.
func (n *node) connect(t *testing.T, from netip.Addr) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	n.conns <- pod{far, from}
	t.Cleanup(func() { _ = near.Close() })
	return near
}

// probe sends a request, and repeats it where the server closes the connection without an answer:
// the server answers few of those that it refuses at a time.
func probe(t *testing.T, connect func() net.Conn) (code int, body string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		code, body, err := request(connect())
		if err == nil {
			return code, body
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func request(c net.Conn) (int, string, error) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	// A refusal may come, and the connection be closed, before this is sent.
	go func() {
		_, _ = fmt.Fprintf(c, "GET /livez HTTP/1.1\r\nHost: lb.example.org\r\nConnection: close\r\n\r\n")
	}()
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

// TestIdleConnections: pods that connect and send nothing take little, and keep neither other
// pods nor kubelet from an answer.
func TestIdleConnections(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("without root, kubelet is played by the user that the server runs as")
	}
	n := newNode(t)
	quota := new(limit.Set).New("health", "connections", Connections)
	s := &HTTPServer{Name: "health", Handler: NewProxy(ProxyConfig{}).Handler(), Connections: quota, Log: slog.New(slog.DiscardHandler)}
	go func() { _ = s.serve(t.Context(), n) }()
	from := func(a netip.Addr) func() net.Conn { return func() net.Conn { return n.connect(t, a) } }
	before := heap()
	first := netip.MustParseAddr("10.244.0.1")
	for range 8000 {
		n.connect(t, first)
	}
	other := first.Next()
	code, body := probe(t, from(first))
	if want := "too many connections: 10.244.0.1 has 32, the limit for one client: close one, or try again later\n"; code != 429 || body != want {
		t.Errorf("beyond the limit of one pod: %d %q, want 429 %q", code, body, want)
	}
	if code, body := probe(t, from(other)); code != 200 {
		t.Errorf("another pod: %d %s", code, body)
	}
	for range 300 {
		other = other.Next()
		n.connect(t, other)
	}
	code, body = probe(t, from(other.Next()))
	if want := "too many connections: all clients together have 224, the limit of this server: try again later\n"; code != 503 || body != want {
		t.Errorf("beyond the limit of all pods: %d %q, want 503 %q", code, body, want)
	}
	// kubelet connects to an address of the node, which is root's.
	kubelet, err := net.Dial("tcp", n.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if code, body, err := request(kubelet); err != nil || code != 200 {
		t.Errorf("kubelet: %d %s, %v", code, body, err)
	}
	if c := quota.Count(); c.Taken > 256 || c.RefusedEach < 7900 || c.RefusedTotal < 70 {
		t.Errorf("counted %+v", c)
	}
	// The pods' own ends are in this process, too: some 500 bytes each.
	if grown := int64(heap()) - int64(before); grown > 32<<20 {
		t.Errorf("%d bytes of heap for idle connections", grown)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// TestAnswersRevealLittle: every client that reaches the node can read them, by any host name.
func TestAnswersRevealLittle(t *testing.T) {
	p := NewProxy(ProxyConfig{})
	p.WaitingFor("addresses in the Node object worker-1")
	for path, want := range map[string]string{
		"/healthz": `{"lastUpdated":"T","currentTime":"T","nodeEligible":true,"healthy":true}`,
		"/livez":   `{"lastUpdated":"T","currentTime":"T","healthy":true}`,
		"/readyz":  "waiting for addresses in the Node object worker-1\n",
	} {
		if body := times.ReplaceAllString(readAll(t, get(p, path)), `"T"`); body != want {
			t.Errorf("%s: %s, want %s", path, body, want)
		}
	}
}

var times = regexp.MustCompile(`"[0-9]{4}-[^"]*"`)
