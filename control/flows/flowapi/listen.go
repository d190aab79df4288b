package flowapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/limit"
)

// Address is the listen address of the API, with its TLS certificate.
type Address struct {
	// Address is ADDRESS:PORT or unix:/PATH. Port 0 is any free port.
	Address string
	// CertFile and KeyFile are for TLS: both or none. They are read for each connection, so they
	// can be renewed.
	CertFile, KeyFile string
	// HasToken: the server has a token to require.
	HasToken bool
}

// unixPrefix is the prefix of Unix socket addresses.
const unixPrefix = "unix:"

// Listen opens the address, for [Serve]. An address that is reachable from other machines requires
// TLS and a token, because flows are confidential. Errors name the flags of nfqproxy run. The stale
// socket of another process is replaced; clients of a socket must be in its group.
func Listen(a Address) (net.Listener, error) {
	if (a.CertFile == "") != (a.KeyFile == "") {
		return nil, errors.New("--flow-api-tls-cert and --flow-api-tls-key: give both or none")
	}
	if path, ok := strings.CutPrefix(a.Address, unixPrefix); ok {
		if a.CertFile != "" {
			return nil, fmt.Errorf("--flow-api %s: TLS is not supported on a Unix socket: remove --flow-api-tls-cert and --flow-api-tls-key", a.Address)
		}
		return listenUnix(path)
	}
	host, port, err := net.SplitHostPort(a.Address)
	if err != nil || port == "" {
		return nil, fmt.Errorf("--flow-api %q: want ADDRESS:PORT, [IPV6]:PORT or unix:/PATH", a.Address)
	}
	if !observe.IsLoopback(host) && (a.CertFile == "" || !a.HasToken) {
		return nil, fmt.Errorf("--flow-api %s is reachable from other machines: give --flow-api-tls-cert, --flow-api-tls-key and "+
			"--flow-api-token-file, or use a loopback address such as 127.0.0.1:%s", a.Address, port)
	}
	certificate, err := a.certificate()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", a.Address)
	if err != nil {
		return nil, fmt.Errorf("--flow-api %s: %w", a.Address, err)
	}
	if certificate == nil {
		return l, nil
	}
	return &tlsListener{l, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: certificate}}, nil
}

// tlsListener is a listener whose connections [Serve] wraps in TLS; the limit applies below TLS.
type tlsListener struct {
	net.Listener
	config *tls.Config
}

// limited limits the connections of a listener.
func limited(l net.Listener, q *limit.Quota) net.Listener {
	if t, ok := l.(*tlsListener); ok {
		// No response is possible before the handshake.
		return tls.NewListener(limit.Listen(t.Listener, q, nil), t.config)
	}
	return limit.Listen(l, q, limit.HTTP("application/json", func(status int, err error) []byte {
		b, _ := encode(&observe.Error{Status: status, Message: err.Error()}) // an Error can always be encoded
		return b
	}))
}

// certificate returns the source of the TLS certificate; nil: no TLS.
func (a Address) certificate() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if a.CertFile == "" {
		return nil, nil
	}
	load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--flow-api-tls-cert %s, --flow-api-tls-key %s: %w", a.CertFile, a.KeyFile, err)
		}
		return &c, nil
	}
	_, err := load(nil)
	return load, err
}

// listenUnix creates the socket. Before its mode is set it has the umask's, which by default denies
// writing to others as well.
func listenUnix(path string) (net.Listener, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("--flow-api unix:%s: want an absolute path: unix:/run/nfqproxy.sock", path)
	}
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err = removeStale(path); err == nil {
			l, err = net.Listen("unix", path)
		}
	}
	if err == nil {
		if err = os.Chmod(path, 0o660); err != nil {
			_ = l.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("--flow-api unix:%s: %w", path, err)
	}
	return l, nil
}

// removeStale removes the socket of a process that has ended.
func removeStale(path string) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return errors.New("the file exists and is not a socket: remove it, or use another path")
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = c.Close()
		return fmt.Errorf("address in use by another process: %w", syscall.EADDRINUSE)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	return os.Remove(path)
}

// Limits of the server; those of streams and requests are in [New].
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	shutdownGrace  = 2 * time.Second
)

// Serve serves the API until the context ends, then ends streams, waits shortly for other requests,
// and returns nil. If the listener is reachable from other machines, every request except those
// for the page requires the token.
func Serve(ctx context.Context, l net.Listener, c Config) error {
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		c.TokenForAll = true
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	server := &http.Server{
		Handler:           New(c),
		BaseContext:       func(net.Listener) context.Context { return requests },
		ConnContext:       limit.ConnContext,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn),
	}
	ended := make(chan error, 1)
	l = limited(l, c.Limits.Connections(serverName, connections))
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		_ = server.Close()
		return fmt.Errorf("flow API at %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	endRequests() // streams would go on, and questions wait
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		_ = server.Close()
	}
	<-ended
	return nil
}
