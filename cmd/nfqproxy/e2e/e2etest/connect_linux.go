package e2etest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/deploy/lab"
)

// AnyPort leaves a socket's own address to the kernel.
var AnyPort netip.AddrPort

// Timeout is how long a test waits for an event that should come at once. Only a failing
// test waits that long.
const Timeout = 3 * time.Minute

// Eventually polls until the condition holds.
func Eventually(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain for %s", within, what)
		}
	}
}

// Host returns the namespace of a host of the lab.
func (c *Cluster) Host(name string) *netns.Namespace {
	c.T.Helper()
	ns, err := c.Namespace(name)
	if err != nil {
		c.T.Fatal(err)
	}
	return ns
}

// TryDial connects from a host, by TCP or UDP. The connection is closed at the end of the test at the
// latest, and its deadline is [Timeout].
func (c *Cluster) TryDial(host, network string, from netip.AddrPort, to string) (net.Conn, error) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), Timeout)
	defer cancel()
	conn, err := c.Host(host).Dial(ctx, network, from, netip.MustParseAddrPort(to))
	if err == nil {
		c.T.Cleanup(func() { _ = conn.Close() })
		err = conn.SetDeadline(time.Now().Add(Timeout))
	}
	return conn, err
}

// Dial is TryDial for connections that must succeed.
func (c *Cluster) Dial(host, network string, from netip.AddrPort, to string) net.Conn {
	c.T.Helper()
	conn, err := c.TryDial(host, network, from, to)
	if err != nil {
		c.T.Fatalf("%s from %s to %s: %v", network, host, to, err)
	}
	return conn
}

// Ask sends a line or datagram to a server of the lab and reads its answer.
func Ask(conn net.Conn) (lab.Answer, error) {
	var a lab.Answer
	if _, err := conn.Write([]byte("who are you?\n")); err != nil {
		return a, err
	}
	return ReadAnswer(conn)
}

// ReadAnswer reads the answer of a server of the lab.
func ReadAnswer(conn net.Conn) (lab.Answer, error) {
	var a lab.Answer
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

// Ask is [Ask] for servers that must answer.
func (c *Cluster) Ask(conn net.Conn) lab.Answer {
	c.T.Helper()
	a, err := Ask(conn)
	if err != nil {
		c.T.Fatalf("%s > %s: %v", conn.LocalAddr(), conn.RemoteAddr(), err)
	}
	return a
}

// HostOf returns the address of an "address:port".
func HostOf(addrPort string) string { return netip.MustParseAddrPort(addrPort).Addr().String() }

// Families runs a test for IPv4 and IPv6. f gets an address of the cluster in the
// form of either family: at("10.96.0.20", "fd00:10:96::20", 80).
func Families(t *testing.T, f func(t *testing.T, at func(v4, v6 string, port int) string)) {
	for i, name := range []string{"IPv4", "IPv6"} {
		t.Run(name, func(t *testing.T) {
			f(t, func(v4, v6 string, port int) string {
				a := netip.MustParseAddr([]string{v4, v6}[i])
				if port == 0 {
					return a.String()
				}
				return netip.AddrPortFrom(a, uint16(port)).String()
			})
		})
	}
}

// Tables lists the nftables tables of the calling thread's network namespace.
func Tables() ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	var names []string
	for _, t := range tables {
		names = append(names, t.Name)
	}
	return names, err
}

// AddressOf returns the address of a host of the lab in one family.
func (c *Cluster) AddressOf(host string, f decision.Family) netip.Addr {
	c.T.Helper()
	s := c.Spec()
	var addresses []netip.Addr
	for _, n := range s.Nodes {
		if n.Name == host {
			addresses = n.Addresses
		}
	}
	for _, p := range s.Pods {
		if p.Name == host {
			addresses = p.Addresses
		}
	}
	for _, o := range s.Clients {
		if o.Name == host {
			addresses = o.Addresses
		}
	}
	for _, a := range addresses {
		if decision.FamilyOf(a) == f {
			return a
		}
	}
	c.T.Fatalf("%s has no %s address", host, f)
	return netip.Addr{}
}

// Sink opens a UDP socket in a pod, for a test that reads and never answers.
func (c *Cluster) Sink(pod, at string) net.PacketConn {
	c.T.Helper()
	var conn net.PacketConn
	Eventually(c.T, Timeout, "a socket at "+at, func() bool {
		var err error
		conn, err = c.Host(pod).ListenPacket(c.T.Context(), netip.MustParseAddrPort(at))
		// A process that another goroutine starts has a closed socket open until it executes its program.
		if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			c.T.Fatal(err)
		}
		return err == nil
	})
	c.T.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(Timeout)); err != nil {
		c.T.Fatal(err)
	}
	return conn
}

// HTTPClient returns a client in a network namespace, with [Timeout].
func HTTPClient(ns *netns.Namespace) *http.Client {
	return &http.Client{Timeout: Timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return ns.Dial(ctx, network, AnyPort, netip.MustParseAddrPort(address))
		},
	}}
}

// Ports of the daemon on each node.
const (
	HealthPort  = 10256
	MetricsPort = 10249
)

// TryGet gets a page of the daemon of a node, from the node itself.
func (c *Cluster) TryGet(node string, port int, path string) (code int, body string, err error) {
	code, _, body, err = c.Fetch(node, fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	return code, body, err
}

// Get is TryGet for pages that must be there.
func (c *Cluster) Get(node string, port int, path string) (code int, body string) {
	c.T.Helper()
	code, body, err := c.TryGet(node, port, path)
	c.Must(err)
	return code, body
}

// Fetch gets a page from a host of the lab.
func (c *Cluster) Fetch(host, url string) (code int, header http.Header, body string, err error) {
	c.T.Helper()
	response, err := HTTPClient(c.Host(host)).Get(url)
	if err != nil {
		return 0, nil, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header, string(text), err
}

// Metric returns one sample of a daemon's metrics.
func (c *Cluster) Metric(node, name string) float64 {
	c.T.Helper()
	code, body := c.Get(node, MetricsPort, "/metrics")
	for s := bufio.NewScanner(strings.NewReader(body)); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			c.Must(err)
			return v
		}
	}
	c.T.Fatalf("%s: status %d, no metric %s", node, code, name)
	return 0
}
