package ruleset

import (
	"encoding/binary"
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nfqproxy/nfqproxy/datapath/live/nft"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
)

// TestUnansweredAreForgottenSoon: a flow of one datagram is remembered for a short time, both
// its directions; one that goes on, or is answered, for as long as it is used.
func TestUnansweredAreForgottenSoon(t *testing.T) {
	netnstest.RequireTool(t, "ip")
	inNamespace(t, func() error {
		r, err := install(spec()) // there is no listener at the queues: packets pass
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
