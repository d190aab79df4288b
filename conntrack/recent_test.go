package conntrack

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestRecent compares random operations with a plain list.
func TestRecent(t *testing.T) {
	const size = 16
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := newRecent(size)
		var want []written // without those that were taken
		for step := range int64(300) {
			w := written{source: [16]byte{byte(random.IntN(4))}, at: step}
			switch random.IntN(5) {
			case 0, 1:
				if r.count == size {
					want = want[1:]
				}
				r.push(w)
				want = append(want, w)
			case 2:
				if room := r.count < size; r.pushOldest(w) != room {
					t.Fatalf("seed %d, step %d: pushOldest in a buffer of %d", seed, step, r.count)
				} else if room {
					want = slices.Insert(want, 0, w)
				}
			case 3:
				r.pop()
				want = want[min(1, len(want)):]
			case 4:
				i := slices.IndexFunc(want, func(o written) bool { return o.source == w.source })
				got, has := r.oldestOf(sourceOf(w.source))
				if i < 0 {
					if got != nil {
						t.Fatalf("seed %d, step %d: an entry of a source that has none", seed, step)
					}
					break
				}
				n := 0
				for _, o := range want {
					if o.source == w.source {
						n++
					}
				}
				if got == nil || *got != want[i] || has != n {
					t.Fatalf("seed %d, step %d: %v of %d, want %v of %d", seed, step, got, has, want[i], n)
				}
				r.popOf(sourceOf(w.source))
				want = slices.Delete(want, i, i+1)
			}
			if got := r.oldest(); (got == nil) != (len(want) == 0) || got != nil && *got != want[0] {
				t.Fatalf("seed %d, step %d: the oldest is %v, want %v", seed, step, got, want)
			}
		}
		for len(want) > 0 {
			if got := r.oldest(); got == nil || *got != want[0] {
				t.Fatalf("seed %d: the oldest is %v, want %v", seed, got, want[0])
			}
			r.pop()
			want = want[1:]
		}
		if r.oldest() != nil || r.count != 0 || len(r.sources) != 0 {
			t.Fatalf("seed %d: %d slots in use and %d sources in an empty buffer", seed, r.count, len(r.sources))
		}
	}
}

func TestUnansweredRingOverflows(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	u := newUnanswered(8, func() time.Time { return now })
	at := func(i int) Tuple { return tuple(protoTCP, fmt.Sprintf("10.244.1.2:%d", 40000+i), "10.96.0.10:53") }
	for i := range 20 {
		u.wrote([]Entry{{Tuple: at(i)}}, []Result{{Outcome: Created}})
	}
	var into [32]written
	if n := u.takeOldest(into[:5], 0); n != 5 || into[0].tuple() != at(12) {
		t.Errorf("%d taken, the first is %v", n, into[0].tuple())
	}
	if n := u.takeOldest(into[:], 0); n != 3 || into[2].tuple() != at(19) {
		t.Errorf("%d left, the last is %v", n, into[2].tuple())
	}
	if n := u.takeOldest(into[:], 0); n != 0 {
		t.Errorf("%d in an empty ring", n)
	}
	six := tuple(protoUDP, "[fd44::2]:5", "[fd96::1]:53")
	if w := writtenOf(six, 3, 0); w.tuple() != six || w.zone != 3 {
		t.Errorf("%v became %v", six, w.tuple())
	}
}
