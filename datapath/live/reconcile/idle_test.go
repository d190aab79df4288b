package reconcile_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
)

// TestIdleFlowIsLearntAgain: the elements of a UDP flow expire before its entry does,
// so its next datagram is queued; those after it are not.
func TestIdleFlowIsLearntAgain(t *testing.T) {
	families(t, func(t *testing.T, six bool) {
		l := newLab(t, six)
		l.receive(l.one, true)
		l.follow(l.table(l.one))
		conn, err := l.client.Dial(context.Background(), "udp", netip.AddrPort{}, l.service)
		must(t, err)
		defer conn.Close()
		send := func() {
			t.Helper()
			b := make([]byte, 9)
			_, err := conn.Write(b)
			must(t, err)
			_, err = conn.Read(b)
			must(t, err)
		}
		send()
		send() // the connection is established
		tuple := conntrack.Tuple{
			Protocol: 17, Source: netip.MustParseAddrPort(conn.LocalAddr().String()), Destination: l.service,
		}
		reply := conntrack.Tuple{Protocol: 17, Source: l.one, Destination: tuple.Source}
		queued := func() uint64 {
			// A batch is counted after its verdicts; Apply waits for that.
			l.engine.Apply(l.table(l.one))
			return l.engine.Stats().Packets
		}
		before := queued()
		must(t, l.rules.Forget([]conntrack.Tuple{tuple, reply})) // as if time had passed
		for range 5 {
			send()
		}
		if n := queued() - before; n != 1 {
			t.Errorf("%d packets of an established flow were queued, want the first one", n)
		}
	})
}
