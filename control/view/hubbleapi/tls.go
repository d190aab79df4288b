package hubbleapi

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
)

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
