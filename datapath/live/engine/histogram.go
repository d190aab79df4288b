package engine

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// HistogramBuckets is how many buckets with a bound a Histogram has.
const HistogramBuckets = 24

// firstBound is the bound of the first bucket; each further one is twice as large, up
// to 0.84 s. A decision takes less than a microsecond, a full batch some hundred.
const firstBound = 100 * time.Nanosecond

// Histogram is a distribution of durations.
type Histogram struct {
	// Counts holds, by position, the durations longer than the bound before and not
	// longer than [HistogramBound] of the position; the last one those longer than all
	// bounds.
	Counts [HistogramBuckets + 1]uint64
	Sum    time.Duration // of all durations
}

// HistogramBound is the upper, inclusive bound of bucket i, from 0 to HistogramBuckets-1.
func HistogramBound(i int) time.Duration { return firstBound << i }

// Total is how many durations were counted.
func (h *Histogram) Total() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// histogram is the live form of a Histogram: one goroutine writes, any may read.
type histogram struct {
	counts [HistogramBuckets + 1]atomic.Uint64
	sum    atomic.Int64
}

// observe counts the duration n times.
func (h *histogram) observe(d time.Duration, n uint64) {
	d = max(d, 1)
	i := bits.Len64(uint64((d - 1) / firstBound))
	h.counts[min(i, HistogramBuckets)].Add(n)
	h.sum.Add(int64(d) * int64(n))
}

func (h *histogram) addTo(sum *Histogram) {
	for i := range h.counts {
		sum.Counts[i] += h.counts[i].Load()
	}
	sum.Sum += time.Duration(h.sum.Load())
}
