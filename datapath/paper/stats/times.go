package stats

import (
	"math/bits"
	"slices"
)

// Times are times of 0 or more in nanoseconds. Their memory does not grow with their number: the first 1,024 are kept as they
// are; if there are more, those whose first 12 binary digits are the same, which differ by less than 1/2048 (0.05 %), are counted together. The zero
// value has none.
type Times struct {
	n   int
	few []int64 // all, as long as they are few
	// pages[0] has the times below 1<<digits, and pages[k] those with k digits more: each its own bucket for each of the first
	// digits. They are made when a time is added, and remain; nil: none was.
	pages [64 - digits][]bucket
}

const (
	mostFew = 1 << 10
	digits  = 12
	half    = 1 << (digits - 1)
)

// bucket are times that are counted together.
type bucket struct {
	n     uint64
	above uint64 // the sum of what they exceed the least possible one by
}

// Add adds a time; one below 0 counts as 0.
func (t *Times) Add(nanoseconds int64) {
	v := uint64(max(nanoseconds, 0))
	if t.n++; t.n <= mostFew {
		t.few = append(t.few, int64(v))
		return
	}
	for _, v := range t.few {
		t.count(uint64(v))
	}
	t.few = t.few[:0]
	t.count(v)
}

func (t *Times) count(v uint64) {
	page := max(bits.Len64(v)-digits, 0)
	if t.pages[page] == nil {
		t.pages[page] = make([]bucket, 2*half)
	}
	b := &t.pages[page][v>>page]
	b.n++
	b.above += v & (1<<page - 1)
}

// AddAll adds the times of another one.
func (t *Times) AddAll(other *Times) {
	for _, v := range other.few {
		t.Add(v)
	}
	if other.n <= mostFew {
		return
	}
	for _, v := range t.few {
		t.count(uint64(v))
	}
	t.n, t.few = t.n+other.n, t.few[:0]
	for page, buckets := range other.pages {
		if buckets != nil && t.pages[page] == nil {
			t.pages[page] = make([]bucket, len(buckets))
		}
		for i, b := range buckets {
			into := &t.pages[page][i]
			into.n, into.above = into.n+b.n, into.above+b.above
		}
	}
}

// N is the number of times.
func (t *Times) N() int { return t.n }

// Percentile is [Percentile] of the times: of more than 1,024 the mean of those that are counted together with it.
func (t *Times) Percentile(permille int) int64 {
	if t.n <= mostFew {
		slices.Sort(t.few)
		return Percentile(t.few, permille)
	}
	left := uint64(rank(t.n, permille))
	for page, buckets := range t.pages {
		for i, b := range buckets {
			if left <= b.n {
				return int64(i<<page) + int64(b.above/b.n)
			}
			left -= b.n
		}
	}
	return 0 // not reached: the buckets have all times
}

// Sum is the sum of all times. It is exact up to 2 to the power of 53 nanoseconds, 104 days.
func (t *Times) Sum() float64 {
	high, low := uint64(0), uint64(0)
	add := func(h, l uint64) {
		var carry uint64
		low, carry = bits.Add64(low, l, 0)
		high += h + carry
	}
	for _, v := range t.few {
		add(0, uint64(v))
	}
	for page, buckets := range t.pages {
		for i, b := range buckets {
			add(bits.Mul64(uint64(i)<<page, b.n))
			add(0, b.above)
		}
	}
	return float64(high)*(1<<64) + float64(low)
}

// Reset removes all times, and keeps the memory.
func (t *Times) Reset() {
	if t.n > mostFew {
		for _, buckets := range t.pages {
			clear(buckets)
		}
	}
	t.n, t.few = 0, t.few[:0]
}
