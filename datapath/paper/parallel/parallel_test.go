package parallel

import (
	"slices"
	"testing"
)

// TestChunks: the parts are the whole list, each element once and in order.
func TestChunks(t *testing.T) {
	for _, n := range []int{0, 1, few, few + 1, 100_003} {
		var all []int
		for _, part := range Chunks(n, func(from, to int) (elements []int) {
			for i := from; i < to; i++ {
				elements = append(elements, i)
			}
			return elements
		}) {
			all = append(all, part...)
		}
		if len(all) != n || !slices.IsSorted(all) || n > 0 && all[n-1] != n-1 {
			t.Errorf("%d elements: %d", n, len(all))
		}
	}
}
