package health

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"testing"
)

// network is a host's TCP stack in memory: addresses can be bound once, wildcards
// exclude the addresses they stand for, and families do not know each other.
type network struct {
	mu    sync.Mutex
	bound map[netip.AddrPort]*listener
	ipv4  bool // there is no IPv6
}

func newNetwork() *network { return &network{bound: make(map[netip.AddrPort]*listener)} }

func (n *network) listen(family, address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := netip.MustParseAddrPort(address)
	fail := func(err error) (net.Listener, error) {
		return nil, &net.OpError{Op: "listen", Net: family, Addr: net.TCPAddrFromAddrPort(a), Err: err}
	}
	if (family == "tcp4") != a.Addr().Is4() {
		return fail(errors.New("address of another family"))
	}
	if a.Addr().Is6() && n.ipv4 {
		return fail(syscall.EAFNOSUPPORT)
	}
	for b := range n.bound {
		if b.Port() == a.Port() && b.Addr().Is4() == a.Addr().Is4() && (b == a || b.Addr().IsUnspecified() || a.Addr().IsUnspecified()) {
			return fail(syscall.EADDRINUSE)
		}
	}
	l := &listener{network: n, address: a, connections: make(chan net.Conn), closed: make(chan struct{})}
	n.bound[a] = l
	return l, nil
}

// dial connects to exactly the bound address.
func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.bound[netip.MustParseAddrPort(address)]
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	near, far := net.Pipe()
	select {
	case l.connections <- far:
		return near, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// get requests a port; nil if it is closed.
func (n *network) get(t *testing.T, address, path string) *http.Response {
	t.Helper()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, address string) (net.Conn, error) { return n.dial(ctx, address) },
	}
	r, err := (&http.Client{Transport: transport}).Get("http://" + address + path)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (n *network) len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.bound)
}

type listener struct {
	network     *network
	address     netip.AddrPort
	connections chan net.Conn
	closed      chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.connections:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	if l.network.bound[l.address] != l {
		return net.ErrClosed
	}
	delete(l.network.bound, l.address)
	close(l.closed)
	return nil
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.address) }

func readAll(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	return string(b)
}
