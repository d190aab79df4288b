package daemonset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Bounds of connections.
const (
	maxDials    = 50               // at a time
	dialTimeout = 20 * time.Second // from the API server's answer to the pod's
	// errorReadTimeout is how long the reason of a failure may take after the end of the data.
	errorReadTimeout = time.Second
)

// forwarder connects to ports of pods as kubectl port-forward does. Each connection has an upgraded
// connection to the API server of its own: SPDY as it is implemented has no flow control for streams, so a
// slow reader of one would stop all others.
type forwarder struct {
	config *rest.Config
	url    func(pod string) *url.URL
	dials  chan struct{} // has an element for each dial
	// spdy: the API server, or a proxy before it, does not take WebSocket.
	spdy atomic.Bool
}

func (s *set) newForwarder(config *rest.Config) (*forwarder, error) {
	if _, err := rest.TLSConfigFor(config); err != nil {
		return nil, fmt.Errorf("API server %s: %w", config.Host, err)
	}
	return &forwarder{config: config, dials: make(chan struct{}, maxDials), url: func(pod string) *url.URL {
		return s.client.CoreV1().RESTClient().Post().Namespace(s.Namespace).Resource("pods").Name(pod).SubResource("portforward").URL()
	}}, nil
}

// errForbidden is the error of a user who may not forward ports.
type errForbidden struct{ error }

// dial connects to a port of the loopback address of a pod.
func (f *forwarder) dial(ctx context.Context, pod string, port int) (net.Conn, error) {
	select {
	case f.dials <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, fmt.Errorf("no connection within %s", dialTimeout))
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() { // client-go's dialers have no context
		defer func() { <-f.dials }()
		conn, err := f.connect(f.url(pod), port)
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				_ = r.conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

func (f *forwarder) connect(u *url.URL, port int) (net.Conn, error) {
	upgraded, err := f.upgrade(u)
	if err != nil {
		return nil, err
	}
	conn, err := newConn(upgraded, port)
	if err != nil {
		return nil, errors.Join(err, upgraded.Close())
	}
	return conn, nil
}

// upgrade upgrades a connection: by WebSocket, or else by SPDY, as kubectl does.
func (f *forwarder) upgrade(u *url.URL) (httpstream.Connection, error) {
	var errWebSocket error
	if !f.spdy.Load() {
		dialer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, f.config)
		if err != nil {
			return nil, err
		}
		c, err := negotiated(dialer)
		if err == nil || !httpstream.IsUpgradeFailure(err) && !httpstream.IsHTTPSProxyError(err) {
			return c, err
		}
		errWebSocket = err
	}
	transport, upgrader, err := spdy.RoundTripperFor(f.config)
	if err != nil {
		return nil, err
	}
	c, err := negotiated(spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u))
	switch {
	case err == nil:
		f.spdy.Store(true)
		return c, nil
	case isForbidden(err):
		return nil, errForbidden{err}
	case errWebSocket != nil:
		// SPDY's client does not keep the status. Where both fail, the reason is the same, or the way of SPDY is closed.
		return nil, errWebSocket
	}
	return nil, err
}

// isForbidden recognizes the text of API servers (forbiddenMessage in k8s.io/apiserver), of which SPDY's
// client keeps no more.
func isForbidden(err error) bool { return strings.Contains(err.Error(), "is forbidden: ") }

func negotiated(d httpstream.Dialer) (httpstream.Connection, error) {
	c, protocol, err := d.Dial(portforward.PortForwardProtocolV1Name)
	if err == nil && protocol != portforward.PortForwardProtocolV1Name {
		err = errors.Join(fmt.Errorf("the API server forwards ports by protocol %q: want %q", protocol, portforward.PortForwardProtocolV1Name), c.Close())
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// conn is a connection to a pod's port.
type conn struct {
	httpstream.Stream
	upgraded httpstream.Connection
	ended    chan struct{} // closed when failure is final
	failure  error         // that the pod's node reports; nil: none
}

// newConn makes the two streams of a connection.
func newConn(upgraded httpstream.Connection, port int) (*conn, error) {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := upgraded.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("cannot make the error stream: %w", err)
	}
	_ = failures.Close() // nothing is written to it
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := upgraded.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("cannot make the data stream: %w", err)
	}
	c := &conn{Stream: data, upgraded: upgraded, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		if text, _ := io.ReadAll(io.LimitReader(failures, 4<<10)); len(text) > 0 {
			c.failure = errors.New(strings.TrimSpace(string(text)))
		}
	}()
	return c, nil
}

// Read returns the failure that the node reports, instead of the end of the data.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Stream.Read(b)
	if err != nil && n == 0 {
		if failure := c.reason(); failure != nil {
			err = failure
		}
	}
	return n, err
}

// reason waits shortly for a failure.
func (c *conn) reason() error {
	select {
	case <-c.ended:
		return c.failure
	case <-time.After(errorReadTimeout):
		return nil
	}
}

// Close closes the connection to the API server.
func (c *conn) Close() error { return c.upgraded.Close() }

// portforwardAddr is the address of both ends.
var portforwardAddr = &net.UnixAddr{Name: "portforward", Net: "portforward"}

func (c *conn) LocalAddr() net.Addr  { return portforwardAddr }
func (c *conn) RemoteAddr() net.Addr { return portforwardAddr }

// Deadlines are not supported.
func (c *conn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *conn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *conn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
