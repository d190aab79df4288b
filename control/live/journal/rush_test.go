package journal

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// silence is the source of events of a kernel that sends none.
type silence struct {
	paused atomic.Bool
	closed chan struct{}
}

func (s *silence) Receive([]conntrack.Event) (int, error) { <-s.closed; return 0, os.ErrClosed }
func (s *silence) Pause(on bool) error                    { s.paused.Store(on); return nil }
func (s *silence) Close() error                           { close(s.closed); return nil }

// vanishing is a connection table with one entry, or none.
type vanishing struct {
	entry atomic.Pointer[conntrack.State]
}

func (v *vanishing) Reread([]*conntrack.State, func(int, *conntrack.State)) error { return nil }

func (v *vanishing) Dump(_ conntrack.Filter, each func(*conntrack.State)) error {
	if s := v.entry.Load(); s != nil {
		each(s)
	}
	return nil
}

// TestRush: events are switched off as soon as there are more flows in an interval than
// the limit, not only when the interval is over; and on again after a calm one.
func TestRush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{})
		events := &silence{closed: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		last := &vanishing{}
		followed := make(chan error, 1)
		go b.Run(ctx)
		go func() {
			followed <- b.Follow(ctx, Kernel{Events: events, Connections: last, Dumps: last, DetailRate: 4000})
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
		time.Sleep(quietPeriod)
		expect("not calm for long enough", true)
		time.Sleep(2 * watchInterval)
		expect("calm", false)
		// Of the flows that began in the pause one has a connection, for some time. The kernel
		// may never report its end.
		last.entry.Store(&conntrack.State{Original: conntrack.Tuple{Source: netip.AddrPortFrom(client.Addr(), port)}})
		time.Sleep(rest + watchInterval)
		if k := b.Kernel(); k.Resyncs != 1 || b.Known().Open != 1 {
			t.Errorf("after the pause the connection table was read %d times and %d flows are open, want once and one", k.Resyncs, b.Known().Open)
		}
		last.entry.Store(nil)
		time.Sleep(7 * rest)
		if n := b.Known().Open; n != 0 {
			t.Errorf("%d flows are open, whose connections are gone", n)
		}
		cancel()
		if err := <-followed; err != nil {
			t.Error(err)
		}
	})
}

// sampled is a journal that observes and follows events, in the midst of an interval. end ends it.
func sampled(t *testing.T) (b *bench, events *silence, end func()) {
	b, events = observing(t, Observe{}), &silence{closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan error, 1)
	go b.Run(ctx)
	go func() {
		followed <- b.Follow(ctx, Kernel{Events: events, Connections: &vanishing{}, Dumps: &vanishing{}, DetailRate: 4000})
	}()
	time.Sleep(watchInterval / 2)
	return b, events, func() {
		cancel()
		if err := <-followed; err != nil {
			t.Error(err)
		}
	}
}

// begin has flows begin, one after the other, and takes them over.
func (b *bench) begin(first, n uint16) {
	for port := first; port < first+n; port++ {
		b.event(netip.AddrPortFrom(client.Addr(), port), conntrack.Began, func(e *conntrack.Event) { e.At = time.Now() })
	}
	b.take(time.Now())
	synctest.Wait()
}

// until gives how long it takes until events are paused, or no longer.
func (s *silence) until(t *testing.T, paused bool) time.Duration {
	t.Helper()
	began := time.Now()
	for s.paused.Load() != paused {
		if time.Sleep(time.Millisecond); time.Since(began) > time.Minute {
			t.Fatalf("paused %t for a minute", !paused)
		}
	}
	return time.Since(began)
}

// TestSample: a journal that observes another proxy listens for moments only when there are too many flows, and counts
// the others by their rate.
func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, events, end := sampled(t)
		// between bounds that differ by the interval of the watch, and a little
		about := func(what string, got, want, more float64) {
			t.Helper()
			if got < want || got > want+more {
				t.Errorf("%s: %v, want %v to %v", what, got, want, want+more)
			}
		}
		lost := func(what string, want, more float64) {
			t.Helper()
			synctest.Wait()
			about(what, float64(b.Lost()), want, more)
		}
		b.begin(1, 1100) // in an eighth of a second
		if !events.paused.Load() || b.Lost() != 0 {
			t.Fatalf("too many flows: paused %t, %d are lost", events.paused.Load(), b.Lost())
		}
		about("first rest", events.until(t, false).Seconds(), 2, 0.25)
		time.Sleep(time.Millisecond)
		b.begin(2000, 500)
		about("a window for 1,000 of 8,000 flows a second", events.until(t, true).Seconds(), 0.122, 0.006)
		lost("one half by 8,000", 2*4000, 0.25*4100)
		events.until(t, false)
		lost("the other by 4,000, and one half of the next", 4*2000+4*2000, 0.5*4100)
		about("a window for 1,000 of 4,000", events.until(t, true).Seconds(), 0.245, 0.01)
		events.until(t, false)
		lost("after a window without flows", 4*2000+4*2000, 0.5*4100)
		before := b.Lost()
		time.Sleep(4 * sampleRest)
		if events.paused.Load() || b.Lost() != before {
			t.Errorf("few flows: paused %t, %d lost in their time", events.paused.Load(), b.Lost()-before)
		}
		end()
	})
}

// TestSampleOverrun: lost events are a reason to take samples, and for a shorter window.
func TestSampleOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, events, end := sampled(t)
		f := b.follower.Load()
		b.caught = time.Now()
		b.begin(1, 1)
		time.Sleep(time.Second)
		f.lostEvents()
		synctest.Wait()
		if events.paused.Load() {
			t.Fatal("the daemon had no CPU for a second: that is no rush")
		}
		b.caught = time.Now()
		b.begin(2, 1)
		time.Sleep(100 * time.Millisecond)
		f.lostEvents()
		synctest.Wait()
		if !events.paused.Load() {
			t.Fatal("in a tenth of a second more events came than can wait, and they go on")
		}
		for _, window := range []time.Duration{maxWindow / 4, maxWindow / 16, minWindow} {
			events.until(t, false)
			time.Sleep(time.Millisecond)
			f.lostEvents()
			if took := events.until(t, true) + time.Millisecond; took < window-2*time.Millisecond || took > window+2*time.Millisecond {
				t.Errorf("a window of %v, want %v", took, window)
			}
		}
		end()
	})
}

// TestSampleAtLeast: of a rate that an overrun shows as the least, the flows of the rest are counted by a higher one of the window after it.
func TestSampleAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, events, end := sampled(t)
		b.caught = time.Now()
		b.begin(1, 1)
		time.Sleep(250 * time.Millisecond)
		b.follower.Load().lostEvents()
		synctest.Wait()
		if !events.paused.Load() {
			t.Fatal("6,000 flows a second, and events go on")
		}
		first := events.until(t, false).Seconds()
		before := float64(b.Lost()) // a half of the rest, by 6,000 a second
		b.caught = time.Now()
		b.begin(2, 2000)
		window := events.until(t, true).Seconds()
		second := events.until(t, false).Seconds()
		rate := 2000 / window
		if got, want := float64(b.Lost())-before, first*rate/2+(first*rate/2-before)+second*rate/2; got < 0.95*want || got > 1.05*want {
			t.Errorf("%.0f more are lost by %.0f a second, want %.0f", got, rate, want)
		}
		end()
	})
}

// TestBacklog: flows that a busy machine takes over all at once, long after they began, are no rush.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, events, end := sampled(t)
		b.caught = time.Now().Add(-2 * time.Second)
		b.begin(1, 3000) // 1,500 a second
		time.Sleep(2 * watchInterval)
		synctest.Wait()
		if events.paused.Load() || b.Lost() != 0 {
			t.Errorf("paused %t, %d are lost", events.paused.Load(), b.Lost())
		}
		end()
	})
}

// TestManyFound: connections from before the observer, which a pass over the connection table finds, are no rush of new flows,
// and none is lost.
func TestManyFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, events, end := sampled(t)
		states, to := make([]conntrack.Event, 8000), netip.MustParseAddrPort("192.0.2.9:443") // of no Service
		for i := range states {
			from := netip.AddrPortFrom(client.Addr(), uint16(i+1))
			states[i].State = conntrack.State{Original: conntrack.Tuple{Source: from, Destination: to, Protocol: 6}, Reply: conntrack.Tuple{Source: to, Destination: from, Protocol: 6}}
		}
		b.found(states, 1, 0)
		b.take(time.Now())
		time.Sleep(sampleRest + 2*watchInterval)
		synctest.Wait()
		if n := b.Lost(); events.paused.Load() || n != 0 || b.flows.len() != len(states) {
			t.Errorf("paused %t, %d are lost, %d flows", events.paused.Load(), n, b.flows.len())
		}
		end()
	})
}

// batch is one batch of events, and then silence.
type batch struct {
	silence
	events []conntrack.Event
}

func (b *batch) Receive(to []conntrack.Event) (int, error) {
	if n := copy(to, b.events); n > 0 {
		b.events = nil
		return n, nil
	}
	return b.silence.Receive(to)
}

// lookups notes of how many connections the counters are read at a time.
type lookups struct {
	vanishing
	sizes []int
}

func (l *lookups) Reread(states []*conntrack.State, _ func(int, *conntrack.State)) error {
	l.sizes = append(l.sizes, len(states))
	return nil
}

// TestCountersOfEnds: the counters of as many closed connections are read as are usual at a time: more for a journal that
// observes, which gathers events for longer.
func TestCountersOfEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		config Config
		want   []int
	}{"decides": {Config{}, []int{32}}, "observes": {Config{Observe: &Observe{}}, []int{32, 32}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j, events, l := New(tt.config), &batch{silence: silence{closed: make(chan struct{})}}, new(lookups)
				for port := range uint16(100) {
					from := netip.AddrPortFrom(client.Addr(), port+1)
					events.events = append(events.events, conntrack.Event{Kind: conntrack.Updated, State: conntrack.State{
						Original: conntrack.Tuple{Source: from, Destination: client, Protocol: 6}, TCP: conntrack.TCPTimeWait, Status: replied,
					}})
				}
				ctx, cancel := context.WithCancel(t.Context())
				followed := make(chan error, 1)
				go func() { followed <- j.Follow(ctx, Kernel{Events: events, Connections: l, Dumps: new(vanishing)}) }()
				synctest.Wait()
				cancel()
				if err := <-followed; err != nil || !slices.Equal(l.sizes, tt.want) {
					t.Errorf("%v at a time, want %v; %v", l.sizes, tt.want, err)
				}
			})
		})
	}
}
