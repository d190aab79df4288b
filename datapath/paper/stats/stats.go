// Package stats has the statistics of experiments: percentiles, measures of balance, confidence
// intervals. Results have the same bits on all machines (see package exact).
package stats

import (
	"math"
	"slices"
)

// Percentile is the value at a rank of sorted values: the smallest one that is at least as large as
// the share permille/1000 of all (nearest rank). It is exact; 0 of no values.
func Percentile(sorted []int64, permille int) int64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[rank(len(sorted), permille)-1]
}

// rank is the rank of a percentile among n values, from 1 to n.
func rank(n, permille int) int { return min(max((permille*n+999)/1000, 1), n) }

// Mean is the arithmetic mean; 0 of no values.
func Mean(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Jain is the index of Jain, Chiu and Hawe (A Quantitative Measure of Fairness, DEC TR-301, 1984) of
// loads: 1 if all are equal, 1/n if one of n has all. It is 1 without load.
func Jain(loads []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, l := range loads {
		sum += l
		squares += float64(l * l)
	}
	if squares == 0 {
		return 1
	}
	return float64(sum*sum) / float64(float64(len(loads))*squares)
}

// MaxOverMean is the largest load divided by the mean of all; 1 without load.
func MaxOverMean(loads []float64) float64 {
	mean := Mean(loads)
	if mean == 0 {
		return 1
	}
	return slices.Max(loads) / mean
}

// Interval is a mean of independent values with its confidence interval of 95%: [Mean-Half, Mean+Half].
type Interval struct {
	Mean float64 `json:"mean"`
	// Half is half the interval's width, by Student's t distribution; 0 if N is 1, which leaves it
	// unknown.
	Half float64 `json:"half"`
	N    int     `json:"n"`
}

// Confidence returns the mean of values with its confidence interval.
func Confidence(values []float64) Interval {
	i := Interval{Mean: Mean(values), N: len(values)}
	if i.N < 2 {
		return i
	}
	squares := 0.0
	for _, v := range values {
		d := v - i.Mean
		squares += float64(d * d)
	}
	deviation := math.Sqrt(squares / float64(i.N-1))
	i.Half = StudentT(i.N-1) * deviation / math.Sqrt(float64(i.N))
	return i
}

// Correlation is that of values with the ones that follow them (lag 1); 0 if all are equal.
func Correlation(values []float64) float64 {
	mean := Mean(values)
	both, squares := 0.0, 0.0
	for i, v := range values {
		squares += float64((v - mean) * (v - mean))
		if i > 0 {
			both += float64((values[i-1] - mean) * (v - mean))
		}
	}
	if squares == 0 {
		return 0
	}
	return both / squares
}

// studentT are the quantiles of Student's t distribution at 0.975, for 1 degree of freedom and more.
var studentT = [...]float64{
	12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
	2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
	2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
}

// StudentT is the quantile of Student's t distribution at 0.975 for at least 1 degree of freedom: half
// the width of a confidence interval of 95%, in standard errors. The error is below 0.0001.
func StudentT(degrees int) float64 {
	if degrees <= len(studentT) {
		return studentT[max(degrees, 1)-1]
	}
	// Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5
	const (
		z  = 1.959963984540054
		g1 = (z*z*z + z) / 4
		g2 = (5*z*z*z*z*z + 16*z*z*z + 3*z) / 96
	)
	n := float64(degrees)
	return z + g1/n + g2/float64(n*n)
}

// StudentTAt is the quantile of Student's t distribution that holds the share confidence, above 0 and below 1, of it
// between itself and its opposite, for at least 1 degree of freedom. Its last bits depend on the machine.
func StudentTAt(confidence float64, degrees int) float64 {
	low, high := 0.0, math.Pi/2
	for range 64 {
		if angle := (low + high) / 2; studentBetween(angle, degrees) < confidence {
			low = angle
		} else {
			high = angle
		}
	}
	return math.Sqrt(float64(degrees)) * math.Tan(low)
}

// studentBetween is the share of the distribution between t and -t, where angle is atan(t/sqrt(degrees)):
// Abramowitz and Stegun, 26.7.3 and 26.7.4.
func studentBetween(angle float64, degrees int) float64 {
	sin, cos := math.Sincos(angle)
	sum, term, first := 0.0, 1.0, 2
	if degrees%2 == 1 {
		term, first = cos, 3
	}
	for k := first; k <= degrees; k += 2 {
		sum += term
		term *= cos * cos * float64(k-1) / float64(k)
	}
	if degrees%2 == 1 {
		return 2 / math.Pi * (angle + sin*sum)
	}
	return sin * sum
}

// MSERBatch is the size of the batches of [MSER5].
const MSERBatch = 5

// MSER5 is how many values at the start of a series belong to the warm-up, by the rule MSER-5: White, An Effective Truncation
// Heuristic for Bias Reduction in Simulation Output, Simulation 69(6), 1997; White, Cobb and Spratt, A Comparison of Five
// Steady-State Truncation Heuristics for Simulation, Winter Simulation Conference 2000. Of the means of batches of five values
// it cuts so many that the standard error of the mean of the rest is smallest.
//
// The cut is in the first half of the series. short: the standard error still falls there, so that the series is too short to
// tell where the warm-up ends. The result has the same bits on all machines.
func MSER5(values []float64) (cut int, short bool) {
	n := len(values) / MSERBatch
	if n < 2 {
		return 0, true
	}
	batch := make([]float64, n)
	for i := range batch {
		batch[i] = Mean(values[i*MSERBatch : (i+1)*MSERBatch])
	}
	// From the end on: mean and sum of squared differences from it, by Welford's method.
	mean, squares, count := 0.0, 0.0, 0.0
	best, at := -1.0, 0
	for d := n - 1; d >= 0; d-- {
		count++
		difference := batch[d] - mean
		mean += difference / count
		squares += float64(difference * (batch[d] - mean))
		if d > n/2 {
			continue
		}
		if e := squares / float64(count*count); best < 0 || e <= best {
			best, at = e, d
		}
	}
	return at * MSERBatch, at == n/2
}
