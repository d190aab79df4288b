package stats

import (
	"math/bits"
	"slices"
)

// Sort sorts values of 0 or more, as [slices.Sort] does, but by radix: that is faster for the millions of times of a run.
func Sort(values []int64) {
	const few, digit = 1 << 12, 11 // bits
	if len(values) < few || slices.Min(values) < 0 {
		slices.Sort(values)
		return
	}
	from, to := values, make([]int64, len(values))
	width := bits.Len64(uint64(slices.Max(values)))
	for shift := 0; shift < width; shift += digit {
		var at [1 << digit]int
		for _, v := range from {
			at[v>>shift&(1<<digit-1)]++
		}
		sum := 0
		for i, n := range at {
			at[i], sum = sum, sum+n
		}
		for _, v := range from {
			d := v >> shift & (1<<digit - 1)
			to[at[d]] = v
			at[d]++
		}
		from, to = to, from
	}
	if &from[0] != &values[0] {
		copy(values, from)
	}
}
