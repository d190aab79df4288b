package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	ct "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestDatagramsAtOnceGetOneEndpoint: resolvers send the A and the AAAA query from
// one socket without waiting. Both are queued; both must go to one endpoint.
func TestDatagramsAtOnceGetOneEndpoint(t *testing.T) {
	inEachScope(t, testDatagramsAtOnceGetOneEndpoint)
}

func testDatagramsAtOnceGetOneEndpoint(t *testing.T, c *cluster) {
	pods := make(map[string]int)
	for i := range 100 {
		conn := c.dial("shell", "udp", anyPort, "10.96.0.20:53")
		for range 2 {
			if _, err := conn.Write([]byte("query\n")); err != nil {
				t.Fatal(err)
			}
		}
		first, err1 := readAnswer(conn)
		second, err2 := readAnswer(conn)
		if err1 != nil || err2 != nil {
			t.Fatalf("burst %d: %v, %v", i, err1, err2)
		}
		if first.Pod != second.Pod {
			t.Errorf("burst %d was answered by %s and %s", i, first.Pod, second.Pod)
		}
		pods[first.Pod]++
	}
	if len(pods) != 3 {
		t.Errorf("bursts went to %v, want all three pods", pods)
	}
}

// sink opens a UDP socket in a pod that reads and never answers.
func (c *cluster) sink(pod, at string) net.PacketConn {
	c.t.Helper()
	conn, err := c.host(pod).ListenPacket(c.t.Context(), netip.MustParseAddrPort(at))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// TestOneWayUDPIsQueuedOnce: log shippers and the like never get an answer. Still
// only their first datagram goes to user space.
func TestOneWayUDPIsQueuedOnce(t *testing.T) { inEachScope(t, testOneWayUDPIsQueuedOnce) }

func testOneWayUDPIsQueuedOnce(t *testing.T, c *cluster) {
	// The solo pod's echo port, taken over by a service port that leads to a sink.
	c.edit(func(s string) string {
		return strings.ReplaceAll(s, "port: 5353, protocol: UDP}\n- {name: sctp", "port: 5454, protocol: UDP}\n- {name: sctp")
	})
	families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.t = t
		for _, from := range []string{"shell", "node-b"} { // forwarded, and made on a node
			sink := c.sink("solo", at("10.244.0.4", "fd00:10:244::4", 5454))
			conn := c.dial(from, "udp", anyPort, at("10.96.0.30", "fd00:10:96::30", 53))
			b := make([]byte, 100)
			for i := range 50 {
				if _, err := fmt.Fprintf(conn, "line %d", i); err != nil {
					t.Fatal(err)
				}
				// Each arrives before the next is sent: only so is it certain that
				// the first has been decided.
				n, _, err := sink.ReadFrom(b)
				if want := fmt.Sprintf("line %d", i); err != nil || string(b[:n]) != want {
					t.Fatalf("%s: received %q, error %v; want %q", from, b[:n], err, want)
				}
			}
			c.record("dnat", "UDP", conn.LocalAddr(), conn.RemoteAddr())
			c.sync(from)
			if n := c.count(func(r *flow.Record) bool {
				return r.Source == conn.LocalAddr().String() && r.Destination == conn.RemoteAddr().String()
			}); n != 1 {
				t.Errorf("%s: %d of 50 datagrams were queued, want 1", from, n)
			}
			_ = sink.Close()
		}
	})
}

// flush empties the connection table of a node: conntrack -F.
func (c *cluster) flush(node string) {
	c.t.Helper()
	if err := c.host(node).Do(func() error {
		conn, err := ct.Dial(nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		return conn.Flush()
	}); err != nil {
		c.t.Fatal(err)
	}
}

// TestFlushedUDPGoesOn: after conntrack -F an exchange loses at most one datagram.
func TestFlushedUDPGoesOn(t *testing.T) { inEachScope(t, testFlushedUDPGoesOn) }

func testFlushedUDPGoesOn(t *testing.T, c *cluster) {
	families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.t = t
		for from, to := range map[string]string{
			"shell":   at("10.96.0.20", "fd00:10:96::20", 53),
			"node-a":  at("10.96.0.20", "fd00:10:96::20", 53),
			"outside": at("172.21.0.2", "fd00:172:21::2", 30080),
		} {
			conn := c.dial(from, "udp", anyPort, to)
			for range 5 {
				c.ask(conn)
			}
			for round := range 3 {
				c.flush("node-a")
				// One datagram may be lost; the next one has to be answered. The lost
				// one is not waited for: both are sent, one answer must come. A sender on
				// the node itself is told of the loss (EPERM), as by any rule that drops.
				if _, err := conn.Write([]byte("still there?\n")); err != nil && !errors.Is(err, syscall.EPERM) {
					t.Fatal(err)
				}
				if _, err := conn.Write([]byte("still there?\n")); err != nil {
					t.Fatal(err)
				}
				if _, err := readAnswer(conn); err != nil {
					t.Fatalf("%s, flush %d: %v", from, round, err)
				}
				// Whatever else comes is the answer to the first.
				if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				_, _ = readAnswer(conn)
				if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				c.ask(conn)
			}
		}
	})
}
