package ruleset

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/netns"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// flows are n tuples of each family from port first on.
func flows(first, n int) []conntrack.Tuple {
	var t []conntrack.Tuple
	for i := range n {
		for _, a := range [][2]string{{"10.244.0.9", "10.96.0.10"}, {"fd44::9", "fd96::a"}} {
			t = append(t, conntrack.Tuple{
				Source:      netip.AddrPortFrom(netip.MustParseAddr(a[0]), uint16(first+i)),
				Destination: netip.AddrPortFrom(netip.MustParseAddr(a[1]), 53), Protocol: udp,
			})
		}
	}
	return t
}

// remember puts the tuples into the sets, as the kernel's rules would.
func remember(t *testing.T, r *Ruleset, tuples []conntrack.Tuple) {
	t.Helper()
	for _, tp := range tuples {
		s, pad := r.tables[0].seen, "\x00\x00"
		if tp.Source.Addr().Is6() {
			s = r.tables[1].seen
		}
		key := addrBytes(tp.Source.Addr()) + addrBytes(tp.Destination.Addr()) + portBytes(tp.Source.Port()) + pad + portBytes(tp.Destination.Port()) + pad
		r.addElement(s, key, "")
	}
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
}

// openSeen opens the sets by a connection of its own, as another process would.
func openSeen(t testing.TB) *Connection {
	t.Helper()
	c, err := OpenConnection(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestForget with both messages that remove elements, and one that no kernel knows, as
// old ones do not know the newer of them.
func TestForget(t *testing.T) {
	for _, remove := range []int{msgDestroySetElem, unix.NFT_MSG_DELSETELEM, 200} {
		t.Run(fmt.Sprint(remove), func(t *testing.T) { testForget(t, remove) })
	}
}

func testForget(t *testing.T, remove int) {
	inNamespace(t, func() error {
		r, err := install(t, spec())
		if err != nil {
			return err
		}
		seen := openSeen(t)
		seen.removal.Store(int32(remove))
		for name, tt := range map[string]struct {
			in, forget []conntrack.Tuple
			left       int // of each family
		}{
			"nothing":          {flows(1000, 3), nil, 3},
			"all":              {flows(1000, 3), flows(1000, 3), 0},
			"some":             {flows(1000, 10), flows(1002, 3), 7},
			"none of them":     {flows(1000, 3), flows(2000, 3), 3},
			"some are missing": {flows(1000, 10), flows(995, 10), 5},
			"one twice":        {flows(1000, 2), append(flows(1000, 1), flows(1000, 1)...), 1},
			"many":             {flows(1000, 150), append(flows(2000, 400), flows(1000, 149)...), 1},
		} {
			remember(t, r, tt.in)
			if err := seen.Forget(tt.forget); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if n := elements(t, r); n["seen4"] != tt.left || n["seen6"] != tt.left {
				t.Errorf("%s: %d and %d elements are left, want %d of each", name, n["seen4"], n["seen6"], tt.left)
			}
			if err := seen.Forget(tt.in); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(elements(t, r)); got != fmt.Sprint(map[string]int{
			"seen4": 0, "seen6": 0, "service4": 0, "service6": 0, "nodeport4": 0, "nodeport6": 0,
			"nodeport_addr4": 0, "nodeport_addr6": 0, "refused_port4": 0, "refused_port6": 0,
		}) {
			t.Error("elements are left:", got)
		}
		if err := r.Remove(); err != nil {
			return err
		}
		if err := seen.Forget(flows(1000, 2)); err != nil {
			t.Errorf("without a ruleset: %v", err)
		}
		// It is installed again: the same socket goes on.
		if r, err = install(t, spec()); err != nil {
			return err
		}
		remember(t, r, flows(1000, 2))
		if err := seen.Forget(flows(1000, 2)); err != nil || elements(t, r)["seen4"] != 0 {
			t.Errorf("after the ruleset came back: error %v, elements %v", err, elements(t, r))
		}
		return r.Remove()
	})
}

func BenchmarkForget(b *testing.B) {
	for name, remove := range map[string]int{"destroy": msgDestroySetElem, "delete": unix.NFT_MSG_DELSETELEM} {
		b.Run(name, func(b *testing.B) {
			ns, err := netns.New("bench")
			if err != nil {
				b.Skip(err)
			}
			defer ns.Close()
			var seen *Connection
			if err := ns.Do(func() (err error) {
				_, err = install(b, spec())
				seen = openSeen(b)
				return err
			}); err != nil {
				b.Fatal(err)
			}
			seen.removal.Store(int32(remove))
			tuples := flows(1000, 32)
			for b.Loop() {
				if err := seen.Forget(tuples); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestUnansweredAreForgottenSoon: a flow of one datagram is remembered for a short time, both
// its directions; one that goes on, or is answered, for as long as it is used.
func TestUnansweredAreForgottenSoon(t *testing.T) {
	netnstest.RequireTool(t, "ip")
	inNamespace(t, func() error {
		r, err := install(t, spec()) // there is no listener at the queues: packets pass
		if err != nil {
			return err
		}
		// Not a loopback address: those are not of interest to the rules.
		if out, err := exec.Command("ip", "address", "add", "192.0.2.1/32", "dev", "lo").CombinedOutput(); err != nil {
			return fmt.Errorf("ip address add: %w\n%s", err, out)
		}
		server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1)})
		if err != nil {
			return err
		}
		defer server.Close()
		dial := func() *net.UDPConn {
			c, err := net.DialUDP("udp4", nil, server.LocalAddr().(*net.UDPAddr))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		send := func(c *net.UDPConn) net.Addr {
			if _, err := c.Write([]byte("?")); err != nil {
				t.Fatal(err)
			}
			_, from, err := server.ReadFrom(make([]byte, 10))
			if err != nil {
				t.Fatal(err)
			}
			return from
		}
		expire := func(c *net.UDPConn) (sent, answered time.Duration) {
			t.Helper()
			port := uint16(c.LocalAddr().(*net.UDPAddr).Port)
			err := nft.Dump(unix.NFPROTO_IPV4, unix.NFT_MSG_GETSETELEM, nft.ElementsOf(TableName, "seen"), func(_ uint8, a nft.Attributes) {
				for _, e := range nft.Elements(a.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
					key := e.Nested(unix.NFTA_SET_ELEM_KEY).Get(unix.NFTA_DATA_VALUE)
					expires := time.Duration(e.Uint64(unix.NFTA_SET_ELEM_EXPIRATION)) * time.Millisecond
					// The ports follow two addresses, each filled up to a register.
					switch port {
					case binary.BigEndian.Uint16(key[8:]):
						sent = expires
					case binary.BigEndian.Uint16(key[12:]):
						answered = expires
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			return sent, answered
		}
		one, replied := dial(), dial()
		send(one)
		client := send(replied)
		for _, c := range []*net.UDPConn{one, replied} {
			// On a slow machine they have expired.
			if sent, answered := expire(c); sent > unansweredTimeout || answered > unansweredTimeout {
				t.Errorf("after one datagram: remembered for %v and %v, want at most %v", sent, answered, unansweredTimeout)
			}
		}
		if _, err := server.WriteTo([]byte("!"), client); err != nil {
			return err
		}
		send(replied)
		if sent, answered := expire(replied); sent <= unansweredTimeout || answered <= unansweredTimeout {
			t.Errorf("in use: remembered for %v and %v, want about %v", sent, answered, spec().SeenTimeout)
		}
		return r.Remove()
	})
}
