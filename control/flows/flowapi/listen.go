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
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
	"github.com/nfqproxy/nfqproxy/control/limit"
)

// Address is where the API listens, and what that takes.
type Address struct {
	// Address is ADDRESS:PORT or unix:/PATH. Port 0 is any that is free.
	Address string
	// CertFile and KeyFile are for TLS: both or none. They are read anew for each
	// connection, so they can be renewed.
	CertFile, KeyFile string
	// HasToken: there is a token to be asked for.
	HasToken bool
}

// unixPrefix is what the addresses of Unix sockets begin with.
const unixPrefix = "unix:"

// Listen opens the address, for [Serve]. One that other machines can reach takes TLS and a token: flows
// tell who talks to whom. Errors name the flags of nfqproxy run. The socket of a process that
// is gone is replaced; those who are to use it have to be in its group.
func Listen(a Address) (net.Listener, error) {
	if (a.CertFile == "") != (a.KeyFile == "") {
		return nil, errors.New("--flow-api-tls-cert and --flow-api-tls-key: give both or none")
	}
	if path, ok := strings.CutPrefix(a.Address, unixPrefix); ok {
		if a.CertFile != "" {
			return nil, fmt.Errorf("--flow-api %s: a Unix socket takes no TLS: leave out --flow-api-tls-cert and --flow-api-tls-key", a.Address)
		}
		return listenUnix(path)
	}
	host, port, err := net.SplitHostPort(a.Address)
	if err != nil || port == "" {
		return nil, fmt.Errorf("--flow-api %q: want ADDRESS:PORT, [IPV6]:PORT or unix:/PATH", a.Address)
	}
	if !isLoopback(host) && (a.CertFile == "" || !a.HasToken) {
		return nil, fmt.Errorf("--flow-api %s can be reached from other machines: it takes --flow-api-tls-cert, --flow-api-tls-key and "+
			"--flow-api-token-file, or an address of this machine only, such as 127.0.0.1:%s", a.Address, port)
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

// tlsListener is a listener whose connections [Serve] is to speak TLS on: beneath, it limits
// them.
type tlsListener struct {
	net.Listener
	config *tls.Config
}

// limited limits the connections of a listener.
func limited(l net.Listener, q *limit.Quota) net.Listener {
	if t, ok := l.(*tlsListener); ok {
		// Before the handshake there is no way to answer.
		return tls.NewListener(limit.Listen(t.Listener, q, nil), t.config)
	}
	return limit.Listen(l, q, limit.HTTP("application/json", func(status int, err error) []byte {
		b, _ := encode(&observe.Error{Status: status, Message: err.Error()}) // an Error can always be encoded
		return b
	}))
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// certificate gives what TLS takes its certificate from; nil: there is to be none.
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

// listenUnix makes the socket. Until it has its mode it has the umask's, which lets nobody
// else write either, unless somebody wants that.
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

// removeStale removes the socket of a process that is gone.
func removeStale(path string) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is a file that is no socket: remove it, or take another path")
	}
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		_ = c.Close()
		return errors.New("another process listens there: stop it, or take another path")
	case !errors.Is(err, syscall.ECONNREFUSED):
		return err
	}
	return os.Remove(path)
}

// Limits of the server; those of what is under way are in [New].
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	shutdownGrace  = 2 * time.Second
)

// Serve serves the API until the context ends, then ends streams, gives other requests a
// moment, and returns nil. Where other machines can reach the listener, every request but
// those for the page needs the token.
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
		return fmt.Errorf("the flow API at %s: %w", l.Addr(), err)
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
