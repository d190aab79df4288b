package conntrack

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func kinds(events []Event) string {
	var all []string
	for _, e := range events {
		all = append(all, fmt.Sprintf("%v %v %d", e.Kind, e.State.TCP, e.PortID))
	}
	return strings.Join(all, ", ")
}

// scriptedEvents are received as they stand there; then comes the error.
type scriptedEvents struct {
	batches [][][]byte
	given   [][]byte
	err     error
}

func (s *scriptedEvents) Receive(bool) (int, error) {
	if len(s.batches) == 0 {
		return 0, s.err
	}
	s.given, s.batches = s.batches[0], s.batches[1:]
	return len(s.given), nil
}
func (s *scriptedEvents) Datagram(i int) []byte { return s.given[i] }
func (s *scriptedEvents) Listen(bool) error     { return s.err }
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
	w := NewWatcher(&scriptedEvents{
		batches: [][][]byte{
			{answer, slices.Concat(update, end, answer, end)}, {}, {{}}, {update[:10]}, // too short to be anything
			{update, long}, {end}, {slices.Concat(broken, end)}, {make([]byte, nlmsgHdrLen)}, {end},
		},
		err: syscall.EIO,
	})
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
		t.Errorf("overrun: %d, %v", n, err)
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

func (e *endlessEvents) Receive(bool) (int, error) { return maxEvents, nil }
func (e *endlessEvents) Datagram(int) []byte       { return e.message }

func TestReceiveDoesNotAllocate(t *testing.T) {
	skipBigEndian(t)
	w := NewWatcher(&endlessEvents{message: eventMessages(t)[1].message})
	into := make([]Event, 100)
	if n := testing.AllocsPerRun(100, func() {
		if n, err := w.Receive(into); n == 0 || err != nil {
			t.Error(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
