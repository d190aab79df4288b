//go:build linux

package netfilter

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// connlimitRules count connections in several ways. No rule ends a packet: the kernel counts
// a connection that was refused for up to two clock ticks (nf_conncount.c, find_or_evict).
const connlimitRules = `*mangle
-A PREROUTING -p tcp -m connlimit --connlimit-above 1 --connlimit-mask 32 --connlimit-saddr -j MARK --set-xmark 0x1/0x1
-A PREROUTING -p tcp -m connlimit --connlimit-upto 2 --connlimit-mask 24 --connlimit-saddr -j MARK --set-xmark 0x2/0x2
-A PREROUTING -p tcp -m connlimit --connlimit-above 2 --connlimit-mask 32 --connlimit-daddr -j MARK --set-xmark 0x4/0x4
-A PREROUTING -p tcp -m connlimit --connlimit-above 0 --connlimit-mask 0 --connlimit-saddr -j MARK --set-xmark 0x8/0x8
-A PREROUTING -p tcp -m tcp --dport 53 -m connlimit --connlimit-above 1 --connlimit-mask 32 --connlimit-saddr -j MARK --set-xmark 0x10/0x10
COMMIT
`

// TestKernelAgreesAboutConnlimit: new connections, their later packets, and connections that
// are over.
func TestKernelAgreesAboutConnlimit(t *testing.T) {
	t.Parallel()
	netnstest.Require(t)
	d, err := iptables.Parse(strings.NewReader(connlimitRules), iptables.Options{})
	check(t, err)
	for _, b := range backends {
		netnstest.RequireTool(t, program(b, true))
		t.Run(b, func(t *testing.T) {
			n := newKernelNode(t, newHost(variant{}))
			tr := n.load(t, b, d, make(tally))
			send := func(from, to string, flags iptables.TCPFlags, mark uint32) {
				t.Helper()
				p := iptables.Packet{
					Protocol: protoTCP, TTL: 64, InInterface: "eth0", Flags: flags,
					Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(to),
				}
				p.MAC, p.Length = &neighbours[0], uint16(len(encode(&p, false)))
				way, err := tr.try(&p)
				check(t, err)
				if way.Packet.Mark != mark {
					t.Errorf("%s %s -> %s: mark %#x, want %#x", flags, from, to, way.Packet.Mark, mark)
				}
			}
			check(t, netns.OnOneCPU(func() error {
				send("203.0.113.10:40000", "10.244.1.2:80", iptables.SYN, 0xa)
				send("203.0.113.10:40000", "10.244.1.2:80", iptables.SYN, 0xa) // again
				send("203.0.113.10:40001", "10.244.1.2:80", iptables.SYN, 0xb)
				send("203.0.113.11:40000", "10.244.1.2:80", iptables.SYN, 0xc)
				send("203.0.113.11:40001", "10.244.1.3:53", iptables.SYN, 0x9)
				send("203.0.113.11:40002", "10.244.1.3:53", iptables.SYN, 0x19)
				send("192.0.2.77:40000", "10.244.1.3:53", iptables.SYN, 0xe)
				send("192.0.2.77:40000", "10.244.1.3:53", iptables.RST, 0xe) // over after this one
				// The kernel looks for such when a new one comes, once a clock tick (nf_conncount.c).
				time.Sleep(50 * time.Millisecond)
				send("192.0.2.77:40001", "10.244.1.3:53", iptables.SYN, 0xe)
				return nil
			}))
		})
	}
}
