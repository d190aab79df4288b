package flowapi

import (
	"cmp"
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
	"syscall"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
)

// DefaultSocket is where the daemon of a node serves the API.
const DefaultSocket = "/run/nfqproxy/flows.sock"

// Address is the listen address of the API, with its TLS certificate.
type Address struct {
	// Address is unix:/PATH, unix:///PATH, /PATH or ADDRESS:PORT. Port 0 is any free port.
	Address string
	// CertFile and KeyFile are for TLS: both or none. They are read for each connection, so they
	// can be renewed.
	CertFile, KeyFile string
	// HasToken: the server has a token to require, or a Reviewer.
	HasToken bool
	// Flag is the name of the address's flag, which errors name; empty: flow-api. Those of its certificate follow from it.
	Flag string
}

func (a *Address) flag() string { return "--" + cmp.Or(a.Flag, "flow-api") }

// Check validates the address. Flows are confidential: a port requires a token, because any local
// process can connect to it, and if it is reachable from other machines also TLS. Errors name the
// flags of nfqproxy run.
func (a Address) Check() error {
	if path, ok := observe.SocketPath(a.Address); ok {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s %s: want an absolute path, such as unix:%s", a.flag(), a.Address, DefaultSocket)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(a.Address)
	switch {
	case err != nil || port == "":
		return fmt.Errorf("%s %q: want unix:/PATH, ADDRESS:PORT or [IPV6]:PORT", a.flag(), a.Address)
	case (a.CertFile == "") != (a.KeyFile == ""):
		return fmt.Errorf("%s-tls-cert and %[1]s-tls-key: give both or none", a.flag())
	case !observe.IsLoopback(host) && a.CertFile == "" && a.Flag != "":
		return fmt.Errorf("%s %s is reachable from other machines: give %[1]s-tls-cert and %[1]s-tls-key, or use a loopback address", a.flag(), a.Address)
	case !observe.IsLoopback(host) && (a.CertFile == "" || !a.HasToken):
		return fmt.Errorf("--flow-api %s is reachable from other machines: give --flow-api-tls-cert, --flow-api-tls-key and "+
			"--flow-api-token-file or --flow-api-service-account, or use a Unix socket such as unix:%s", a.Address, DefaultSocket)
	case !a.HasToken:
		return fmt.Errorf("--flow-api %s is open to every process of this machine: give --flow-api-token-file or "+
			"--flow-api-service-account, or use a Unix socket such as unix:%s", a.Address, DefaultSocket)
	}
	return nil
}

// Listen opens a valid address, for [API.Serve]. The stale socket of another process is replaced; clients
// of a socket must be its owner or in its group. Errors name the flags of nfqproxy run.
func Listen(a Address) (net.Listener, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	if path, ok := observe.SocketPath(a.Address); ok {
		err := a.MakeDirectory()
		var l net.Listener
		if err == nil {
			l, err = listenUnix(path)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", a.flag(), a.Address, err)
		}
		return l, nil
	}
	certificate, err := a.certificate()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", a.Address)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", a.flag(), a.Address, err)
	}
	if certificate == nil {
		return l, nil
	}
	return &tlsListener{l, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: certificate}}, nil
}

// tlsListener is a listener whose connections [API.Serve] wraps in TLS; the limit applies below TLS.
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
			return nil, fmt.Errorf("%[1]s-tls-cert %[2]s, %[1]s-tls-key %[3]s: %[4]w", a.flag(), a.CertFile, a.KeyFile, err)
		}
		return &c, nil
	}
	_, err := load(nil)
	return load, err
}

// MakeDirectory makes the directory of a socket, if it is missing.
func (a Address) MakeDirectory() error {
	path, ok := observe.SocketPath(a.Address)
	if !ok {
		return nil
	}
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// listenUnix creates the socket. Before its mode is set it has the umask's, which by default denies
// writing to others as well.
func listenUnix(path string) (net.Listener, error) {
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
	return l, err
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
		return fmt.Errorf("%w by another process: stop it, or use another path", syscall.EADDRINUSE)
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

// Serve serves the API at a listener until the context ends, then ends streams, waits shortly for
// other requests, and returns nil. Several listeners share the limits.
func (s *API) Serve(ctx context.Context, l net.Listener) error {
	requests, endRequests := context.WithCancel(ctx) // streams would go on, and questions wait
	defer endRequests()
	server := &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ConnContext:       limit.ConnContext,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
	if err := limit.Serve(ctx, server, limited(l, s.connections), shutdownGrace); err != nil {
		return fmt.Errorf("flow API at %s: %w", l.Addr(), err)
	}
	return nil
}
