package hubbleapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb"
	peerpb "github.com/nfqproxy/nfqproxy/control/view/hubbleapi/hubblepb/peer"
)

const (
	// transferTimeout is the timeout of one message.
	transferTimeout = 30 * time.Second
	// maxRequest bounds the size of requests: filters are what makes them large.
	maxRequest = 1 << 20
	// messageHead is the size of what gRPC sends before a message.
	messageHead = 5
)

// Handler serves Hubble's calls. Requests must use HTTP/2; see [Serve].
func Handler(c Config) http.Handler {
	quota := c.Limits.New(serverName, "calls", c.calls())
	s := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(stream)
			return unsupported("method " + strings.TrimPrefix(method, "/"))
		}),
		grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (response any, err error) {
			err = statusOf(c.Log, info.FullMethod, func() error {
				response, err = call(ctx, request)
				return err
			})
			return response, err
		}),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, call grpc.StreamHandler) error {
			return statusOf(c.Log, info.FullMethod, func() error { return call(service, stream) })
		}),
	)
	hubblepb.RegisterObserverServer(s, &server{observer: c.Observer})
	if c.Peers != nil {
		peerpb.RegisterPeerServer(s, &peerServer{peers: c.Peers, tls: c.TLS.Enabled()})
	}
	grpc_health_v1.RegisterHealthServer(s, healthy{})
	refusals := grpc.NewServer(grpc.UnknownServiceHandler(refuse))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor < 2 || r.Method != http.MethodPost || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			http.Error(w, "This is Hubble's gRPC API: use hubble observe --server "+r.Host, http.StatusUnsupportedMediaType)
			return
		}
		release, err := quota.Take(limit.Of(r))
		if err != nil {
			r = r.WithContext(context.WithValue(r.Context(), refusalKey{}, err))
			r.Body = http.NoBody
			refusals.ServeHTTP(w, r)
			return
		}
		defer release()
		// Without deadlines, a client that does not send or read would keep its share. Without a
		// bound, grpc would buffer what follows the request.
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(transferTimeout))
		r.Body = http.MaxBytesReader(w, r.Body, messageHead+maxRequest)
		s.ServeHTTP(deadlineWriter{w, control}, r)
	})
}

// refusalKey is the key of the error in a refused request's context.
type refusalKey struct{}

// refuse answers a call with the error in its context. Unlike an interceptor, it does not wait for
// the request.
func refuse(_ any, stream grpc.ServerStream) error {
	err, _ := stream.Context().Value(refusalKey{}).(error)
	return status.Error(codes.ResourceExhausted, err.Error())
}

// deadlineWriter bounds the time of writing a message, which ends with a flush.
type deadlineWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w deadlineWriter) Write(b []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(transferTimeout))
	return w.ResponseWriter.Write(b)
}

func (w deadlineWriter) Flush() {
	_ = w.control.Flush()
	_ = w.control.SetWriteDeadline(time.Time{})
}

// statusOf calls the method and gives its error a status.
func statusOf(log *slog.Logger, method string, call func() error) (err error) {
	// The goroutine is grpc's, which does not recover panics, unlike net/http: a bug in the observation
	// of flows must not end the program that serves them.
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic in a call of the Hubble API", "method", method, "panic", p, "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "internal error: %v", p)
		}
	}()
	err = call()
	if _, has := status.FromError(err); has {
		return err
	}
	if refused, ok := errors.AsType[*observe.Error](err); ok {
		return status.Error(codes.InvalidArgument, refused.Message)
	}
	return status.Error(codes.Internal, err.Error())
}

func unsupported(what string) error {
	return status.Error(codes.Unimplemented, "not supported by nfqproxy: "+what)
}

// TLS names the files of mutual TLS: clients need a certificate of the authority. They are read for each
// connection, so they can be renewed.
type TLS struct{ CertFile, KeyFile, ClientCAFile string }

// Check validates the address of the API and the files, of which there are all or none. Errors name the
// flags of nfqproxy export.
func (t TLS) Check(address string) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil || a.Port() == 0 {
		return fmt.Errorf("--hubble-bind-address %q: want an address and a port, such as 127.0.0.1:4245", address)
	}
	if !t.Enabled() {
		if !a.Addr().IsLoopback() {
			return fmt.Errorf("--hubble-bind-address %s is reachable from other machines: give --hubble-tls-cert, --hubble-tls-key and --hubble-tls-client-ca, or use a loopback address such as 127.0.0.1:4245", address)
		}
		return nil
	}
	if t.CertFile == "" || t.KeyFile == "" || t.ClientCAFile == "" {
		return errors.New("--hubble-tls-cert, --hubble-tls-key and --hubble-tls-client-ca: give all or none; clients have no other authentication than their certificate")
	}
	_, err = t.config()
	return err
}

// Enabled reports whether there are files.
func (t TLS) Enabled() bool { return t != TLS{} }

// config reads the files.
func (t TLS) config() (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("--hubble-tls-cert %s, --hubble-tls-key %s: %w", t.CertFile, t.KeyFile, err)
	}
	text, err := os.ReadFile(t.ClientCAFile)
	authorities := x509.NewCertPool()
	if err == nil && !authorities.AppendCertsFromPEM(text) {
		err = errors.New("it has no certificate in PEM format")
	}
	if err != nil {
		return nil, fmt.Errorf("--hubble-tls-client-ca %s: %w", t.ClientCAFile, err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{certificate},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authorities,
	}, nil
}

// server is the configuration of a server. The files are read for each connection.
func (t TLS) server() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.config() }}
}
