package limit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"
)

// How a connection that a limit refuses ends: it gets an answer, and some time to read it.
const (
	// lingering is how many of them there may be; further ones are closed without an answer.
	lingering = 16
	// lingerTime bounds each.
	lingerTime = time.Second
)

// listener accepts connections within a quota.
type listener struct {
	net.Listener
	quota  *Quota
	answer func(error) []byte
	slots  *semaphore.Weighted // one for each connection that is being refused
}

// Listen limits the connections of a listener. Those over a limit are accepted, sent the result of
// answer for the [*Exceeded] (nil: nothing), and closed. In the kernel's queue they would block
// clients that are within their limit.
func Listen(l net.Listener, q *Quota, answer func(error) []byte) net.Listener {
	return &listener{l, q, answer, semaphore.NewWeighted(lingering)}
}

// Accept waits for a connection within the quota.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(c)
		release, err := l.quota.Take(client)
		if err == nil {
			return &conn{c, client, release}, nil
		}
		l.refuse(c, err)
	}
}

func (l *listener) refuse(c net.Conn, why error) {
	if !l.slots.TryAcquire(1) {
		_ = c.Close()
		return
	}
	go func() {
		defer l.slots.Release(1)
		defer c.Close()
		if l.answer == nil {
			return
		}
		_ = c.SetDeadline(time.Now().Add(lingerTime))
		if _, err := c.Write(l.answer(why)); err != nil {
			return
		}
		// Closing with unread data would reset the connection, and the response would be lost.
		if half, ok := c.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			_, _ = io.CopyN(io.Discard, c, 64<<10)
		}
	}()
}

// conn releases its share when it is closed.
type conn struct {
	net.Conn
	client  Client
	release func()
}

func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// Serve serves HTTP at the listener until the context ends. Then it waits up to the grace time for requests to end, and
// returns nil. It closes the listener, whose error it returns.
func Serve(ctx context.Context, server *http.Server, l net.Listener, grace time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		_ = server.Close()
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		_ = server.Close() // closes the remaining connections
	}
	<-ended
	return nil
}

// HTTP makes HTTP/1.1 responses with a body by content: 429 for the limit of one client, else
// 503.
func HTTP(contentType string, content func(status int, err error) []byte) func(error) []byte {
	return func(err error) []byte {
		status := Status(err)
		body := content(status, err)
		return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nX-Content-Type-Options: nosniff\r\nRetry-After: 5\r\nConnection: close\r\n\r\n%s",
			status, http.StatusText(status), contentType, len(body), body)
	}
}

// Text is [HTTP] with the error as plain text.
var Text = HTTP("text/plain; charset=utf-8", func(_ int, err error) []byte { return []byte(err.Error() + "\n") })

// Status is the HTTP status of an error of [Quota.Take].
func Status(err error) int {
	if e, ok := errors.AsType[*Exceeded](err); ok && e.Each {
		return 429
	}
	return 503
}

// Client identifies a client for limits per client: a user of this machine, if the kernel
// reports the socket's owner, else an address. It is comparable.
type Client struct {
	address netip.Addr // valid iff it is no user
	uid     uint32     // valid iff user
	user    bool
	// privileged: root, or the user that the server runs as. Both can stop the server anyway,
	// so the limit for each client does not apply to them. kubelet's probes, kubectl
	// port-forward, and the relay of a lab are such clients.
	privileged bool
}

// User returns the client with the user ID.
func User(uid uint32) Client {
	return Client{uid: uid, user: true, privileged: uid == 0 || int(uid) == os.Geteuid()}
}

// Address returns the client with the address. IPv6 addresses count individually: the pods of a
// node share a /64 prefix.
func Address(a netip.Addr) Client { return Client{address: a.Unmap().WithZone("")} }

// String returns the client's name for messages.
func (c Client) String() string {
	switch {
	case c.user:
		return "uid " + strconv.FormatUint(uint64(c.uid), 10)
	case c.address.IsValid():
		return c.address.String()
	}
	return "a client without an address"
}

// clientOf finds the client of a connection that a server accepted.
func clientOf(c net.Conn) Client {
	switch c := c.(type) {
	case *net.UnixConn:
		if uid, err := PeerUID(c); err == nil {
			return User(uid)
		}
	case *net.TCPConn:
		remote, local := addrPort(c.RemoteAddr()), addrPort(c.LocalAddr())
		// A connection within this machine: to a loopback address, or to an address of its
		// own, which the kernel then takes as the source, too. kubelet probes like that.
		if remote.Addr().IsLoopback() || remote.Addr() == local.Addr() {
			if uid, ok := socketUID(remote, local); ok {
				return User(uid)
			}
		}
	}
	return Address(addrPort(c.RemoteAddr()).Addr())
}

func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := tcp.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
}

type clientKey struct{}

// ConnContext adds the client to the context of a connection's requests; see
// [http.Server.ConnContext].
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS is around it
		c = secure.NetConn()
	}
	if limited, ok := c.(*conn); ok {
		return context.WithValue(ctx, clientKey{}, limited.client)
	}
	return ctx
}

// Of returns the client of a request.
func Of(r *http.Request) Client {
	if c, ok := r.Context().Value(clientKey{}).(Client); ok {
		return c
	}
	p, _ := netip.ParseAddrPort(r.RemoteAddr)
	return Address(p.Addr())
}
