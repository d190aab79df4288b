package observe

import "math"

// PValue is the probability that a chi-square distribution with these degrees of freedom is at
// least x: 1 for no degrees of freedom, and for values that are not positive.
func PValue(chiSquare float64, degreesOfFreedom int) float64 {
	if degreesOfFreedom <= 0 || !(chiSquare > 0) {
		return 1
	}
	return upperGamma(float64(degreesOfFreedom)/2, chiSquare/2)
}

// precision is the relative error of upperGamma, but for rounding.
const precision = 1e-14

// upperGamma is the regularized upper incomplete gamma function Q(a, x), for a > 0 and
// x > 0. The series converges fast below the distribution's middle, the continued fraction
// above (Abramowitz and Stegun, 6.5.29 and 6.5.31); both take about the square root of a
// steps near the middle.
func upperGamma(a, x float64) float64 {
	if math.IsInf(x, 1) {
		return 0
	}
	logGamma, _ := math.Lgamma(a)
	factor := math.Exp(a*math.Log(x) - x - logGamma) // x^a e^-x / Gamma(a)
	if x < a+1 {
		return 1 - factor*lowerSeries(a, x)
	}
	return factor * upperFraction(a, x)
}

// lowerSeries is the sum over n of x^n / (a (a+1) ... (a+n)).
func lowerSeries(a, x float64) float64 {
	term := 1 / a
	sum := term
	for n := a + 1; term > sum*precision; n++ {
		term *= x / n
		sum += term
	}
	return sum
}

// upperFraction is 1/(x+1-a - 1(1-a)/(x+3-a - 2(2-a)/(x+5-a - ...))), by the method of
// Lentz: each step multiplies by the quotient of two neighbouring approximations.
func upperFraction(a, x float64) float64 {
	const tiny = 1e-300 // instead of 0, which nothing can be divided by
	b := x + 1 - a
	c, d := 1/tiny, 1/b
	value := d
	for n := 1.0; ; n++ {
		numerator := n * (a - n)
		b += 2
		d = 1 / nonzero(b+numerator*d, tiny)
		c = nonzero(b+numerator/c, tiny)
		step := c * d
		value *= step
		if math.Abs(step-1) < precision {
			return value
		}
	}
}

func nonzero(x, instead float64) float64 {
	if math.Abs(x) < instead {
		return instead
	}
	return x
}
