package conntrack

import (
	"math/rand/v2"
	"slices"
	"testing"
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
