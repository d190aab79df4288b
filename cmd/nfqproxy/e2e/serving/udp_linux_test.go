package serving

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	ct "github.com/ti-mo/conntrack"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestDatagramsAtOnceGetOneEndpoint: resolvers send the A and the AAAA query from
// one socket without waiting. Both are queued; both must go to one endpoint.
func TestDatagramsAtOnceGetOneEndpoint(t *testing.T) {
	e2etest.InEachScope(t, testDatagramsAtOnceGetOneEndpoint)
}

func testDatagramsAtOnceGetOneEndpoint(t *testing.T, c *e2etest.Cluster) {
	pods := make(map[string]int)
	for i := range 100 {
		conn := c.Dial("shell", "udp", e2etest.AnyPort, "10.96.0.20:53")
		for range 2 {
			if _, err := conn.Write([]byte("query\n")); err != nil {
				t.Fatal(err)
			}
		}
		first, err1 := e2etest.ReadAnswer(conn)
		second, err2 := e2etest.ReadAnswer(conn)
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

// TestOneWayUDPIsQueuedOnce: log shippers and the like never get an answer. Still
// only their first datagram goes to user space.
func TestOneWayUDPIsQueuedOnce(t *testing.T) { e2etest.InEachScope(t, testOneWayUDPIsQueuedOnce) }

func testOneWayUDPIsQueuedOnce(t *testing.T, c *e2etest.Cluster) {
	// The solo pod's echo port, taken over by a service port that leads to a sink.
	c.Edit(func(s string) string {
		return strings.ReplaceAll(s, "port: 5353, protocol: UDP}\n- {name: sctp", "port: 5454, protocol: UDP}\n- {name: sctp")
	})
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		for _, from := range []string{"shell", "node-b"} { // forwarded, and made on a node
			sink := c.Sink("solo", at("10.244.0.4", "fd00:10:244::4", 5454))
			conn := c.Dial(from, "udp", e2etest.AnyPort, at("10.96.0.30", "fd00:10:96::30", 53))
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
			c.Record("dnat", "UDP", conn.LocalAddr(), conn.RemoteAddr())
			c.Sync(from)
			if n := c.Count(func(r *flow.Record) bool {
				return r.Source == conn.LocalAddr().String() && r.Destination == conn.RemoteAddr().String()
			}); n != 1 {
				t.Errorf("%s: %d of 50 datagrams were queued, want 1", from, n)
			}
			_ = sink.Close()
		}
	})
}

// flush empties the connection table of a node: conntrack -F.
func flush(c *e2etest.Cluster, node string) {
	c.T.Helper()
	c.Must(c.Host(node).Do(func() error {
		conn, err := ct.Dial(nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		return conn.Flush()
	}))
}

// TestFlushedUDPGoesOn: after conntrack -F an exchange loses at most one datagram.
func TestFlushedUDPGoesOn(t *testing.T) { e2etest.InEachScope(t, testFlushedUDPGoesOn) }

func testFlushedUDPGoesOn(t *testing.T, c *e2etest.Cluster) {
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		c.Use(t)
		for from, to := range map[string]string{
			"shell":   at("10.96.0.20", "fd00:10:96::20", 53),
			"node-a":  at("10.96.0.20", "fd00:10:96::20", 53),
			"outside": at("172.21.0.2", "fd00:172:21::2", 30080),
		} {
			conn := c.Dial(from, "udp", e2etest.AnyPort, to)
			for range 5 {
				c.Ask(conn)
			}
			for round := range 3 {
				flush(c, "node-a")
				// One datagram may be lost; the next one has to be answered. The lost
				// one is not waited for: both are sent, one answer must come. A sender on
				// the node itself is told of the loss (EPERM), as by any rule that drops.
				if _, err := conn.Write([]byte("still there?\n")); err != nil && !errors.Is(err, syscall.EPERM) {
					t.Fatal(err)
				}
				if _, err := conn.Write([]byte("still there?\n")); err != nil {
					t.Fatal(err)
				}
				if _, err := e2etest.ReadAnswer(conn); err != nil {
					t.Fatalf("%s, flush %d: %v", from, round, err)
				}
				// Whatever else comes is the answer to the first.
				if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				_, _ = e2etest.ReadAnswer(conn)
				if err := conn.SetDeadline(time.Now().Add(e2etest.Timeout)); err != nil {
					t.Fatal(err)
				}
				c.Ask(conn)
			}
		}
	})
}
