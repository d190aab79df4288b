package serving

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/cmd/nfqproxy/e2e/e2etest"
	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// sctpPacket makes an SCTP packet with one INIT or INIT ACK chunk. SCTP is made by
// hand, and not with sockets, which the kernel need not have.
func sctpPacket(src, dst uint16, tag uint32, chunk byte) []byte {
	b := make([]byte, 12+20)
	binary.BigEndian.PutUint16(b, src)
	binary.BigEndian.PutUint16(b[2:], dst)
	binary.BigEndian.PutUint32(b[4:], tag)
	b[12] = chunk
	binary.BigEndian.PutUint16(b[14:], 20)         // chunk length
	binary.BigEndian.PutUint32(b[16:], 0x1234)     // initiate tag
	binary.BigEndian.PutUint32(b[20:], 65536)      // window
	binary.BigEndian.PutUint16(b[24:], 1)          // outbound streams
	binary.BigEndian.PutUint16(b[26:], 1)          // inbound streams
	binary.BigEndian.PutUint32(b[28:], 0x01020304) // first TSN
	binary.LittleEndian.PutUint32(b[8:], sctpChecksum(b))
	return b
}

// sctpChecksum is that of RFC 9260, appendix A.
func sctpChecksum(b []byte) uint32 {
	c := append([]byte(nil), b...)
	clear(c[8:12])
	return crc32.Checksum(c, crc32.MakeTable(crc32.Castagnoli))
}

const (
	chunkInit    = 1
	chunkInitAck = 2
)

// rawSCTP opens a raw socket on an address of a host.
func rawSCTP(c *e2etest.Cluster, host, at string) net.PacketConn {
	c.T.Helper()
	network := "ip4:132"
	if netip.MustParseAddr(at).Is6() {
		network = "ip6:132"
	}
	var conn net.PacketConn
	c.Must(c.Host(host).Do(func() (err error) { conn, err = net.ListenPacket(network, at); return err }))
	c.T.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(e2etest.Timeout)); err != nil {
		c.T.Fatal(err)
	}
	return conn
}

// TestSCTP sends an INIT by each way to a service, and the endpoint's INIT ACK back.
func TestSCTP(t *testing.T) { e2etest.InEachScope(t, testSCTP) }

func testSCTP(t *testing.T, c *e2etest.Cluster) {
	e2etest.Families(t, func(t *testing.T, at func(v4, v6 string, port int) string) {
		for i, tt := range []struct {
			name, from, fromAddr string
			to                   string
			seenAs               string
		}{
			{"pod to ClusterIP", "shell", at("10.244.0.9", "fd00:10:244::9", 0), at("10.96.0.30", "fd00:10:96::30", 99), at("10.244.0.9", "fd00:10:244::9", 0)},
			{"node to ClusterIP", "node-b", at("172.21.0.3", "fd00:172:21::3", 0), at("10.96.0.30", "fd00:10:96::30", 99), at("172.21.0.3", "fd00:172:21::3", 0)},
			{"outside client to node port", "outside", at("172.21.0.100", "fd00:172:21::100", 0), at("172.21.0.3", "fd00:172:21::3", 30090), at("172.21.0.3", "fd00:172:21::3", 0)},
			{"hairpin", "solo", at("10.244.0.4", "fd00:10:244::4", 0), at("10.96.0.30", "fd00:10:96::30", 99), at("10.244.0.1", "fd00:10:244::1", 0)},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c.Use(t)
				to := netip.MustParseAddrPort(tt.to)
				source := uint16(40000 + i)
				client, server := rawSCTP(c, tt.from, tt.fromAddr), rawSCTP(c, "solo", at("10.244.0.4", "fd00:10:244::4", 0))
				send := func(conn net.PacketConn, b []byte, to net.Addr) {
					t.Helper()
					if _, err := conn.WriteTo(b, to); err != nil {
						t.Fatal(err)
					}
				}
				// receive reads until a packet has the chunk; the hairpin pod sees its own.
				receive := func(conn net.PacketConn, chunk byte) (b []byte, from net.Addr) {
					t.Helper()
					b = make([]byte, 1500)
					for {
						n, from, err := conn.ReadFrom(b)
						if err != nil {
							t.Fatal(err)
						}
						if n >= 32 && b[12] == chunk {
							return b[:n], from
						}
					}
				}
				send(client, sctpPacket(source, to.Port(), 0, chunkInit), &net.IPAddr{IP: to.Addr().AsSlice()})
				b, from := receive(server, chunkInit)
				if got := fmt.Sprint(from, " ", binary.BigEndian.Uint16(b), " ", binary.BigEndian.Uint16(b[2:])); got != fmt.Sprint(tt.seenAs, " ", source, " ", 9999) {
					t.Errorf("the endpoint got an INIT from %s, want %s %d 9999", got, tt.seenAs, source)
				}
				if got, want := binary.LittleEndian.Uint32(b[8:]), sctpChecksum(b); got != want {
					t.Errorf("its checksum is %08x, want %08x", got, want)
				}
				send(server, sctpPacket(9999, source, 0x1234, chunkInitAck), from)
				b, from = receive(client, chunkInitAck)
				if got := fmt.Sprint(from, " ", binary.BigEndian.Uint16(b), " ", binary.BigEndian.Uint16(b[2:])); got != fmt.Sprint(to.Addr(), " ", to.Port(), " ", source) {
					t.Errorf("the client got an answer from %s, want %s %d %d", got, to.Addr(), to.Port(), source)
				}
				tuple := conntrack.Tuple{Source: netip.AddrPortFrom(netip.MustParseAddr(tt.fromAddr), source), Destination: to, Protocol: 132}
				r := c.WaitRecord("the record", func(r *flow.Record) bool {
					return r.Protocol == "SCTP" && r.Source == tuple.Source.String() && r.Destination == tuple.Destination.String() && r.Verdict == "dnat"
				})
				if r.Conntrack != "created" {
					t.Errorf("the record says the entry was %s", r.Conntrack)
				}
			})
		}
	})
}
