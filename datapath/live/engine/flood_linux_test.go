package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/live/hostnet"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// forged is a raw socket of the client, which sends first packets from forged sources.
type forged struct {
	t    *testing.T
	fd   int
	port uint16 // their source port
}

func newForged(t *testing.T, n *allocationNode) *forged {
	t.Helper()
	f := &forged{t: t, port: 20000}
	must(t, n.client.Do(func() (err error) {
		f.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))
	t.Cleanup(func() { _ = unix.Close(f.fd) })
	return f
}

// source is the n-th of the forged sources, from 198.18.0.0/15 (RFC 2544).
func source(n int) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 198<<24|18<<16+uint32(n)%(1<<17))
	return netip.AddrFrom4(a)
}

// first sends a SYN or a UDP datagram.
func (f *forged) first(protocol uint8, from netip.Addr, to netip.AddrPort) {
	f.t.Helper()
	if protocol == unix.IPPROTO_TCP {
		f.send(from, to, &layers.TCP{SrcPort: layers.TCPPort(f.port), DstPort: layers.TCPPort(to.Port()), SYN: true, Window: 1024}, layers.IPProtocolTCP)
	} else {
		f.send(from, to, &layers.UDP{SrcPort: layers.UDPPort(f.port), DstPort: layers.UDPPort(to.Port())}, layers.IPProtocolUDP)
	}
}

// checksummed is a transport header.
type checksummed interface {
	gopacket.SerializableLayer
	SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
}

func (f *forged) send(from netip.Addr, to netip.AddrPort, transport checksummed, protocol layers.IPProtocol) {
	f.t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: from.AsSlice(), DstIP: to.Addr().AsSlice()}
	if err := transport.SetNetworkLayerForChecksum(ip); err != nil {
		f.t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, transport); err != nil {
		f.t.Fatal(err)
	}
	if err := unix.Sendto(f.fd, b.Bytes(), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil && !errors.Is(err, unix.ENOBUFS) {
		f.t.Fatal(err)
	}
}

// await waits for a condition.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// connect opens a connection by way of a service.
func (n *allocationNode) connect(t *testing.T, to string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := n.client.Dial(ctx, "tcp", netip.AddrPort{}, netip.MustParseAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// entries counts the entries of the node's connection table, and limit is how many there may be.
func (n *allocationNode) entries(t *testing.T) int { return n.conntrackFile(t, "nf_conntrack_count") }

func (n *allocationNode) limit(t *testing.T) int {
	const most = 1 << 19
	limit := n.conntrackFile(t, "nf_conntrack_max")
	if limit == 0 || limit > most {
		netnstest.Missing(t, fmt.Sprintf("net.netfilter.nf_conntrack_max of at most %d, to fill the table: it is %d", most, limit))
	}
	return limit
}

func (n *allocationNode) conntrackFile(t *testing.T, name string) (v int) {
	t.Helper()
	must(t, n.node.Do(func() error {
		b, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
		if err == nil {
			v, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		return err
	}))
	return v
}

// fill fills the connection table with unanswered entries of our own, as an earlier
// run may have left them. They live longer than the test.
func (n *allocationNode) fill(t *testing.T) {
	t.Helper()
	limit := n.limit(t)
	must(t, n.node.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		one, err := filler()
		if err != nil {
			return err
		}
		const batch = 256
		all := bytes.Repeat(one, batch)
		for i := range limit {
			m := all[i%batch*len(one):][:len(one)]
			from := source(i).As4()
			port := binary.BigEndian.AppendUint16(nil, uint16(20000+i>>17))
			for _, field := range []struct{ pattern, value []byte }{{fillerAddr, from[:]}, {fillerPort, port}} {
				for at, rest := 0, one; ; {
					k := bytes.Index(rest, field.pattern)
					if k < 0 {
						break
					}
					copy(m[at+k:], field.value)
					at, rest = at+k+len(field.pattern), rest[k+len(field.pattern):]
				}
			}
			if i%batch == batch-1 || i == limit-1 {
				if err := unix.Sendto(fd, all[:(i%batch+1)*len(one)], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
					return err
				}
			}
		}
		return nil
	}))
	// When an entry was refused, the kernel begins to drop some by itself (gc_worker).
	if got := n.entries(t); got < limit*9/10 {
		t.Fatalf("%d entries in a table of %d", got, limit)
	}
}

// What stands in a filler for the source.
var fillerAddr, fillerPort = []byte{0xaa, 0xab, 0xac, 0xad}, []byte{0xae, 0xaf}

// filler is a request for an entry (enum ctattr_type and below, nfnetlink_conntrack.h).
func filler() ([]byte, error) {
	attrs := netlink.NewAttributeEncoder()
	attrs.ByteOrder = binary.BigEndian
	tuple := func(kind uint16, fromAddr, toAddr, fromPort, toPort []byte) {
		attrs.Nested(kind, func(t *netlink.AttributeEncoder) error {
			t.Nested(1, func(ip *netlink.AttributeEncoder) error { // CTA_TUPLE_IP
				ip.Bytes(1, fromAddr) // CTA_IP_V4_SRC
				ip.Bytes(2, toAddr)   // CTA_IP_V4_DST
				return nil
			})
			t.Nested(2, func(p *netlink.AttributeEncoder) error { // CTA_TUPLE_PROTO
				p.Uint8(1, unix.IPPROTO_TCP) // CTA_PROTO_NUM
				p.Bytes(2, fromPort)         // CTA_PROTO_SRC_PORT
				p.Bytes(3, toPort)           // CTA_PROTO_DST_PORT
				return nil
			})
			return nil
		})
	}
	to, port := []byte{10, 96, 0, 2}, []byte{0, 80}
	tuple(1, fillerAddr, to, fillerPort, port) // CTA_TUPLE_ORIG
	tuple(2, to, fillerAddr, port, fillerPort) // CTA_TUPLE_REPLY
	attrs.Uint32(7, 600)                       // CTA_TIMEOUT
	attrs.Uint32(8, conntrack.DefaultMark)     // CTA_MARK
	data, err := attrs.Encode()
	if err != nil {
		return nil, err
	}
	return netlink.Message{
		Header: netlink.Header{
			Length: uint32(unix.NLMSG_HDRLEN + 4 + len(data)), Type: unix.NFNL_SUBSYS_CTNETLINK << 8,
			Flags: netlink.Request | netlink.Create | netlink.Excl,
		},
		Data: append([]byte{unix.AF_INET, 0, 0, 0}, data...), // struct nfgenmsg
	}.MarshalBinary()
}

// TestFullTableServes: packets from forged sources go on filling a full connection table,
// because they are dropped after their entries were written. Connections to services are made
// all the same: not one of their first packets is refused.
func TestFullTableServes(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	n, table := newWiredNode(t)
	_, err := n.node.Run("table ip guard { chain forged { type filter hook prerouting priority mangle; ip saddr 198.18.0.0/15 drop; }; }", "nft", "-f", "-")
	must(t, err)
	n.fill(t)
	n.open(t, table)
	n.engine.remembered.Wait()
	f := newForged(t, n)
	const connections, each = 20, 50
	for i := range connections {
		before := n.received()
		for k := range each {
			f.first([]uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}[k%2], source(i*each+k), netip.MustParseAddrPort("10.96.0.1:80"))
		}
		n.connect(t, "10.96.0.1:80")
		await(t, "the packets to be decided", func() bool { return n.received() > before+each/2 })
	}
	s := n.engine.Stats()
	if s.Failed > 0 {
		t.Errorf("%d entries were refused of %d", s.Failed, s.Failed+s.Created)
	}
	if s.EvictedCrowded < connections*each/2 {
		t.Errorf("%d entries were removed for %d new ones", s.EvictedCrowded, s.Created)
	}
	if got, limit := n.entries(t), n.limit(t); got > limit {
		t.Errorf("%d entries in a table of %d", got, limit)
	}
}

// TestTableFilledByOthersServes: flows that are not the daemon's fill the connection table while
// it runs. It makes room of them, as the kernel does for the entries of packets.
func TestTableFilledByOthersServes(t *testing.T) {
	n, table := newWiredNode(t)
	n.open(t, table)
	n.engine.remembered.Wait()
	n.fill(t)
	f := newForged(t, n)
	sent := 0
	await(t, "entries of others to be evicted", func() bool {
		f.first(unix.IPPROTO_TCP, source(sent), netip.MustParseAddrPort("10.96.0.1:80"))
		sent++
		return n.engine.Stats().EvictedCrowded > 100
	})
	before := n.engine.Stats()
	for range 50 {
		n.connect(t, "10.96.0.1:80")
	}
	after := n.engine.Stats()
	if after.Failed > before.Failed || after.Created < before.Created+50 {
		t.Errorf("%d entries were made and %d refused for 50 connections", after.Created-before.Created, after.Failed-before.Failed)
	}
}

// setRPFilter sets what the node does with packets from its client's interface, and waits
// until the rules have it. (There is no Run that would follow.)
func (n *allocationNode) setRPFilter(t *testing.T, value string) {
	t.Helper()
	rp := n.engine.reversePath
	if rp == nil {
		netnstest.Missing(t, "look-up of routes in rules")
	}
	must(t, n.node.SetSysctl("net.ipv4.conf.client.rp_filter", value))
	want := map[string]hostnet.ReversePath{"0": {}, "1": {Strict: []uint32{n.clientLink(t)}}, "2": {Loose: []uint32{n.clientLink(t)}}}[value]
	for !reflect.DeepEqual(n.engine.rpFilter, want) {
		select {
		case p := <-rp.Changes:
			must(t, n.engine.followReversePath(p))
		case <-time.After(3 * time.Minute):
			t.Fatalf("waited for %+v, have %+v", want, n.engine.rpFilter)
		}
	}
}

// clientLink is the index of the node's interface to the client.
func (n *allocationNode) clientLink(t *testing.T) (index uint32) {
	t.Helper()
	must(t, n.node.Do(func() error {
		i, err := net.InterfaceByName("client")
		if err == nil {
			index = uint32(i.Index)
		}
		return err
	}))
	return index
}

// forwarded counts the packets that the node has forwarded.
func (n *allocationNode) forwarded(t *testing.T) (packets int) {
	t.Helper()
	out, err := n.node.Run("", "nft", "list", "chain", "ip", "watch", "forward")
	must(t, err)
	_, count, ok := strings.Cut(out, "packets ")
	if _, err := fmt.Sscan(count, &packets); !ok || err != nil {
		t.Fatalf("no counter in %s: %v", out, err)
	}
	return packets
}

// TestReversePath: what rp_filter drops is not queued and leaves no entry; whatever the kernel
// forwards has been queued, so that nothing is left undecided that goes on.
func TestReversePath(t *testing.T) {
	netnstest.RequireTool(t, "nft")
	netnstest.RequireTool(t, "ip")
	n, table := newWiredNode(t)
	_, err := n.node.Run("table ip watch { chain forward { type filter hook forward priority 0; counter; }; }", "nft", "-f", "-")
	must(t, err, n.node.SetSysctl("net.ipv4.conf.all.rp_filter", "0"), n.node.SetSysctl("net.ipv4.conf.pods.rp_filter", "0"), n.node.SetSysctl("net.ipv4.conf.lo.rp_filter", "0"))
	run := func(ns *netns.Namespace, args ...string) {
		t.Helper()
		if out, err := ns.Run("", "ip", args...); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
	// Sources, and by which ways the node reaches them.
	run(n.node, "route", "add", "203.0.113.0/26", "via", "10.244.1.2")
	run(n.node, "route", "add", "203.0.113.64/26", "nexthop", "via", "10.244.1.2", "nexthop", "via", "10.244.0.2")
	run(n.node, "route", "add", "blackhole", "203.0.113.128/26")
	run(n.node, "route", "add", "unreachable", "203.0.113.192/26")
	n.open(t, table)
	f := newForged(t, n)
	const all, strict, none = "012", "02", "0" // with which values of rp_filter it is queued
	for _, source := range []struct{ address, queued string }{
		{"10.244.1.2", all},
		{"10.244.1.77", all},
		{"203.0.113.1", all},
		{"203.0.113.65", all}, // one of its ways leads back
		{"10.244.0.2", strict},
		{"10.244.66.1", strict},
		{"198.18.0.1", none},
		{"203.0.113.129", none},
		{"203.0.113.193", none},
		{"240.0.0.1", none},
		{"10.244.1.1", all}, // the node's own: accept_local may allow it
		{"127.0.0.1", ""},
		{"0.0.0.1", none},
		{"224.0.0.1", ""},
	} {
		from := netip.MustParseAddr(source.address)
		for _, value := range []string{"0", "1", "2", "1"} {
			n.setRPFilter(t, value)
			for _, to := range []string{"10.244.0.2:9", "10.96.0.2:80"} {
				for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
					received, forwarded := n.received(), n.forwarded(t)
					f.port++ // datagrams of known flows are never queued
					f.first(protocol, from, netip.MustParseAddrPort(to))
					// It is decided, if at all, before these, which are for a service without endpoints, and for
					// one that does not allow the source: in the queue of each kind.
					before := n.stats()
					f.first(unix.IPPROTO_TCP, netip.MustParseAddr("10.244.1.3"), netip.MustParseAddrPort("10.96.0.4:80"))
					f.first(unix.IPPROTO_TCP, netip.MustParseAddr("10.244.1.3"), netip.MustParseAddrPort("10.96.0.5:80"))
					await(t, "the packets behind", func() bool { s := n.stats(); return s.Rejected > before.Rejected && s.Dropped > before.Dropped })
					queued, passed := n.received()-received == 3, n.forwarded(t) > forwarded
					if want := strings.Contains(source.queued, value); queued != want {
						t.Errorf("rp_filter %s, %d from %s to %s: queued %v, want %v", value, protocol, from, to, queued, want)
					}
					if passed && !queued {
						t.Errorf("rp_filter %s, %d from %s to %s: the kernel forwards it undecided", value, protocol, from, to)
					}
				}
			}
		}
	}
}

// TestForgedFloodLeavesNoEntries: with rp_filter on, packets from forged sources fill nothing.
func TestForgedFloodLeavesNoEntries(t *testing.T) {
	n, table := newWiredNode(t)
	must(t, n.node.SetSysctl("net.ipv4.conf.all.rp_filter", "0"), n.node.SetSysctl("net.ipv4.conf.pods.rp_filter", "0"), n.node.SetSysctl("net.ipv4.conf.lo.rp_filter", "0"))
	n.open(t, table)
	n.setRPFilter(t, "1")
	f := newForged(t, n)
	before := n.received()
	for i := range 5000 {
		f.first([]uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}[i%2], source(i), netip.MustParseAddrPort("10.96.0.1:80"))
	}
	n.connect(t, "10.96.0.1:80")
	await(t, "the connection to be counted", func() bool { return n.received() > before })
	if got := n.received() - before; got > 5 { // a SYN is repeated if the answer comes late
		t.Errorf("%d packets were queued, want the connection's only", got)
	}
	if got := n.entries(t); got > 10 {
		t.Errorf("%d entries", got)
	}
}

// TestQueuesOfServices: packets to services that have endpoints have a queue of their own.
func TestQueuesOfServices(t *testing.T) {
	n, table := newWiredNode(t)
	n.open(t, table)
	f := newForged(t, n)
	for _, c := range []struct {
		to    string
		queue int
	}{
		{"10.96.0.1:80", 0}, {"10.96.0.2:80", 0}, {"10.96.0.5:80", 0}, {"10.244.1.1:30080", 0},
		{"10.96.0.4:80", 1}, // without endpoints
		{"10.96.0.1:81", 1}, {"10.244.0.2:9", 1}, {"10.244.1.1:30081", 1}, {"10.244.0.2:30080", 1},
	} {
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			f.port++
			var before [2]uint64
			for i, w := range n.engine.workers {
				before[i] = w.counters.packets.Load()
			}
			all := n.received()
			f.first(protocol, netip.MustParseAddr("10.244.1.3"), netip.MustParseAddrPort(c.to))
			await(t, "the packet to "+c.to, func() bool { return n.received() > all })
			for i, w := range n.engine.workers {
				if came := w.counters.packets.Load() - before[i]; (came == 1) != (i == c.queue) {
					t.Errorf("protocol %d to %s: %d packets in queue %d", protocol, c.to, came, i)
				}
			}
		}
	}
}

// TestFloodToNoService: packets to no service that no worker takes fill their queue, and flows to services
// are decided.
func TestFloodToNoService(t *testing.T) {
	n, table := newWiredNode(t)
	n.openWorkers(t, table, 1)
	f := newForged(t, n)
	others := n.engine.workers[1]
	for i := 0; ; i++ {
		c, err := others.queue.Counters()
		must(t, err)
		if c.Waiting == queueMaxLen {
			break
		}
		if i > 100*queueMaxLen {
			t.Fatalf("%d packets wait", c.Waiting)
		}
		f.first(unix.IPPROTO_TCP, source(i), netip.MustParseAddrPort("10.244.0.2:9"))
	}
	const connections = 50
	for range connections {
		n.connect(t, "10.96.0.1:80")
	}
	await(t, "all of them to be decided", func() bool { return n.stats().Translated >= connections })
	c, err := n.engine.rules.Counters()
	if must(t, err); c.Copied > 0 {
		t.Errorf("%d flows were decided by the kernel's copy", c.Copied)
	}
}
