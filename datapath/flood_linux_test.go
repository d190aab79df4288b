package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
)

// forged is a raw socket of the client, which sends first packets from forged sources.
type forged struct {
	t  *testing.T
	fd int
}

func newForged(t *testing.T, n *allocationNode) *forged {
	t.Helper()
	f := &forged{t: t}
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
		f.send(from, to, &layers.TCP{SrcPort: 40000, DstPort: layers.TCPPort(to.Port()), SYN: true, Window: 1024}, layers.IPProtocolTCP)
	} else {
		f.send(from, to, &layers.UDP{SrcPort: 40000, DstPort: layers.UDPPort(to.Port())}, layers.IPProtocolUDP)
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

// received counts the packets that the daemon was given.
func (n *allocationNode) received() uint64 { return n.engine.workers[0].counters.packets.Load() }

// await waits for a condition.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s", what)
		}
	}
}

// connect opens a connection by way of a service.
func (n *allocationNode) connect(t *testing.T, to string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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
		netns.Missing(t, fmt.Sprintf("net.netfilter.nf_conntrack_max of at most %d, to fill the table: it is %d", most, limit))
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

// fill fills the connection table with entries of our own that nobody answered, as an earlier
// run may have left them.
func (n *allocationNode) fill(t *testing.T, protocol uint8) {
	t.Helper()
	limit := n.limit(t)
	must(t, n.node.Do(func() error {
		table, err := conntrack.Open(new(conntrack.Locks))
		if err != nil {
			return err
		}
		defer table.Close()
		entries, results := make([]conntrack.Entry, 64), make([]conntrack.Result, 64)
		for i := 0; i < limit; i += len(entries) {
			for k := range entries {
				from := netip.AddrPortFrom(source(i+k), uint16(20000+(i+k)>>17))
				entries[k] = conntrack.Entry{
					Tuple: conntrack.Tuple{Source: from, Destination: netip.MustParseAddrPort("10.96.0.2:80"), Protocol: protocol},
					Mark:  conntrack.DefaultMark, Destination: netip.MustParseAddrPort("10.244.66.1:8080"),
				}
			}
			table.Establish(entries, results)
		}
		return nil
	}))
	if got := n.entries(t); got < limit-100 {
		t.Fatalf("%d entries in a table of %d", got, limit)
	}
}

// TestFullTableServes: packets from forged sources go on filling a full connection table,
// because they are dropped after their entries were written. Connections to services are made
// all the same: not one of their first packets is refused.
func TestFullTableServes(t *testing.T) {
	for _, c := range []struct {
		name     string
		protocol uint8
		evicted  func(Stats) uint64
	}{
		{"TCP", unix.IPPROTO_TCP, func(s Stats) uint64 { return s.EvictedCrowded }},
		{"UDP", unix.IPPROTO_UDP, func(s Stats) uint64 { return s.EvictedFull }},
	} {
		t.Run(c.name, func(t *testing.T) {
			netns.RequireTool(t, "nft")
			n, table := newWiredNode(t)
			_, err := n.node.Run("table ip guard { chain forged { type filter hook prerouting priority mangle; ip saddr 198.18.0.0/15 drop; }; }", "nft", "-f", "-")
			must(t, err)
			n.fill(t, c.protocol)
			n.open(t, table)
			f := newForged(t, n)
			const connections, each = 30, 50
			for i := range connections {
				before := n.received()
				for k := range each {
					f.first(c.protocol, source(i*each+k), netip.MustParseAddrPort("10.96.0.1:80"))
				}
				n.connect(t, "10.96.0.1:80")
				await(t, "the packets to be decided", func() bool { return n.received() > before+each/2 })
			}
			s := n.engine.Stats()
			if s.Failed > 0 {
				t.Errorf("%d entries were refused of %d", s.Failed, s.Failed+s.Created)
			}
			if got := c.evicted(s); got < connections*each/2 {
				t.Errorf("%d entries were removed for %d new ones", got, s.Created)
			}
			if got, limit := n.entries(t), n.limit(t); got > limit {
				t.Errorf("%d entries in a table of %d", got, limit)
			}
		})
	}
}
