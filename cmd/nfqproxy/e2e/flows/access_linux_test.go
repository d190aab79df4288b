package flows

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/view/web/webtest"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

const nodeObjects = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.0.2]}]
`

// node is a node with one pod, where a test starts the daemon itself, as on a cluster.
type node struct {
	*netns.Namespace
	t *testing.T
}

func newNode(t *testing.T) *node {
	t.Helper()
	netnstest.Require(t)
	made := func(name string) *netns.Namespace {
		ns, err := netns.New(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ns.Close() })
		return ns
	}
	n, pod := &node{made("node"), t}, made("pod")
	l, err := pod.Listen(t.Context(), netip.MustParseAddrPort("0.0.0.0:8080"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "the endpoint")
			_ = c.Close()
		}
	}()
	if err := errors.Join(
		n.AddVeth("pod", pod, "eth0"),
		n.AddAddress("pod", netip.MustParsePrefix("10.244.0.1/24")),
		pod.AddAddress("eth0", netip.MustParsePrefix("10.244.0.2/24")),
		// A route for service addresses.
		n.AddRoute(netns.Route{Destination: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.244.0.2"), Link: "pod"}),
	); err != nil {
		t.Fatal(err)
	}
	return n
}

// start starts the daemon with its defaults, and further arguments.
func (n *node) start(name string, args ...string) *e2etest.Daemon {
	n.t.Helper()
	return e2etest.StartDefault(n.t, n.Namespace, slices.Concat(e2etest.Objects(n.t, n.Namespace, []byte(nodeObjects)),
		[]string{"--hostname-override", name, "--node-ip", "10.244.0.1"}, args)...)
}

// connect requests the Service.
func (n *node) connect() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), e2etest.Timeout)
	defer cancel()
	c, err := n.Dial(ctx, "tcp", e2etest.AnyPort, netip.MustParseAddrPort("10.96.0.1:80"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.Close()
	if text, err := io.ReadAll(c); err != nil || string(text) != "the endpoint" {
		n.t.Fatalf("the service answers %q, %v", text, err)
	}
}

// forward returns an address in the test's namespace, where the browser is, whose connections go on to
// one of the node. A device between the two would be a change of the network, on which the browser
// aborts the requests of all tests.
func (n *node) forward(to netip.AddrPort) string {
	n.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close()
				far, err := n.Dial(n.t.Context(), "tcp", e2etest.AnyPort, to)
				if err != nil {
					return
				}
				defer far.Close()
				go func() {
					defer near.Close()
					defer far.Close()
					_, _ = io.Copy(far, near)
				}()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
	return l.Addr().String()
}

// decidedBy returns the nodes in the output of nfqproxy flows, with its defaults.
func (n *node) decidedBy() string {
	n.t.Helper()
	code, stdout, stderr := e2etest.Run(n.t, n.Namespace, "flows", "--service", "web", "--no-headers", "-o", "custom-columns=NODE:.node")
	if code != 0 {
		return stderr
	}
	return stdout
}

// TestSocketOfANode: by default the flow API is a Unix socket for the daemon's user and group, which the
// commands find, and no port is open. It is not taken from a live daemon, but from a dead one,
// and removed at the end.
func TestSocketOfANode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	first := n.start("node-a")
	info, err := os.Stat(flowapi.DefaultSocket)
	if err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	dir, err := os.Stat(filepath.Dir(flowapi.DefaultSocket))
	if err != nil || dir.Mode() != fs.ModeDir|0o755 {
		t.Errorf("its directory: %v, %v", dir, err)
	}
	n.connect()
	e2etest.Eventually(t, e2etest.Timeout, "the flow", func() bool { return n.decidedBy() == "node-a\n" })
	if c, err := n.Dial(t.Context(), "tcp", e2etest.AnyPort, netip.MustParseAddrPort("127.0.0.1:10253")); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			c.Close()
		}
		t.Errorf("port 10253: %v, want it closed", err)
	}

	other := newNode(t)
	second := other.start("node-b")
	other.connect()
	e2etest.Eventually(t, e2etest.Timeout, "a message", func() bool {
		return strings.Contains(second.Log(), "cannot serve the flow API") && strings.Contains(second.Log(), "address already in use by another process")
	})
	if got := n.decidedBy(); got != "node-a\n" {
		t.Errorf("beside another daemon: %s", got)
	}
	first.Stop(syscall.SIGKILL)
	e2etest.Eventually(t, e2etest.Timeout, "the other daemon at the socket", func() bool { return n.decidedBy() == "node-b\n" })
	second.Stop(syscall.SIGTERM)
	if _, err := os.Lstat(flowapi.DefaultSocket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if got := n.decidedBy(); !strings.Contains(got, "http://127.0.0.1:10253: connection refused, no flow API") {
		t.Errorf("without a daemon: %s", got)
	}
}

// certificate writes a certificate that signs itself, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pair := s.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return e2etest.WriteFile(t, "cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		e2etest.WriteFile(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// TestPageOffLoopback: the page of a node, from another machine, requests the token once and then
// shows flows as they happen; an address with the token in it needs no form; a wrong token has
// one message. The page may start before the daemon.
func TestPageOffLoopback(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const address = "10.244.0.1:10254"
	const token, wrong = "0123456789abcdef", "fedcba9876543210"
	cert, key := certificate(t)
	socket := filepath.Join(t.TempDir(), "api")
	export := e2etest.StartDaemon(t, n.Namespace, e2etest.Command("export", "--server", "unix:"+socket, "--page", address, "--page-tls-cert", cert, "--page-tls-key", key))
	e2etest.Eventually(t, e2etest.Timeout, "a message that no daemon answers", func() bool { return strings.Contains(export.Log(), "the daemon does not answer") })
	n.start("node-a", "--flow-api", socket, "--flow-api-token-file", e2etest.WriteFile(t, "token", []byte(token+"\n")))
	e2etest.Eventually(t, e2etest.Timeout, "the page", func() bool {
		c, err := n.Dial(t.Context(), "tcp", e2etest.AnyPort, netip.MustParseAddrPort(address))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	url := "https://" + n.forward(netip.MustParseAddrPort(address)) + "/"

	// Without the token nothing can be read.
	client := &http.Client{Timeout: e2etest.Timeout, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for path, want := range map[string]int{"": 200, "v1/flows": 401, "v1/flows?follow": 401, "v1/topology": 401} {
		r, err := client.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s%s without a token: %d, want %d", url, path, r.StatusCode, want)
		}
	}

	const form = "document.querySelector('#sign-in[open]')"
	const problems = "[...document.querySelectorAll('.problem:not([hidden])')].map(x => x.textContent)"
	const rows = "document.querySelectorAll('#rows tr').length"
	visit := func(fragment string) *webtest.Page {
		p := webtest.OpenUntrusted(t, "about:blank")
		p.ExpectRefusals(100) // the browser writes each 401 to its console
		p.Run(chromedp.Navigate(url + fragment))
		return p
	}
	signIn := func(p *webtest.Page, token string) {
		p.Enter("#field-sign-in-token", token)
		p.Press(kb.Enter)
	}

	p := visit("#/flows")
	p.WaitFor("the form", form+" !== null")
	if shown := webtest.Value[[]string](p, problems); len(shown) > 0 {
		t.Errorf("before a token was given: %q", shown)
	}
	signIn(p, wrong)
	p.WaitFor("the message", problems+".length > 0")
	if shown := webtest.Value[[]string](p, problems); len(shown) != 1 || !strings.HasPrefix(shown[0], "wrong token: ") {
		t.Errorf("after a wrong token: %q, want one message", shown)
	}
	signIn(p, token)
	p.WaitFor("the form has gone", form+" === null")
	p.WaitFor("the node's name", "document.getElementById('place').textContent === 'node-a'")
	for i := range 2 { // as they happen: the page is not loaded again
		n.connect()
		p.WaitFor("the flow", fmt.Sprintf("%s === %d && document.querySelector('#rows tr').textContent.includes('default/web')", rows, i+1))
		p.WaitFor("its end", "[...document.querySelectorAll('#rows tr')].every(x => x.textContent.includes('closed'))")
	}

	p = visit("#token=" + token)
	p.WaitFor("the overview", "document.querySelectorAll('.node-list > li').length === 1")
	if where := webtest.Value[string](p, "location.href"); where != url+"#/overview" {
		t.Errorf("the address is %s, want it without the token", where)
	}
	p.GoTo("#/flows")
	p.WaitFor("the flows so far", rows+" === 2")
	n.connect()
	p.WaitFor("one more", rows+" === 3")
	if webtest.Value[bool](p, form+" !== null") {
		t.Error("the token is requested again")
	}

	p = visit("#token=" + wrong)
	p.WaitFor("the form", form+" !== null")
	if shown := webtest.Value[[]string](p, problems); len(shown) != 1 || !strings.HasPrefix(shown[0], "wrong token: ") {
		t.Errorf("with a wrong token in the address: %q, want one message", shown)
	}
	if n := webtest.Value[int](p, rows); n != 0 {
		t.Errorf("%d flows are shown with a wrong token", n)
	}
}
