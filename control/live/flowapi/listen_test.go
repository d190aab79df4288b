package flowapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/control/live/limit"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
)

// writeCertificate makes a certificate for the addresses that signs itself, and gives its
// file and its key's.
func writeCertificate(t *testing.T, dir string, serial int64, addresses ...string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	for _, a := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(a))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", keyDER)
}

func TestListenRefuses(t *testing.T) {
	dir := t.TempDir()
	cert, key := writeCertificate(t, dir, 1)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	live, err := net.Listen("unix", filepath.Join(dir, "live"))
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	const instead = ", or use a Unix socket such as unix:/run/nfqproxy/flows.sock"
	const open = " is reachable from other machines: give --flow-api-tls-cert, --flow-api-tls-key and --flow-api-token-file or --flow-api-service-account" + instead
	const local = " is open to every process of this machine: give --flow-api-token-file or --flow-api-service-account" + instead
	const absolute = ": want an absolute path, such as unix:/run/nfqproxy/flows.sock"
	for _, tt := range []struct {
		address Address
		want    string
	}{
		{Address{Address: "0.0.0.0:10253"}, "--flow-api 0.0.0.0:10253" + open},
		{Address{Address: ":10253"}, "--flow-api :10253" + open},
		{Address{Address: "[::]:1", HasToken: true}, "--flow-api [::]:1" + open},
		{Address{Address: "192.0.2.1:1", CertFile: cert, KeyFile: key}, "--flow-api 192.0.2.1:1" + open},
		{Address{Address: "localhost.example:1"}, "--flow-api localhost.example:1" + open},
		{Address{Address: "127.0.0.1"}, `--flow-api "127.0.0.1": want unix:/PATH, ADDRESS:PORT or [IPV6]:PORT`},
		{Address{Address: "127.0.0.1:"}, `--flow-api "127.0.0.1:": want unix:/PATH, ADDRESS:PORT or [IPV6]:PORT`},
		{Address{Address: "::1:80"}, `--flow-api "::1:80": want unix:/PATH, ADDRESS:PORT or [IPV6]:PORT`},
		{Address{}, `--flow-api "": want unix:/PATH, ADDRESS:PORT or [IPV6]:PORT`},
		{Address{Address: "127.0.0.1:10253"}, "--flow-api 127.0.0.1:10253" + local},
		{Address{Address: "localhost:1"}, "--flow-api localhost:1" + local},
		{Address{Address: "[::1]:1", CertFile: cert, KeyFile: key}, "--flow-api [::1]:1" + local},
		{Address{Address: "127.0.0.1:99999", HasToken: true}, "--flow-api 127.0.0.1:99999: listen tcp: address 99999: invalid port"},
		{Address{Address: "127.0.0.1:0", CertFile: cert}, "--flow-api-tls-cert and --flow-api-tls-key: give both or none"},
		{Address{Address: "127.0.0.1:0", KeyFile: key}, "--flow-api-tls-cert and --flow-api-tls-key: give both or none"},
		{Address{Address: "127.0.0.1:0", CertFile: cert, KeyFile: cert, HasToken: true}, "--flow-api-tls-cert " + cert + ", --flow-api-tls-key " + cert + ": tls: found a certificate rather than a key in the PEM for the private key"},
		{Address{Address: "unix:x"}, "--flow-api unix:x" + absolute},
		{Address{Address: "unix:@x"}, "--flow-api unix:@x" + absolute},
		{Address{Address: "unix://run/x"}, "--flow-api unix://run/x" + absolute},
		{Address{Address: dir + "/no/such/api"}, "--flow-api " + dir + "/no/such/api: mkdir " + dir + "/no/such: no such file or directory"},
		{Address{Address: "unix:" + file}, "--flow-api unix:" + file + ": the file exists and is not a socket: remove it, or use another path"},
		{Address{Address: "unix:" + live.Addr().String()}, "--flow-api unix:" + live.Addr().String() + ": address already in use by another process: stop it, or use another path"},
	} {
		l, err := Listen(tt.address)
		if err == nil {
			l.Close()
			t.Errorf("%+v: no error", tt.address)
		} else if err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file: %q, %v", b, err)
	}
}

// serve serves until the test ends, which then checks that it ended well.
func serve(t *testing.T, a Address, c Config) net.Listener {
	t.Helper()
	l, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(c).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l
}

// TestSocketForms: each form of a Unix socket's address makes the socket, its directory if that is
// missing, and nothing is left at the end.
func TestSocketForms(t *testing.T) {
	for _, prefix := range []string{"unix:", "unix://", ""} {
		path := filepath.Join(t.TempDir(), "made", "api")
		l, err := Listen(Address{Address: prefix + path})
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|0o660 {
			t.Errorf("%s: %v, %v", prefix, info, err)
		}
		if _, err := Listen(Address{Address: prefix + path}); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: a second listener: %v", prefix, err)
		}
		l.Close()
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: it is left: %v", prefix, err)
		}
	}
}

// TestTwoListeners: the server's listeners share its limits, and each requires the token as its
// kind of address does.
func TestTwoListeners(t *testing.T) {
	limits := new(limit.Set)
	s := New(Config{Observer: observetest.New("node-a"), Token: "secret", Limits: limits})
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	path := filepath.Join(t.TempDir(), "api")
	for address, want := range map[string]int{path: 200, "127.0.0.1:0": 401} {
		l, err := Listen(Address{Address: address, HasToken: true})
		if err != nil {
			t.Fatal(err)
		}
		serving.Go(func() {
			if err := s.Serve(ctx, l); err != nil {
				t.Error(err)
			}
		})
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, l.Addr().Network(), l.Addr().String())
		}}}
		r, err := client.Get("http://localhost/v1/stats")
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s: %d, want %d", address, r.StatusCode, want)
		}
	}
	names := make(map[string]int)
	for _, c := range limits.Counts() {
		names[c.What]++
	}
	if want := map[string]int{"streams of flows": 1, "requests": 1, "connections": 1}; !maps.Equal(names, want) {
		t.Errorf("the limits are %v, want %v", names, want)
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api")
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	serve(t, Address{Address: "unix:" + path}, Config{Observer: observetest.New("node-a")})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://localhost/v1/stats")
	if err != nil || r.StatusCode != 200 {
		t.Fatalf("%v, %v", r, err)
	}
	r.Body.Close()
}

// TestTLS: the certificate may be renewed, and other machines may come in.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := writeCertificate(t, dir, 1, "127.0.0.1")
	l := serve(t, Address{Address: "0.0.0.0:0", CertFile: cert, KeyFile: key, HasToken: true}, Config{Observer: observetest.New("node-a"), Token: "secret"})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	get := func(token string) (*http.Response, error) {
		trusted := x509.NewCertPool()
		b, err := os.ReadFile(cert)
		if err != nil || !trusted.AppendCertsFromPEM(b) {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, DisableKeepAlives: true}}
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://127.0.0.1:"+port+"/v1/stats", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", "https://127.0.0.1:"+port)
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := client.Do(r)
		if err == nil {
			answer.Body.Close()
		}
		return answer, err
	}
	if r, err := get("secret"); err != nil || r.StatusCode != 200 || r.TLS.PeerCertificates[0].SerialNumber.Int64() != 1 {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := get("wrong"); err != nil || r.StatusCode != 401 {
		t.Errorf("without the token, from anywhere: %v, %v", r, err)
	}
	writeCertificate(t, dir, 2, "127.0.0.1")
	if r, err := get("secret"); err != nil || r.StatusCode != 200 || r.TLS.PeerCertificates[0].SerialNumber.Int64() != 2 {
		t.Errorf("renewed: %v, %v", r, err)
	}
	// Without TLS the server answers what it wants.
	r, err := http.Get("http://127.0.0.1:" + port + "/v1/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, _ := io.ReadAll(r.Body); r.StatusCode != 400 || !bytes.Contains(b, []byte("HTTPS")) {
		t.Errorf("%d %s", r.StatusCode, b)
	}
}

// TestShutdown: streams and questions that wait end, and Serve does.
func TestShutdown(t *testing.T) {
	f := observetest.New("node-a")
	l, err := Listen(Address{Address: "localhost:0", HasToken: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- New(Config{Observer: f, OpenLoopback: true}).Serve(ctx, l) }()
	h, err := f.Hold(ctx, observe.HoldQuery{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := http.Get("http://" + l.Addr().String() + "/v1/flows?follow")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	poll := make(chan error, 1)
	go func() {
		r, err := http.Get("http://" + l.Addr().String() + "/v1/holds/" + h.ID + "?after=1")
		if err == nil {
			r.Body.Close()
		}
		poll <- err
	}()
	if !f.AwaitRequest(ctx, h.ID) {
		t.Fatal("no request came")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(stream.Body); err != nil {
		t.Errorf("the stream: %v", err)
	}
	if err := <-poll; err != nil {
		t.Errorf("the question that waited: %v", err)
	}
}

// begun is an observer that has begun a list when the server stops.
type begun struct {
	*observetest.Fake
	listing chan struct{}
}

func (b *begun) Flows(ctx context.Context, _ observe.FlowQuery, each func(observe.Item) error) error {
	err := each(record("1"))
	close(b.listing)
	<-ctx.Done()
	return err
}

// TestShutdownOfLists: half a list does not look like a whole one.
func TestShutdownOfLists(t *testing.T) {
	l, err := Listen(Address{Address: "127.0.0.1:0", HasToken: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := &begun{observetest.New("node-a"), make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- New(Config{Observer: b, OpenLoopback: true}).Serve(ctx, l) }()
	go func() {
		<-b.listing
		cancel()
	}()
	r, err := http.Get("http://" + l.Addr().String() + "/v1/flows")
	if err == nil { // or it was cut off before its head
		_, err = io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != http.StatusOK {
			err = io.ErrUnexpectedEOF
		}
	}
	if err == nil {
		t.Error("it looks like a whole list")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestServeEnds with the listener's error.
func TestServeEnds(t *testing.T) {
	l, err := Listen(Address{Address: "127.0.0.1:0", HasToken: true})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := New(Config{Observer: observetest.New("node-a")}).Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), "flow API at 127.0.0.1:") {
		t.Errorf("error %v", err)
	}
}
