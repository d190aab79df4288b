package traffic

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestQueue: events come by their times, and those of the same time in the order in which they were added, also while others are
// added at any time from the last one on.
func TestQueue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, spread := range []int64{1, 3, 1000, 1e10, int64(longest)} {
		var q queue
		var want []timed // sorted
		now, added := int64(0), uint32(0)
		add := func() {
			e := timed{at: now + r.Int64N(spread), tag: added}
			added++
			q.add(e.at, e.kind, e.id, e.tag)
			i, _ := slices.BinarySearchFunc(want, e.at+1, func(e timed, at int64) int { return cmp.Compare(e.at, at) })
			want = slices.Insert(want, i, e)
		}
		for step := range 5000 {
			for range r.IntN(3) {
				if step < 4000 {
					add()
				}
			}
			if len(want) == 0 {
				if q.next() != never {
					t.Fatalf("spread %d: an event at %d is left", spread, q.next())
				}
				continue
			}
			if q.next() != want[0].at {
				t.Fatalf("spread %d: the next is at %d, want %d", spread, q.next(), want[0].at)
			}
			if r.IntN(4) == 0 { // an arrival before it
				now += r.Int64N(want[0].at - now + 1)
				add()
			}
			if e := q.take(); e.at != want[0].at || e.tag != want[0].tag {
				t.Fatalf("spread %d: took %+v, want %+v", spread, e, want[0])
			}
			now, want = want[0].at, want[1:]
		}
	}
}
