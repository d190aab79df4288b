package conntrack_test

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
)

// receiveAll receives events, so many at a time, until there is an error.
func receiveAll(t *testing.T, w *conntrack.Watcher, at int) (all []conntrack.Event, err error) {
	t.Helper()
	for into := make([]conntrack.Event, at); err == nil; {
		var n int
		n, err = w.Receive(into)
		if n == 0 && err == nil {
			t.Fatal("Receive gave nothing, and no error")
		}
		all = append(all, into[:n]...)
	}
	return all, err
}

// TestWatchFake: what changes, ends and is replaced, in order.
func TestWatchFake(t *testing.T) {
	for _, at := range []int{1, 2, 100} {
		f := conntracktest.NewFake()
		w := f.Watch(7)
		table := f.Table()
		e := service(protoTCP, "10.244.1.2:40000")
		establishOne(table, e) // of which there is no event
		to := func(state conntrack.TCPState) { f.Change(e.Tuple, func(s *conntrack.State) { s.TCP = state }) }
		to(conntrack.TCPSynSent)
		to(conntrack.TCPSynSent) // no change
		f.Change(e.Tuple, func(s *conntrack.State) { s.TCP, s.Status = conntrack.TCPSynRecv, s.Status|conntrack.StatusSeenReply })
		f.Change(e.Tuple, func(s *conntrack.State) { s.Status |= conntrack.StatusAssured }) // without TCP's state
		to(conntrack.TCPTimeWait)
		f.Change(e.Tuple, func(s *conntrack.State) { s.HasCounters, s.Sent = true, conntrack.Counters{Packets: 7, Bytes: 700} })
		establishOne(table, e)
		to(conntrack.TCPSynSent)
		f.End(e.Tuple)
		if err := w.Pause(true); err != nil {
			t.Fatal(err)
		}
		establishOne(table, e)
		to(conntrack.TCPSynSent)
		f.End(e.Tuple)
		if err := w.Pause(false); err != nil {
			t.Fatal(err)
		}
		establishOne(table, e)
		to(conntrack.TCPSynSent) // one too many: to end with
		events, err := receiveAll(t, w, at)
		const want = "SYN_SENT, SYN_RECV replied, NONE replied assured, TIME_WAIT replied assured, DESTROY TIME_WAIT replied assured early requested, SYN_SENT, DESTROY SYN_SENT early"
		if got := describeAll(events); got != want || !errors.Is(err, conntrack.ErrOverrun) {
			t.Fatalf("%d at a time: got %s, error %v; want %s", at, got, err, want)
		}
		if s := events[4].State; !s.HasCounters || s.Sent != (conntrack.Counters{Packets: 7, Bytes: 700}) || events[3].State.HasCounters {
			t.Errorf("the end counts %+v; before it, %+v", s, events[3].State)
		}
	}
}

// TestWatchOverrun: all that waits is given before the loss is reported, be it little or much,
// and once.
func TestWatchOverrun(t *testing.T) {
	for _, room := range []int{1, 2, conntrack.MaxEvents, conntrack.MaxEvents + 1, 2*conntrack.MaxEvents + 3} {
		f := conntracktest.NewFake()
		w := f.Watch(room)
		e := service(protoUDP, "10.244.1.2:40000")
		establishOne(f.Table(), e)
		mark := func(m uint32) { f.Change(e.Tuple, func(s *conntrack.State) { s.Mark = m }) }
		for i := range room + 10 {
			mark(uint32(i + 1))
		}
		events, err := receiveAll(t, w, 100)
		if len(events) != room || !errors.Is(err, conntrack.ErrOverrun) || !slices.IsSortedFunc(events, func(a, b conntrack.Event) int { return int(a.State.Mark) - int(b.State.Mark) }) {
			t.Fatalf("room for %d: %d events, error %v", room, len(events), err)
		}
		mark(1000000)
		if n, err := w.Receive(events[:1]); n != 1 || err != nil || events[0].State.Mark != 1000000 {
			t.Errorf("room for %d, after the loss: %d events, error %v", room, n, err)
		}
	}
}

func TestWatchCloses(t *testing.T) {
	f := conntracktest.NewFake()
	w := f.Watch(1)
	received := make(chan error)
	go func() {
		_, err := w.Receive(make([]conntrack.Event, 1))
		received <- err
	}()
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if err := <-received; !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v, want os.ErrClosed", err)
	}
	if err := w.Pause(true); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Pause: %v", err)
	}
}
