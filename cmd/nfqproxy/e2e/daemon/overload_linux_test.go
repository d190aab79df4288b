package daemon

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	ct "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/datapath/live/nfqueue"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// signal sends a signal to a node's daemon.
func signalDaemon(c *e2etest.Cluster, node string, s syscall.Signal) {
	c.T.Helper()
	for _, n := range c.Status().Nodes {
		if n.Name == node {
			if err := syscall.Kill(n.Daemon.PID, s); err != nil {
				c.T.Fatalf("%s of the daemon on %s: %v", s, node, err)
			}
			if s == syscall.SIGSTOP { // a system call in progress may still turn the switch on
				e2etest.Eventually(c.T, e2etest.Timeout, "all threads stop", func() bool { return isStopped(n.Daemon.PID) })
			}
		}
	}
}

// isStopped reports whether all threads of a process are stopped.
func isStopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, file := range threads {
		stat, readErr := os.ReadFile(file)
		_, state, _ := strings.Cut(string(stat), ") ")
		if err = cmp.Or(err, readErr); err != nil || !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return err == nil && len(threads) > 0
}

// waiting is how many packets wait in a node's queues.
func waiting(c *e2etest.Cluster, node string) (n int) {
	c.T.Helper()
	c.Must(c.Host(node).Do(func() error {
		for number := uint16(100); number < 104; number++ {
			counters, err := nfqueue.ReadCounters(number)
			if err != nil {
				return err
			}
			n += int(counters.Waiting)
		}
		return nil
	}))
	return n
}

// TestOverload: a daemon that decides nothing, with more flows than its queues hold, stands
// for one that is too slow. What is for no service passes, what is established goes on, and
// when the daemon is back all that waits is decided.
func TestOverload(t *testing.T) {
	t.Parallel()
	c := e2etest.NewClusterWith(t, []string{"--queues", "2"})
	open := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	signalDaemon(c, "node-a", syscall.SIGSTOP)
	t.Cleanup(func() { signalDaemon(c, "node-a", syscall.SIGCONT) })

	// One socket, a new flow with each datagram.
	flood, err := c.Host("shell").ListenPacket(t.Context(), netip.MustParseAddrPort("10.244.0.9:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	send := func(to string, ports int) {
		for port := 1; port <= ports; port++ {
			if _, err := flood.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), uint16(port)))); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatal(err)
			}
		}
	}
	passes := func() bool {
		conn, err := c.TryDial("shell", "udp", e2etest.AnyPort, "10.244.1.2:5353")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, err = e2etest.Ask(conn)
		return err == nil
	}
	const length = 1024
	for sent := 0; waiting(c, "node-a") < length || !passes(); sent += length {
		if sent > 50*length {
			t.Fatalf("%d datagrams were sent and %d wait, but nothing passes", sent, waiting(c, "node-a"))
		}
		send("10.244.1.2", length)
	}
	if n := waiting(c, "node-a"); n > 2*length {
		t.Errorf("%d packets wait in two queues of %d", n, length)
	}
	c.Ask(open)

	// To services nothing passes undecided.
	type result struct {
		pod string
		err error
	}
	connected := make(chan result, 1)
	go func() {
		conn, err := c.TryDial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
		if err != nil {
			connected <- result{err: err}
			return
		}
		a, err := e2etest.Ask(conn)
		connected <- result{a.Pod, err}
	}()
	send("10.96.0.20", 100)

	signalDaemon(c, "node-a", syscall.SIGCONT)
	if r := <-connected; r.err != nil || !strings.HasPrefix(r.pod, "default/web-") {
		t.Errorf("the connection that was opened meanwhile was answered by %q, %v", r.pod, r.err)
	}
	e2etest.Eventually(t, e2etest.Timeout, "the queues to run dry", func() bool { return waiting(c, "node-a") == 0 })
	e2etest.Eventually(t, e2etest.Timeout, "the packets that found no room to be counted", func() bool { return c.Metric("node-a", "nfqproxy_undecided_packets_total") > 0 })
	if a := c.Ask(c.Dial("shell", "udp", e2etest.AnyPort, "10.96.0.20:53")); !strings.HasPrefix(a.Pod, "default/web-") {
		t.Errorf("afterwards answered by %q", a.Pod)
	}
}

// Attributes of connection tracking (enum ctattr_type and below,
// linux/netfilter/nfnetlink_conntrack.h).
const (
	ctaTupleOrig, ctaTupleReply, ctaStatus = 1, 2, 3
	ctaTimeout, ctaMark                    = 7, 8
	ctaTupleIP, ctaTupleProto              = 1, 2
	ctaIPv4Src, ctaIPv4Dst                 = 1, 2
	ctaProtoNum, ctaSrcPort, ctaDstPort    = 1, 2, 3
)

// fillerMark is the mark of the entries that fill a connection table.
const fillerMark = 0x7e57

// filler makes the n-th of entries that the kernel does not drop early for others.
func filler(n int) (netlink.Message, error) {
	client := binary.BigEndian.AppendUint16([]byte{192, 0, 2, byte(n >> 16)}, uint16(n))
	server := []byte{198, 51, 100, 1, 0, 9}
	attrs := netlink.NewAttributeEncoder()
	attrs.ByteOrder = binary.BigEndian
	tuple := func(kind uint16, from, to []byte) {
		attrs.Nested(kind, func(t *netlink.AttributeEncoder) error {
			t.Nested(ctaTupleIP, func(ip *netlink.AttributeEncoder) error {
				ip.Bytes(ctaIPv4Src, from[:4])
				ip.Bytes(ctaIPv4Dst, to[:4])
				return nil
			})
			t.Nested(ctaTupleProto, func(p *netlink.AttributeEncoder) error {
				p.Uint8(ctaProtoNum, unix.IPPROTO_UDP)
				p.Bytes(ctaSrcPort, from[4:])
				p.Bytes(ctaDstPort, to[4:])
				return nil
			})
			return nil
		})
	}
	tuple(ctaTupleOrig, client, server)
	tuple(ctaTupleReply, server, client)
	attrs.Uint32(ctaStatus, uint32(ct.StatusConfirmed|ct.StatusAssured))
	attrs.Uint32(ctaTimeout, 600)
	attrs.Uint32(ctaMark, fillerMark)
	data, err := attrs.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK << 8, Flags: netlink.Request | netlink.Create | netlink.Excl},
		Data:   append([]byte{unix.AF_INET, 0, 0, 0}, data...), // struct nfgenmsg
	}, err
}

// fill fills a node's connection table, and gives a function that makes room again.
func fill(c *e2etest.Cluster, node string) (empty func()) {
	c.T.Helper()
	const most = 1 << 19
	limit, err := strconv.Atoi(strings.TrimSpace(e2etest.ReadFile(c.T, "/proc/sys/net/netfilter/nf_conntrack_max")))
	if err != nil {
		c.T.Fatal(err)
	}
	if limit == 0 || limit > most {
		netnstest.Missing(c.T, fmt.Sprintf("net.netfilter.nf_conntrack_max of at most %d, to fill the table: it is %d", most, limit))
	}
	c.Must(c.Host(node).Do(func() error {
		conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		var batch []netlink.Message
		for n := range limit + 1 { // some are there already, so the last ones are refused
			m, err := filler(n)
			if err != nil {
				return err
			}
			if batch = append(batch, m); len(batch) == 500 || n == limit {
				if _, err := conn.SendMessages(batch); err != nil {
					return err
				}
				batch = batch[:0]
			}
		}
		count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if n, _ := strconv.Atoi(strings.TrimSpace(string(count))); err == nil && n < limit {
			err = fmt.Errorf("%d entries, want %d", n, limit)
		}
		return err
	}))
	return func() {
		c.T.Helper()
		c.Must(c.Host(node).Do(func() error {
			conn, err := ct.Dial(nil)
			if err != nil {
				return err
			}
			defer conn.Close()
			return conn.FlushFilter(ct.NewFilter().Mark(fillerMark).MarkMask(^uint32(0)))
		}))
	}
}

// TestConnectionTableFull: new flows wait for a free entry, established ones go on, the
// log reports it, and it works again once entries are free. It is not parallel to other tests: it makes
// as many entries as the machine allows.
func TestConnectionTableFull(t *testing.T) {
	c := e2etest.NewCluster(t)
	open := c.Dial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
	empty := fill(c, "node-a")
	if err := open.SetDeadline(time.Now().Add(e2etest.Timeout)); err != nil {
		t.Fatal(err)
	}

	connected := make(chan error, 1)
	go func() {
		conn, err := c.TryDial("shell", "tcp", e2etest.AnyPort, "10.96.0.20:80")
		if err == nil {
			_, err = e2etest.Ask(conn)
		}
		connected <- err
	}()
	c.Logged("The connection table is full")
	c.Ask(open)
	if len(connected) > 0 {
		t.Errorf("a connection got through without an entry (error %v)", <-connected)
	}

	empty()
	if err := <-connected; err != nil {
		t.Errorf("the connection that waited for room: %v", err)
	}
	if n := c.Metric("node-a", `nfqproxy_conntrack_failures_total{reason="table_full"}`); n < 1 {
		t.Errorf("%v entries were refused by the metrics", n)
	}
	c.Ask(c.Dial("shell", "udp", e2etest.AnyPort, "10.96.0.20:53"))
}
