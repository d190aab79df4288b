package apiserver

import (
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
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
