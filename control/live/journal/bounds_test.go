package journal

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// many makes a journal with so many flows, none of which is over.
func many(t testing.TB, flows int) *bench {
	b := newBench(t, Config{Flows: flows})
	for n := range flows {
		b.decide(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(n >> 16), byte(n >> 8)}), uint16(n)<<8|1+uint16(n)&0xff), nil)
		b.reader.next = b.notes.next
	}
	if got := b.flows.len(); got != flows {
		t.Fatalf("%d flows, want %d", got, flows)
	}
	return b
}

// end ends the flows of these numbers.
func (b *bench) end(from, to uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := from; n < to; n++ {
		b.over(n, b.flows.at(n), b.now.UnixNano())
	}
}

// TestBlindLooksOnce: whether flows are open that began while events were off is found
// out by looking at each flow once, and at few while the workers have to wait.
func TestBlindLooksOnce(t *testing.T) {
	const flows = 16 * visitBatch
	b := many(t, flows)
	f := &follower{Journal: b.Journal}
	b.kernel.blindTo = b.flows.next
	b.end(1, flows) // all but the last one
	for pieces := 0; ; pieces++ {
		before := max(f.blindFrom, 1)
		anyUnobserved, more := f.findUnobserved()
		if visited := f.blindFrom - before; visited > visitBatch {
			t.Fatalf("%d flows are looked at at once, want %d at most", visited, visitBatch)
		}
		if !more {
			if !anyUnobserved || pieces < flows/visitBatch-1 {
				t.Errorf("unobserved %v after %d pieces", anyUnobserved, pieces)
			}
			break
		}
	}
	at := f.blindFrom
	if !f.anyUnobserved() || f.blindFrom != at || at != flows {
		t.Errorf("the second time, it looks at %d flows", f.blindFrom-at)
	}
	b.end(flows, flows+1)
	if f.anyUnobserved() {
		t.Error("anyUnobserved, and all are over")
	}
	if n := testing.AllocsPerRun(100, func() { f.anyUnobserved() }); n > 0 {
		t.Errorf("%g allocations", n)
	}
}

// BenchmarkBlind is what a tick of watch costs after a rush of a million flows.
func BenchmarkBlind(b *testing.B) {
	j := many(b, 1<<20)
	f := &follower{Journal: j.Journal}
	j.kernel.blindTo = j.flows.next
	j.end(1, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		f.anyUnobserved()
	}
	b.ReportMetric(float64(f.blindFrom-1)/float64(b.N), "visits/op")
}

// TestIncompleteWithoutLooking: that something may be missed of all flows is noted without
// looking at any, and counts for those that were open then.
func TestIncompleteWithoutLooking(t *testing.T) {
	b := newBench(t, Config{})
	source := func(n uint16) netip.AddrPort { return netip.AddrPortFrom(client.Addr(), 1000+n) }
	for n := range uint16(3) {
		b.decide(source(n), nil)
	}
	b.end(1, 2)
	b.lostEvents()
	b.decide(source(3), nil)
	incomplete := func() (numbers []uint64) {
		flows, _ := b.Last(10, time.Time{}, all)
		for i := range flows {
			if flows[i].Record(nil, false).Life.Incomplete {
				numbers = append(numbers, flows[i].Number)
			}
		}
		return numbers
	}
	// The fourth came while events were not all known: so it is, too.
	if got := incomplete(); !slices.Equal(got, []uint64{2, 3, 4}) {
		t.Errorf("incomplete: flows %d, want 2, 3 and 4", got)
	}
	for _, e := range []uint64{1, 2, 3} {
		if b.flows.at(e).life.incomplete {
			t.Errorf("flow %d was touched", e)
		}
	}
	b.end(2, 3) // is over now, and was incomplete before
	if got := incomplete(); !slices.Equal(got, []uint64{2, 3, 4}) {
		t.Errorf("after an end: flows %d, want 2, 3 and 4", got)
	}
}

// lostEvents is a follower's.
func (b *bench) lostEvents() { (&follower{Journal: b.Journal}).lostEvents() }

// TestMissingIsBounded: flows that are gone from the connection table end in pieces.
func TestMissingIsBounded(t *testing.T) {
	b := many(t, 3*visitBatch)
	end := b.flows.next
	for next, want := uint64(0), uint64(1+visitBatch); next < end; want += visitBatch {
		next = b.missingFrom(next, end, b.now.Add(time.Second), 1)
		if next != want || b.open != int(end-want) {
			t.Fatalf("next is %d, %d are open; want %d, %d", next, b.open, want, end-want)
		}
	}
}

// TestReadingIsBounded: whatever a journal remembers, it is kept from changing for a bounded
// number of flows or events at a time.
func TestReadingIsBounded(t *testing.T) {
	const flows = 8 * visitBatch
	b := many(t, flows)
	// While the first is visited, a writer begins to wait. It counts how many are visited until it has the lock.
	var visits, waited int
	var writer sync.WaitGroup
	match := func(*flow.Flow, flow.State, flow.Event) bool {
		if visits++; visits == 1 {
			writer.Go(func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				waited = visits
			})
			for b.mu.TryRLock() { // until the writer waits
				b.mu.RUnlock()
				runtime.Gosched()
			}
		}
		return visits%1000 == 0
	}
	check := func(what string, want int) {
		t.Helper()
		if writer.Wait(); visits != want || waited > visitBatch {
			t.Errorf("%s: %d visits, %d of them at once; want %d, %d at most", what, visits, waited, want, visitBatch)
		}
		visits = 0
	}
	into := make([]Entry, 100)
	p := b.NewPast(flows, time.Time{}, match)
	check("the way back", flows)
	if n := p.Read(into); n != flows/1000 {
		t.Errorf("%d flows, want %d", n, flows/1000)
	}
	check("flows", flows)
	(&Reader{journal: b.Journal, next: b.notes.oldest}).Read(into, match)
	check("events", b.notes.len())
}

// TestPastAndEvents: each event is read once, whether it came before its flow was read, between
// two pieces, or after; and flows that made room meanwhile are missed.
func TestPastAndEvents(t *testing.T) {
	b := newBench(t, Config{})
	source := func(n uint16) netip.AddrPort { return netip.AddrPortFrom(client.Addr(), 1000+n) }
	answer := func(n uint16) {
		b.event(source(n), conntrack.Updated, func(e *conntrack.Event) { e.State.TCP, e.State.Status = conntrack.TCPSynRecv, replied })
	}
	for n := range uint16(6) {
		b.decide(source(n), nil)
	}
	p := b.NewPast(5, time.Time{}, all) // not the first
	into := make([]Entry, 2)
	var got []string
	note := func(e *Entry) {
		r := e.Record(nil, false)
		got = append(got, fmt.Sprintf("%d %s %s", e.Number, r.Event, r.Life.State))
	}
	answer(1) // before it is read
	for n := 2; n == len(into); {
		n = p.Read(into)
		for i := range n {
			note(&into[i])
		}
		if into[0].Number == 2 {
			answer(0) // is not among them
			answer(2) // was read
			answer(4) // is yet to be read
			b.decide(source(6), nil)
		}
	}
	answer(5)
	r := p.Reader()
	events := make([]Entry, 20)
	n, missed := r.Read(events, all)
	for i := range n {
		note(&events[i])
	}
	want := []string{
		"2  answered", "3  decided", "4  decided", "5  answered", "6  decided",
		"1 answered answered", "3 answered answered", "7 decided decided", "6 answered answered",
	}
	if !slices.Equal(got, want) || missed != 0 {
		t.Errorf("%d missed\ngot  %q\nwant %q", missed, got, want)
	}
	if r.past != nil {
		t.Errorf("marks are kept: %v", r.past)
	}
}

// TestPastThatMakesRoom: flows that are forgotten while they are read are left out, and what
// happened to them is missed, not passed over.
func TestPastThatMakesRoom(t *testing.T) {
	b := many(t, fewFlows)
	p := b.NewPast(fewFlows, time.Time{}, all)
	b.event(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, 0}), 1), conntrack.Updated, func(e *conntrack.Event) { e.State.TCP, e.State.Status = conntrack.TCPSynRecv, replied })
	for n := range uint16(10) {
		b.decide(netip.AddrPortFrom(client.Addr(), 1000+n), nil)
	}
	into := make([]Entry, 2*fewFlows)
	if n := p.Read(into); n != fewFlows-10 || into[0].Number != 11 {
		t.Errorf("%d flows from %d, want %d from 11", n, into[0].Number, fewFlows-10)
	}
	if n, missed := p.Reader().Read(into, all); n != 10 || missed != 1 {
		t.Errorf("%d events, %d missed; want 10 and 1", n, missed)
	}
}
