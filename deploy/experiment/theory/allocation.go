package theory

import (
	"math"
	"math/rand/v2"

	"github.com/nfqproxy/nfqproxy/datapath/balance/exact"
)

// BinTails are the shares of bins with at least 0, 1, 2 and more balls, after balls for each bin have been put one after the other
// into the emptiest of d bins that are chosen at random, in the limit of many bins: Mitzenmacher, Studying Balanced Allocations with
// Differential Equations, Combinatorics, Probability and Computing 8, 1999, section 2. The shares s solve
// ds_i/dt = s_(i-1)^d - s_i^d, where t is the number of balls for each bin. With one choice they are those of a Poisson distribution.
func BinTails(d int, balls float64) []float64 {
	const perBall = 256 // steps
	loads := 64 + 4*int(balls)
	s := make([]float64, loads)
	s[0] = 1
	steps := max(int(math.Ceil(balls*perBall)), 1)
	h := balls / float64(steps)
	slope := func(at, into []float64) {
		above := 1.0
		for i := 1; i < len(at); i++ {
			own := power(at[i], d)
			into[i] = above - own
			above = own
		}
	}
	step := newRungeKutta(loads, slope)
	for range steps {
		step(s, h)
	}
	return s
}

// newRungeKutta returns a step of Runge and Kutta's method of order 4 for differential equations: it changes values by those of a time h.
func newRungeKutta(n int, slope func(at, into []float64)) func(s []float64, h float64) {
	k1, k2, k3, k4, at := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	return func(s []float64, h float64) {
		move := func(k []float64, by float64) {
			for i := range at {
				at[i] = s[i] + float64(by*k[i])
			}
		}
		slope(s, k1)
		move(k1, h/2)
		slope(at, k2)
		move(k2, h/2)
		slope(at, k3)
		move(k3, h)
		slope(at, k4)
		for i := range s {
			s[i] += float64(h / 6 * (k1[i] + float64(2*k2[i]) + float64(2*k3[i]) + k4[i]))
		}
	}
}

// FullestBin is the mean load of the fullest of n bins, with a number of balls for each bin and d choices. The bins with at least k
// balls are few for the k that matter, so that their number is close to a Poisson distribution with the mean n times [BinTails]. For
// one choice and a ball for each bin it agrees with Gonnet, Expected Length of the Longest Probe Sequence in Hash Code Searching,
// Journal of the ACM 28(2), 1981.
func FullestBin(n, d int, balls float64) float64 {
	mean := 0.0
	for _, share := range BinTails(d, balls)[1:] {
		mean += 1 - exact.Exp(-float64(n)*max(share, 0))
	}
	return mean
}

// RingMaxOverMean is the largest share of a ring of consistent hashing that one of n servers with one point each has, in comparison
// with the mean: the longest of n random arcs, 1 + 1/2 + ... + 1/n (Holst, On the Lengths of the Pieces of a Stick Broken at Random,
// Journal of Applied Probability 17(3), 1980; the ring is of Karger et al., Consistent Hashing and Random Trees, STOC 1997).
func RingMaxOverMean(n int) float64 {
	sum := 0.0
	for k := 1; k <= n; k++ {
		sum += 1 / float64(k)
	}
	return sum
}

// Maglev fills a table by the construction of Eisenbud et al., Maglev, NSDI 2016, section 3.4, pseudocode 1: the backends take turns,
// and each takes the next slot of its permutation that is free. slots is prime; backends have offsets below slots and skips from 1
// to slots-1, and there is at least one.
func Maglev(slots int, offsets, skips []int) []int {
	table := make([]int, slots)
	for i := range table {
		table[i] = -1
	}
	next := append([]int(nil), offsets...)
	for filled := 0; ; {
		for b := range next {
			for table[next[b]] >= 0 {
				next[b] = (next[b] + skips[b]) % slots
			}
			table[next[b]] = b
			if filled++; filled == slots {
				return table
			}
		}
	}
}

// MaglevDisruption is the share of the slots of other backends that change when some of n go, with random permutations. No
// formula for it is known: it is the mean of several tables that are built by the paper's construction.
func MaglevDisruption(slots, n, gone int) float64 {
	if n <= gone {
		return 0 // no other
	}
	tables := 4 + 200_000/slots // the smaller they are, the more do they differ
	r := rand.New(rand.NewPCG(uint64(slots), uint64(n)))
	moved, kept := 0, 0
	for range tables {
		offsets, skips := make([]int, n), make([]int, n)
		for b := range n {
			offsets[b], skips[b] = r.IntN(slots), 1+r.IntN(slots-1)
		}
		before, after := Maglev(slots, offsets, skips), Maglev(slots, offsets[:n-gone], skips[:n-gone])
		for i, b := range before {
			if b >= n-gone {
				continue
			}
			kept++
			if after[i] != b {
				moved++
			}
		}
	}
	return float64(moved) / float64(max(kept, 1))
}

// DrawsJain is Jain's index of the loads of servers after a number of customers have each been sent to a random one. A load has the
// binomial distribution, and the index is 1/(1+v) with the square v of the loads' coefficient of variation: (servers-1)/customers on average.
func DrawsJain(customers, servers int) float64 {
	return 1 / (1 + float64(servers-1)/float64(customers))
}

// RotationsJain is Jain's index of the loads of servers if each customer comes to one of n dispatchers at random, and each dispatcher
// sends its own to the servers in turn, from a random one on. A dispatcher with m customers gives all servers as many, and one more to m
// modulo the number of servers, neighbours of each other. Only the latter differ, and independently among dispatchers: for a share f of
// servers, the variance of a load grows by f(1-f). With fewer customers than servers for each dispatcher that is nearly the variance
// of random draws.
func RotationsJain(customers, servers, n int) float64 {
	variance := 0.0
	binomial(customers, n, func(m int, p float64) {
		f := float64(m%servers) / float64(servers)
		variance += float64(p * f * (1 - f))
	})
	mean := float64(customers) / float64(servers)
	return 1 / (1 + float64(n)*variance/float64(mean*mean))
}

// binomial calls each with the numbers of successes among trials, each with the probability 1/n, and with their probabilities, as far
// as these matter.
func binomial(trials, n int, each func(successes int, p float64)) {
	if n == 1 {
		each(trials, 1)
		return
	}
	// From the most frequent number on, in both directions: each probability follows from the one beside it.
	weights := make(map[int]float64)
	mode, sum := trials/n, 0.0
	odds := 1 / float64(n-1)
	var numbers []int
	add := func(m int, w float64) { weights[m], sum, numbers = w, sum+w, append(numbers, m) }
	const least = 1e-20
	for m, w := mode, 1.0; m <= trials && w > least; m++ {
		add(m, w)
		w *= float64(trials-m) / float64(m+1) * odds
	}
	for m, w := mode, 1.0; m > 0; m-- {
		if w *= float64(m) / float64(trials-m+1) / odds; w <= least {
			break
		}
		add(m-1, w)
	}
	for _, m := range numbers {
		each(m, weights[m]/sum)
	}
}
