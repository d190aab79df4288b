package traffic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/nfqproxy/nfqproxy/datapath/balance/exact"
	"github.com/nfqproxy/nfqproxy/datapath/paper/exactlog"
)

// Distribution is a distribution of times.
type Distribution struct {
	// Kind is constant, uniform (from 0 to twice the mean), exponential, pareto, lognormal or empirical.
	Kind string        `json:"distribution"`
	Mean time.Duration `json:"mean"`
	// Shape is that of pareto, above 1: the smaller, the heavier is the tail.
	Shape float64 `json:"shape"`
	// Sigma is that of lognormal: the standard deviation of the logarithm.
	Sigma float64 `json:"sigma"`
	// Max bounds the times; 0: no bound. The mean is then smaller than Mean.
	Max time.Duration `json:"max"`
	// Values are those of empirical: each with the same probability. File has one on each line.
	Values []time.Duration `json:"values"`
	File   string          `json:"file"`
}

// The kinds of distributions.
const (
	constant    = "constant"
	uniform     = "uniform"
	exponential = "exponential"
	pareto      = "pareto"
	lognormal   = "lognormal"
	empirical   = "empirical"
)

var distributions = []string{constant, uniform, exponential, pareto, lognormal, empirical}

// longest bounds all times, so that sums do not overflow.
const longest = 1000 * 24 * time.Hour

// draw draws a time in nanoseconds. A nil Distribution is always 0.
func (d *Distribution) draw(r *rand.Rand) int64 {
	if d == nil {
		return 0
	}
	x := float64(d.Mean)
	switch d.Kind {
	case uniform:
		x *= 2 * r.Float64()
	case exponential:
		x *= unitExponential(r)
	case pareto:
		// The smallest value has the mean Mean; the inverse of the distribution function is its value
		// times u to the power of -1/Shape.
		x *= (d.Shape - 1) / d.Shape * exact.Exp(unitExponential(r)/d.Shape)
	case lognormal:
		x *= exact.Exp(float64(d.Sigma*unitNormal(r)) - float64(d.Sigma*d.Sigma)/2)
	case empirical:
		x = float64(d.Values[r.IntN(len(d.Values))])
	}
	limit := float64(longest)
	if d.Max > 0 {
		limit = float64(d.Max)
	}
	return int64(min(x, limit))
}

// average is the mean of the times that draw draws.
func (d *Distribution) average() time.Duration {
	switch {
	case d == nil:
		return 0
	case d.Kind != empirical:
		return d.Mean
	}
	sum := time.Duration(0)
	for _, v := range d.Values {
		sum += v
	}
	return sum / time.Duration(max(len(d.Values), 1))
}

// unitExponential draws of the exponential distribution with mean 1.
func unitExponential(r *rand.Rand) float64 { return -exactlog.Log(1 - r.Float64()) }

// unitNormal draws of the standard normal distribution, by Marsaglia's polar method.
func unitNormal(r *rand.Rand) float64 {
	for {
		u, v := float64(2*r.Float64())-1, float64(2*r.Float64())-1
		if s := float64(u*u) + float64(v*v); s > 0 && s < 1 {
			return u * math.Sqrt(-2*exactlog.Log(s)/s)
		}
	}
}

// stream returns a stream of random numbers for a purpose. Streams are independent, so that algorithms
// meet the same flows, whatever numbers they read themselves.
func stream(seed uint64, purpose string, index int) *rand.Rand {
	text := fmt.Sprintf("%s %d of %d", purpose, index, seed)
	return rand.New(rand.NewPCG(xxhash.Sum64String(text), xxhash.Sum64String("low "+text)))
}

// zipf draws services by their popularity, in constant time: Walker's alias method, as Vose builds it.
type zipf struct {
	keep  []float64
	other []int32
}

// popularities are those of n services, see [Workload.Zipf], and their sum.
func popularities(n int, exponent float64) (all []float64, sum float64) {
	all = make([]float64, n)
	for i := range all {
		all[i] = exact.Exp(-exponent * exactlog.Log(float64(i+1)))
		sum += all[i]
	}
	return all, sum
}

func newZipf(n int, exponent float64) zipf {
	all, total := popularities(n, exponent)
	z := zipf{all, make([]int32, n)}
	var small, large []int32
	for i := range z.keep {
		z.keep[i] *= float64(n) / total
		z.other[i] = int32(i)
		if z.keep[i] < 1 {
			small = append(small, int32(i))
		} else {
			large = append(large, int32(i))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		z.other[s] = l
		if z.keep[l] -= 1 - z.keep[s]; z.keep[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, i := range append(small, large...) { // 1 but for rounding
		z.keep[i] = 1
	}
	return z
}

func (z zipf) draw(r *rand.Rand) int {
	if len(z.keep) == 1 {
		return 0
	}
	i := r.IntN(len(z.keep))
	if r.Float64() < z.keep[i] {
		return i
	}
	return int(z.other[i])
}
