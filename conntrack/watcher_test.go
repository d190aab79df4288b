package conntrack

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// receiveAll receives events, so many at a time, until there is an error.
func receiveAll(t *testing.T, w *Watcher, at int) (all []Event, err error) {
	t.Helper()
	for into := make([]Event, at); err == nil; {
		var n int
		n, err = w.Receive(into)
		if n == 0 && err == nil {
			t.Fatal("Receive gave nothing, and no error")
		}
		all = append(all, into[:n]...)
	}
	return all, err
}

func kinds(events []Event) string {
	var all []string
	for _, e := range events {
		all = append(all, fmt.Sprintf("%v %v %d", e.Kind, e.State.TCP, e.PortID))
	}
	return strings.Join(all, ", ")
}

// TestWatchFake: what changes, ends and is replaced, in order.
func TestWatchFake(t *testing.T) {
	for _, at := range []int{1, 2, 100} {
		f := NewFake()
		w := f.Watch(100)
		table := f.Table()
		e := service(protoTCP, "10.244.1.2:40000")
		establishOne(table, e) // of which nothing is told
		to := func(state TCPState) { f.Change(e.Tuple, func(s *State) { s.TCP = state }) }
		to(TCPSynSent)
		to(TCPSynSent) // no change
		f.Change(e.Tuple, func(s *State) { s.TCP, s.Status = TCPSynRecv, s.Status|StatusSeenReply })
		f.Change(e.Tuple, func(s *State) { s.Status |= StatusAssured }) // does not tell TCP's state
		to(TCPTimeWait)
		f.Change(e.Tuple, func(s *State) { s.HasCounters, s.Sent = true, Counters{7, 700} })
		establishOne(table, e)
		to(TCPSynSent)
		f.End(e.Tuple)
		if err := w.Pause(true); err != nil {
			t.Fatal(err)
		}
		establishOne(table, e)
		to(TCPSynSent)
		f.End(e.Tuple)
		f.watchers[0].failed = true // to end with
		events, err := receiveAll(t, w, at)
		const want = "UPDATE SYN_SENT 0, UPDATE SYN_RECV 0, UPDATE NONE 0, UPDATE TIME_WAIT 0, DESTROY TIME_WAIT 4711, UPDATE SYN_SENT 0, DESTROY SYN_SENT 0"
		if got := kinds(events); got != want || !errors.Is(err, ErrOverrun) {
			t.Fatalf("%d at a time: told %s, error %v; want %s", at, got, err, want)
		}
		if s := events[4].State; !s.HasCounters || s.Sent != (Counters{7, 700}) || events[3].State.HasCounters {
			t.Errorf("the end counts %+v; before it, %+v", s, events[3].State)
		}
	}
}

// TestWatchOverrun: all that waits is given before the loss is told, be it little or much,
// and once.
func TestWatchOverrun(t *testing.T) {
	for _, room := range []int{1, 2, maxEvents, maxEvents + 1, 2*maxEvents + 3} {
		f := NewFake()
		w := f.Watch(room)
		e := service(protoUDP, "10.244.1.2:40000")
		establishOne(f.Table(), e)
		mark := func(m uint32) { f.Change(e.Tuple, func(s *State) { s.Mark = m }) }
		for i := range room + 10 {
			mark(uint32(i + 1))
		}
		events, err := receiveAll(t, w, 100)
		if len(events) != room || !errors.Is(err, ErrOverrun) || !slices.IsSortedFunc(events, func(a, b Event) int { return int(a.State.Mark) - int(b.State.Mark) }) {
			t.Fatalf("room for %d: %d events, error %v", room, len(events), err)
		}
		mark(1000000)
		if n, err := w.Receive(events[:1]); n != 1 || err != nil || events[0].State.Mark != 1000000 {
			t.Errorf("room for %d, after the loss: %d events, error %v", room, n, err)
		}
	}
}

func TestWatchCloses(t *testing.T) {
	f := NewFake()
	w := f.Watch(1)
	received := make(chan error)
	go func() {
		_, err := w.Receive(make([]Event, 1))
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

// scriptedEvents are received as they stand there; then comes the error.
type scriptedEvents struct {
	batches [][][]byte
	given   [][]byte
	err     error
}

func (s *scriptedEvents) receive(bool) (int, error) {
	if len(s.batches) == 0 {
		return 0, s.err
	}
	s.given, s.batches = s.batches[0], s.batches[1:]
	return len(s.given), nil
}
func (s *scriptedEvents) datagram(i int) []byte { return s.given[i] }
func (s *scriptedEvents) listen(bool) error     { return s.err }
func (s *scriptedEvents) Close() error          { return nil }

// TestWatchOddDatagrams: several messages in one datagram, and what is no event, or none
// that can be read.
func TestWatchOddDatagrams(t *testing.T) {
	skipBigEndian(t)
	m := eventMessages(t)
	update, end := m[0].message, m[1].message
	long := slices.Clone(update)
	long[0]++
	broken := slices.Clone(update)
	broken[nlmsgHdrLen+nfgenmsgLen] = 2
	answer := append([]byte{20, 0, 0, 0, nlmsgError}, make([]byte, 15)...)
	w := &Watcher{source: &scriptedEvents{
		batches: [][][]byte{
			{answer, slices.Concat(update, end, answer, end)}, {}, {{}}, {update[:10]}, // too short to be anything
			{update, long}, {end}, {slices.Concat(broken, end)}, {make([]byte, nlmsgHdrLen)}, {end},
		},
		err: syscall.EIO,
	}}
	const updated, ended = "UPDATE SYN_RECV 0", "DESTROY TIME_WAIT 11"
	for i, want := range []struct {
		kinds string
		err   error
	}{
		{updated + ", " + ended + ", " + ended, nil},
		{updated, errShort}, // and long
		{ended, nil},
		{"", errShort}, // broken
		{ended, nil},   // in the same datagram
		{"", errShort},
		{ended, nil},
		{"", syscall.EIO},
	} {
		into := make([]Event, 10)
		n, err := w.Receive(into)
		if got := kinds(into[:n]); got != want.kinds || !errors.Is(err, want.err) {
			t.Fatalf("call %d: %q and %v, want %q and %v", i, got, err, want.kinds, want.err)
		}
	}
	if n, err := w.Receive(nil); n != 0 || err != nil {
		t.Errorf("no room for events: %d, %v", n, err)
	}
	if err := w.Pause(true); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "pause events") {
		t.Errorf("Pause: %v", err)
	}
}

// endlessEvents gives the same datagrams again and again.
type endlessEvents struct {
	scriptedEvents
	message []byte
}

func (e *endlessEvents) receive(bool) (int, error) { return maxEvents, nil }
func (e *endlessEvents) datagram(int) []byte       { return e.message }

func TestReceiveDoesNotAllocate(t *testing.T) {
	skipBigEndian(t)
	w := &Watcher{source: &endlessEvents{message: eventMessages(t)[1].message}}
	into := make([]Event, 100)
	if n := testing.AllocsPerRun(100, func() {
		if n, err := w.Receive(into); n == 0 || err != nil {
			t.Error(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
