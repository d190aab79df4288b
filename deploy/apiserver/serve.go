package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// access is what clients need besides the address. It is made once for each Server.
type access struct {
	once        sync.Once
	err         error
	certificate tls.Certificate // signed by itself
	token       string
}

// make makes the certificate and the token. With TLS a client has one connection for all its watches, by HTTP/2: a proxy
// connects before its rules are in force, and makes no flows later.
func (a *access) make() error {
	a.once.Do(func() {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nfqproxy"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
			IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			a.err = err
			return
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		a.certificate, a.token, a.err = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, rand.Text(), err
	})
	return a.err
}

// kubeconfig is that of clients at an address.
func (a *access) kubeconfig(address string) ([]byte, error) {
	type object = map[string]any
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Certificate[0]})
	return json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "nfqproxy",
		"clusters": []object{{"name": "nfqproxy", "cluster": object{"server": "https://" + address, "certificate-authority-data": authority}}},
		"users":    []object{{"name": "nfqproxy", "user": object{"token": a.token}}},
		"contexts": []object{{"name": "nfqproxy", "context": object{"cluster": "nfqproxy", "user": "nfqproxy"}}},
	})
}

// admit reports whether a request has the token.
func (a *access) admit(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+a.token)) == 1
}

// serving are the listeners of a Server.
type serving struct {
	mu      sync.Mutex
	servers []*http.Server
	running sync.WaitGroup
}

// ServeHere is [Server.Serve] at a free port of this process's network namespace.
func (s *Server) ServeHere(kubeconfig string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	return s.Serve(l, kubeconfig)
}

// Serve serves the objects at a listener on a loopback address until Close, and writes a kubeconfig for clients there, and the
// configuration that [DaemonFlags] name. The listener may be of another network namespace.
func (s *Server) Serve(l net.Listener, kubeconfig string) error {
	if err := s.access.make(); err != nil {
		return errors.Join(err, l.Close())
	}
	text, err := s.access.kubeconfig(l.Addr().String())
	if err == nil {
		err = errors.Join(os.WriteFile(kubeconfig, text, 0o600), WriteConfig(configOf(kubeconfig)))
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !s.access.admit(r) {
				fail(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "the token is missing or wrong")
				return
			}
			s.ServeHTTP(w, r)
		}),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{s.access.certificate}},
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // of other programs that find the port
	}
	s.serving.mu.Lock()
	defer s.serving.mu.Unlock()
	s.serving.servers = append(s.serving.servers, server)
	s.serving.running.Go(func() { _ = server.ServeTLS(l, "", "") }) // until Close
	return nil
}

// Close ends what Serve has started.
func (s *Server) Close() error {
	s.serving.mu.Lock()
	defer s.serving.mu.Unlock()
	var errs []error
	for _, server := range s.serving.servers {
		errs = append(errs, server.Close())
	}
	s.serving.running.Wait()
	return errors.Join(errs...)
}

// DaemonFlags are those of a nfqproxyd with the objects of a [Server]. Such a daemon serves for as long as it runs: it keeps
// nothing for a later one, and it leaves the machine's settings unchanged. All Pods and Nodes are watched, since there are few
// of them, and a Node that is missing never comes.
func DaemonFlags(kubeconfig string) []string {
	return []string{"--kubeconfig=" + kubeconfig, "--config=" + configOf(kubeconfig), "--pod-names", "--all-nodes", "--wait-for-node=false", "--keep-rules-on-exit=false", "--own-tables=false", "--state-dir="}
}

// configOf is the configuration file beside a kubeconfig.
func configOf(kubeconfig string) string { return kubeconfig + ".config" }

// WriteConfig writes a configuration of nfqproxyd that leaves the machine's settings unchanged: the limits of connection
// tracking, and the priority of the process when memory runs out.
func WriteConfig(path string) error {
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
oomScoreAdj: %s
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, bytes.TrimSpace(score))
	return os.WriteFile(path, []byte(text), 0o600)
}

// Follow serves the objects of files and directories, which are watched, until the context ends; then it returns nil. It calls
// begun when the first ones are there. If these have mistakes, Follow returns them; later ones are logged, and the last good
// objects stay in force.
func (s *Server) Follow(ctx context.Context, log *slog.Logger, paths []string, begun func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started, failing := false, false
	var warnings []string
	err := labfile.NewSource(paths...).Run(ctx, func(o *manifest.Objects, err error) {
		if err == nil {
			err = s.Set(&o.Objects)
		}
		if err != nil && !started {
			cancel(err)
			return
		}
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				log.Error("cannot load the objects; the last good ones stay in force", "error", strings.TrimSpace(line))
			}
			failing = true
			return
		}
		for _, w := range o.Warnings {
			if !slices.Contains(warnings, w) {
				log.Warn(w)
			}
		}
		if failing {
			log.Info("loading the objects works again")
		}
		warnings, failing = o.Warnings, false
		if !started {
			started = true
			begun()
		}
	})
	if err == nil && !started {
		err = context.Cause(ctx)
	}
	return err
}
