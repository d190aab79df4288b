package limit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"
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
	slots  chan struct{} // one element for each connection that is being refused
}

// Listen limits the connections of a listener. Those over a limit are accepted, sent the result of
// answer for the [*Exceeded] (nil: nothing), and closed. In the kernel's queue they would block
// clients that are within their limit.
func Listen(l net.Listener, q *Quota, answer func(error) []byte) net.Listener {
	return &listener{l, q, answer, make(chan struct{}, lingering)}
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
	select {
	case l.slots <- struct{}{}:
	default:
		_ = c.Close()
		return
	}
	go func() {
		defer func() { <-l.slots }()
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

// HTTP makes HTTP/1.1 responses with a body by content: 429 for the limit of one client, else
// 503.
func HTTP(contentType string, content func(status int, err error) []byte) func(error) []byte {
	return func(err error) []byte {
		status, text := Status(err), "503 Service Unavailable"
		if status == 429 {
			text = "429 Too Many Requests"
		}
		body := content(status, err)
		return fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nX-Content-Type-Options: nosniff\r\nRetry-After: 5\r\nConnection: close\r\n\r\n%s",
			text, contentType, len(body), body)
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
