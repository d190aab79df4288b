package offpolicy

import (
	"cmp"
	"math"
	"slices"
)

// significant is the probability below which a dependence is none by chance, divided by the number of services: of many,
// one has a small probability by chance.
const significant = 0.01

// dependence is the rank correlation of connect latency with the open connections of the endpoint. Ranks are those
// within an endpoint: that a slow endpoint has more of them is no effect of load. nil: it is not known.
func (s *service) dependence() *Dependence {
	open := make([][]float64, len(s.endpoints))
	took := make([][]float64, len(s.endpoints))
	n := 0
	for _, c := range s.flows {
		if c.latency > 0 {
			open[c.endpoint] = append(open[c.endpoint], float64(c.open))
			took[c.endpoint] = append(took[c.endpoint], c.latency)
			n++
		}
	}
	// Without a dependence the coefficient of n flows has the mean 0 and the variance 1/(n-1).
	sum, weights := 0.0, 0.0
	for e := range open {
		if r, ok := spearman(open[e], took[e]); ok {
			w := float64(len(open[e]) - 1)
			sum += r * w
			weights += w
		}
	}
	if weights == 0 {
		return nil
	}
	r := sum / weights
	return &Dependence{Correlation: r, P: math.Erfc(math.Abs(r) * math.Sqrt(weights/2)), Flows: n}
}

// spearman is the rank correlation of pairs. It reports false if all values of one kind are equal.
func spearman(a, b []float64) (float64, bool) {
	a, b = ranks(a), ranks(b)
	mean := float64(len(a)-1) / 2
	var ab, aa, bb float64
	for i := range a {
		x, y := a[i]-mean, b[i]-mean
		ab += x * y
		aa += x * x
		bb += y * y
	}
	if aa == 0 || bb == 0 {
		return 0, false
	}
	return ab / math.Sqrt(aa*bb), true
}

// ranks are the ranks of values, from 0; equal values share their mean rank.
func ranks(values []float64) []float64 {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(values[i], values[j]) })
	ranks := make([]float64, len(values))
	for from := 0; from < len(order); {
		to := from
		for to < len(order) && values[order[to]] == values[order[from]] {
			to++
		}
		for _, i := range order[from:to] {
			ranks[i] = float64(from+to-1) / 2
		}
		from = to
	}
	return ranks
}
