package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSort: as the library sorts.
func TestSort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 100, 5000, 20_000} {
		for _, most := range []int64{1, 1000, 1 << 22, 1 << 40, math.MaxInt64} {
			values := make([]int64, n)
			for i := range values {
				values[i] = r.Int64N(most)
			}
			if n > 10 {
				values[7] = -values[7] // rare, and sorted all the same
			}
			want := slices.Sorted(slices.Values(values))
			if Sort(values); !slices.Equal(values, want) {
				t.Errorf("%d values below %d are not sorted", n, most)
			}
			slices.Reverse(values)
			for i := range values {
				values[i] = max(values[i], 0)
			}
			want = slices.Sorted(slices.Values(values))
			if Sort(values); !slices.Equal(values, want) {
				t.Errorf("%d values of 0 to %d are not sorted", n, most)
			}
		}
	}
}
