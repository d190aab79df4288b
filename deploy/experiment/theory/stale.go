package theory

import "math"

// StaleTime is the mean time, in units of the mean service time, of a customer who joins the queue that is the shortest of d random ones
// by a board that is renewed each time that age has passed: the model of periodic updates of Mitzenmacher, How Useful Is Old
// Information?, IEEE Transactions on Parallel and Distributed Systems 11(1), 2000, with Poisson arrivals and exponential service, in the
// limit of many queues. age is in the same units, above 0, and load below 1.
//
// Between two renewals, queues with the same length on the board get the same arrivals, whatever they have become: each is a queue M/M/1
// that begins with that length. The lengths at the end are the next board. That is repeated until the boards are the same.
func StaleTime(d int, load, age float64) float64 {
	if d <= 1 {
		return MMcTime(1, load) // the board does not matter
	}
	levels := 64 + int(4*age)
	const perUnit = 16 // steps of the differential equations
	steps := max(int(math.Ceil(age*perUnit)), 4)
	h := age / float64(steps)
	board := make([]float64, levels) // the shares of queues by their length
	board[0] = 1
	before := 0.0
	for {
		next, number := make([]float64, levels), 0.0
		above := 1.0 // the share of queues that are at least as long
		for length, share := range board {
			longer := max(above-share, 0)
			if share > 1e-12 {
				// A customer sees nothing shorter in d draws, and of equals takes any: load·(above^d - longer^d) for all of them.
				rate := 0.0
				for k := range d {
					rate += float64(power(above, k) * power(longer, d-1-k))
				}
				p := make([]float64, levels)
				p[length] = 1
				number += float64(share * relax(p, load*rate, h, steps))
				for i := range next {
					next[i] += float64(share * p[i])
				}
			}
			above = longer
		}
		board = next
		if math.Abs(number-before) < 1e-7*min(age, 1)*number {
			return number / load
		}
		before = number
	}
}

// relax changes the probabilities of the lengths of a queue M/M/1 by a number of steps of time h, with the given rate of arrivals, and
// returns the mean length over that time.
func relax(p []float64, rate, h float64, steps int) float64 {
	slope := func(at, into []float64) {
		last := len(at) - 1
		for i := range at {
			v := 0.0
			if i > 0 {
				v += float64(rate*at[i-1]) - at[i]
			}
			if i < last {
				v += at[i+1] - float64(rate*at[i])
			}
			into[i] = v
		}
	}
	length := func() (mean float64) {
		for i, v := range p {
			mean += float64(float64(i) * v)
		}
		return mean
	}
	step := newRungeKutta(len(p), slope)
	sum, before := 0.0, length()
	for range steps {
		step(p, h)
		after := length()
		sum += (before + after) / 2
		before = after
	}
	return sum / float64(steps)
}
