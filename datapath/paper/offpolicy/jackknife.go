package offpolicy

import (
	"math"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
)

// blocks is how many blocks of time the flows are divided into. Flows that are close in time have
// more in common than others, so blocks are left out as a whole.
const blocks = 20

// blockOf is the block of the i-th of n flows in the order of time: blocks differ by one flow at most.
func blockOf(i, n int) int { return i * min(blocks, n) / n }

// statistic is a number that is made of sums over flows.
type statistic struct {
	width int // how many sums
	// add adds the i-th flow to the sums.
	add func(i int, sums []float64)
	// of makes the number of the sums; NaN: they have none.
	of func(sums []float64) float64
}

// estimate gives the statistic of n flows in the order of time, with the interval of the block jackknife by
// Student's t. confidence is a share.
func (s *statistic) estimate(n int, confidence float64) Value {
	number := min(blocks, n)
	sums := make([][]float64, number)
	for b := range sums {
		sums[b] = make([]float64, s.width)
	}
	for i := range n {
		s.add(i, sums[blockOf(i, n)])
	}
	all := make([]float64, s.width)
	for _, block := range sums {
		for k, v := range block {
			all[k] += v
		}
	}
	v := Value{Value: known(s.of(all))}
	if v.Value == nil || number < 2 {
		return v
	}
	without := make([]float64, number)
	rest := make([]float64, s.width)
	for b, block := range sums {
		for k := range rest {
			rest[k] = all[k] - block[k]
		}
		without[b] = s.of(rest)
	}
	mean, squares := stats.Mean(without), 0.0
	for _, w := range without {
		squares += (w - mean) * (w - mean)
	}
	deviation := math.Sqrt(squares * float64(number-1) / float64(number))
	v.Half = known(stats.StudentTAt(confidence, number-1) * deviation)
	return v
}

// known is a number that JSON can have; nil: it is none.
func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
