package journal

import (
	"context"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// silence are events of a kernel that tells nothing.
type silence struct {
	paused atomic.Bool
	closed chan struct{}
}

func (s *silence) Receive([]conntrack.Event) (int, error) { <-s.closed; return 0, os.ErrClosed }
func (s *silence) Pause(on bool) error                    { s.paused.Store(on); return nil }
func (s *silence) Close() error                           { close(s.closed); return nil }

// TestRush: the kernel is not asked as soon as there are more flows in an interval than
// may be, not only when the interval is over; and it is asked again when it was calm.
func TestRush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		events := &silence{closed: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		followed := make(chan error, 1)
		go b.Run(ctx)
		go func() {
			followed <- b.Follow(ctx, Kernel{Events: events, Connections: dump{}, DetailRate: 4000})
		}()
		port := uint16(0)
		flows := func(n int) {
			t.Helper()
			batch := make([]flow.Flow, n)
			for i := range batch {
				batch[i] = flow.Flow{Table: b.table, Node: b.table.Node(), Time: time.Now()}
				port++
				batch[i].Packet.Source = netip.AddrPortFrom(client.Addr(), port)
			}
			b.Flows(batch)
			time.Sleep(2 * gather)
		}
		expect := func(what string, paused bool) {
			t.Helper()
			synctest.Wait()
			if events.paused.Load() != paused || b.Busy() != paused {
				t.Errorf("%s: paused %t, busy %t; want %t", what, events.paused.Load(), b.Busy(), paused)
			}
		}
		time.Sleep(watchInterval / 5) // flows come in the midst of intervals
		expect("at first", false)
		flows(990)
		expect("not too many", false)
		time.Sleep(watchInterval)
		flows(990)
		expect("not too many in the next interval", false)
		time.Sleep(watchInterval)
		flows(1010)
		expect("too many", true)
		time.Sleep(calm)
		expect("not calm for long enough", true)
		time.Sleep(2 * watchInterval)
		expect("calm", false)
		time.Sleep(rest + watchInterval)
		if k := b.Kernel(); k.Resyncs != 1 {
			t.Errorf("after the pause the connection table was read %d times, want once", k.Resyncs)
		}
		cancel()
		if err := <-followed; err != nil {
			t.Error(err)
		}
	})
}
