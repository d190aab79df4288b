package conntrack_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/conntrack/conntracktest"
)

// clock is a time that tests set.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// bounded is a fake table of a size that evicts entries, what it remembers, and the clock it
// goes by.
func bounded(size, remembered int) (*conntracktest.Fake, *conntrack.Table, *conntrack.Unanswered, *clock) {
	f, c := conntracktest.NewFake(), &clock{time.Unix(1_800_000_000, 0)}
	f.Max = size
	table, u := f.Table(), conntrack.NewUnansweredWith(remembered, c.Now)
	table.MakeRoom(u)
	return f, table, u, c
}

// client is the n-th of many sources.
func client(n int) string { return fmt.Sprintf("10.%d.%d.%d:40000", 1+n>>16, n>>8&255, n&255) }

// establishAll establishes an entry from each of the sources and fails if one is refused.
func establishAll(t *testing.T, table *conntrack.Table, entries ...conntrack.Entry) {
	t.Helper()
	results := make([]conntrack.Result, len(entries))
	table.Establish(entries, results)
	for i, r := range results {
		if r.Outcome != conntrack.Created {
			t.Fatalf("%v: outcome %v, error %v", entries[i].Tuple, r.Outcome, r.Err)
		}
	}
}

// TestFullTableMakesRoom: in a full table a new entry takes the place of an unanswered one, the
// oldest first; an answered one stays while there is one without an answer, an assured one for
// ever.
func TestFullTableMakesRoom(t *testing.T) {
	f, table, u, c := bounded(100, 1000)
	entries := make([]conntrack.Entry, 100)
	for i := range entries {
		entries[i] = service([]uint8{protoTCP, protoUDP}[i%2], client(i))
	}
	establishAll(t, table, entries...)
	for i := range 40 {
		f.Change(entries[i].Tuple, func(s *conntrack.State) {
			s.Status |= conntrack.StatusSeenReply
			if i < 20 {
				s.Status |= conntrack.StatusAssured
			}
		})
	}
	c.advance(conntrack.Youngest)
	for i := range 60 / conntrack.Evictions * conntrack.Evictions {
		establishAll(t, table, service(protoUDP, client(1000+i)))
	}
	for i, e := range entries[:40] {
		if _, ok := f.Get(e.Tuple); !ok {
			t.Errorf("entry %d was answered, and is gone while there were others without an answer", i)
		}
	}
	// These are assured, and so those that are not come to an end, answered or not.
	c.advance(conntrack.Youngest)
	for i := range 80 {
		e := service(protoUDP, client(2000+i))
		establishAll(t, table, e)
		f.Change(e.Tuple, func(s *conntrack.State) { s.Status |= conntrack.StatusSeenReply | conntrack.StatusAssured })
	}
	for i, e := range entries {
		if _, ok := f.Get(e.Tuple); ok != (i < 20) {
			t.Errorf("entry %d is there: %v, want %v", i, ok, i < 20)
		}
	}
	if full, _ := u.Evicted(); full != 128 || f.Len() != 100 {
		t.Errorf("%d evictions, %d entries", full, f.Len())
	}
}

// TestFullTableOfOthers: what is not ours, assured or too young is no reason to remove
// anything; the new entry is refused as before.
func TestFullTableOfOthers(t *testing.T) {
	f, table, _, c := bounded(10, 1000)
	for i := range 9 {
		establishAll(t, f.Table(), service(protoTCP, client(i)))
	}
	own := service(protoTCP, client(9))
	establishAll(t, table, own)
	refused := func(what string) {
		t.Helper()
		if r := establishOne(table, service(protoTCP, client(10))); r.Outcome != conntrack.Failed || !conntrack.IsFull(r.Err) || f.Len() != 10 {
			t.Errorf("%s: outcome %v, error %v, %d entries", what, r.Outcome, r.Err, f.Len())
		}
	}
	refused("young")
	f.Change(own.Tuple, func(s *conntrack.State) { s.Status |= conntrack.StatusSeenReply | conntrack.StatusAssured })
	c.advance(time.Minute)
	refused("assured")
	refused("forgotten")
}

// TestReplacedTupleIsNotEvicted: the tuple of a remembered entry may have become another
// connection's, in either direction.
func TestReplacedTupleIsNotEvicted(t *testing.T) {
	f, table, _, c := bounded(2, 1000)
	own := service(protoTCP, "10.244.1.2:40000")
	establishAll(t, table, own)
	f.End(own.Tuple)
	// A connection whose answers come with the tuple.
	other := conntrack.Entry{Tuple: own.Tuple.Inverse()}
	establishAll(t, f.Table(), other, service(protoTCP, client(1)))
	c.advance(time.Minute)
	if r := establishOne(table, service(protoTCP, client(2))); !conntrack.IsFull(r.Err) {
		t.Errorf("outcome %v, error %v, want a full table", r.Outcome, r.Err)
	}
	if _, ok := f.Get(other.Tuple); !ok {
		t.Error("another connection was removed")
	}
}

// TestSourceWithMostMakesRoom: one source cannot push out the entries of others.
func TestSourceWithMostMakesRoom(t *testing.T) {
	f, table, _, c := bounded(60, 1000)
	var few []conntrack.Entry
	for i := range 10 {
		few = append(few, service(protoUDP, client(i)))
	}
	establishAll(t, table, few...)
	many := func(i int) conntrack.Entry { return service(protoUDP, fmt.Sprintf("10.244.1.9:%d", 1000+i)) }
	for i := range 1000 {
		establishAll(t, table, many(i))
		c.advance(conntrack.Youngest / 16)
	}
	for _, e := range few {
		if _, ok := f.Get(e.Tuple); !ok {
			t.Errorf("%v was pushed out by another source", e.Tuple)
		}
	}
}

// TestCrowdedTableForgetsUnanswered: above half of the limit, TCP entries without an answer
// go after two seconds; so the table never gets full. UDP entries and answered ones stay.
func TestCrowdedTableForgetsUnanswered(t *testing.T) {
	const size = 4000
	f, table, u, c := bounded(size, 1<<16)
	kept := []conntrack.Entry{service(protoUDP, client(0)), service(protoTCP, client(1))}
	establishAll(t, table, kept...)
	f.Change(kept[1].Tuple, func(s *conntrack.State) { s.Status |= conntrack.StatusSeenReply })
	for i := range 20_000 {
		establishAll(t, table, service(protoTCP, client(2+i)))
		c.advance(4 * time.Millisecond) // 250 a second
		if i > 3*size/4 && f.Len() > size*3/4 {
			t.Fatalf("after %d entries the table has %d", i, f.Len())
		}
	}
	for _, e := range kept {
		if _, ok := f.Get(e.Tuple); !ok {
			t.Errorf("%v is gone", e.Tuple)
		}
	}
	full, crowded := u.Evicted()
	if full > 0 || crowded == 0 {
		t.Errorf("%d evicted from a full table, %d from a crowded one", full, crowded)
	}
}

// TestOneSourceHasABound: in a crowded table a source, be it an address or an IPv6 host with all
// the addresses of its /64, keeps perSource entries without an answer, and the youngest ones.
// Its answered entries and those of others stay.
func TestOneSourceHasABound(t *testing.T) {
	for name, tuple := range map[string]func(int) conntrack.Tuple{
		"IPv4": func(i int) conntrack.Tuple { return service(protoUDP, fmt.Sprintf("10.244.1.9:%d", 1000+i)).Tuple },
		"IPv6": func(i int) conntrack.Tuple {
			return tuple(protoUDP, fmt.Sprintf("[fd44::1:2:%x:3]:40000", i), "[fd96::1]:53")
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, table, _, c := bounded(20_000, 1<<16)
			for i := range 10_001 {
				establishAll(t, f.Table(), service(protoTCP, client(i))) // not ours
			}
			others := []conntrack.Entry{service(protoUDP, client(20_001)), {Tuple: conntrack.Tuple{
				Source: netip.MustParseAddrPort("[fd44:0:0:7::3]:40000"), Destination: netip.MustParseAddrPort("[fd96::1]:53"), Protocol: protoUDP}}}
			establishAll(t, table, others...)
			const flows, everyAnswered = 8000, 1000
			own := func() (n int) {
				for i := range flows {
					if s, ok := f.Get(tuple(i)); ok && s.Status&conntrack.StatusSeenReply == 0 {
						n++
					}
				}
				return n
			}
			for i := range flows {
				establishAll(t, table, conntrack.Entry{Tuple: tuple(i)})
				if i%everyAnswered == 0 {
					f.Change(tuple(i), func(s *conntrack.State) { s.Status |= conntrack.StatusSeenReply })
				}
				c.advance(time.Millisecond)
			}
			// In 250 ms, 250 come that are too young to go.
			if n := own(); n < conntrack.PerSource-10 || n > conntrack.PerSource+int(conntrack.Youngest/time.Millisecond)+10 {
				t.Errorf("%d entries of the source, want about %d", n, conntrack.PerSource)
			}
			if _, ok := f.Get(tuple(flows - 1)); !ok {
				t.Error("the youngest entry is gone")
			}
			for i := 0; i < flows; i += everyAnswered {
				if _, ok := f.Get(tuple(i)); !ok {
					t.Errorf("entry %d was answered, and is gone", i)
				}
			}
			for _, e := range others {
				if _, ok := f.Get(e.Tuple); !ok {
					t.Errorf("%v is gone", e.Tuple)
				}
			}
		})
	}
}

// TestUncrowdedTableIsLeftAlone: where there is room, the kernel's own timeouts count.
func TestUncrowdedTableIsLeftAlone(t *testing.T) {
	f, table, _, c := bounded(4000, 1<<16)
	for i := range 1999 {
		establishAll(t, table, service(protoTCP, client(i)))
		c.advance(time.Second)
	}
	if f.Len() != 1999 {
		t.Errorf("%d entries, want all 1999", f.Len())
	}
}

// TestRememberTable: what an earlier run or others have left makes room, assured entries stay.
func TestRememberTable(t *testing.T) {
	f, table, u, c := bounded(100, 1000)
	left := f.Table()
	assured := func(i int) bool { return i%3 == 0 }
	for i := range 100 {
		e := service(protoTCP, client(i))
		if i%2 == 0 {
			e.Mark = 0 // others'
		}
		establishAll(t, left, e)
		if assured(i) {
			f.Change(e.Tuple, func(s *conntrack.State) { s.Status |= conntrack.StatusSeenReply | conntrack.StatusAssured })
		}
	}
	starved := func() bool {
		select {
		case <-u.Starved():
			return true
		default:
			return false
		}
	}
	if r := establishOne(table, service(protoTCP, client(999))); !conntrack.IsFull(r.Err) || !starved() {
		t.Fatalf("outcome %v, error %v, want a full table that has nothing to evict", r.Outcome, r.Err)
	}
	if err := table.RememberTable(); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		if i == 40 && starved() {
			t.Error("starved, while there are entries to evict")
		}
		establishAll(t, table, service(protoTCP, client(1000+i)))
		c.advance(conntrack.Youngest)
	}
	for i := range 100 {
		if _, ok := f.Get(service(protoTCP, client(i)).Tuple); assured(i) != ok {
			t.Errorf("entry %d, assured %v, is there: %v", i, assured(i), ok)
		}
	}
}

// TestRelieveDoesNotAllocate: new flows in a table with room make no garbage.
func TestRelieveDoesNotAllocate(t *testing.T) {
	table := conntrack.NewTable(silentTransport{}, new(conntrack.Locks))
	table.MakeRoom(conntrack.NewUnanswered())
	entries, results := []conntrack.Entry{service(protoTCP, client(1))}, make([]conntrack.Result, 1)
	if n := testing.AllocsPerRun(1000, func() { table.Establish(entries, results) }); n > 0 {
		t.Errorf("%v allocations for a batch that found room", n)
	}
}
