package stats

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
