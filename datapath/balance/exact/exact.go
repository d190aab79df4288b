// Package exact has an exponential function whose results have the same bits on all machines. That of package math is
// assembly on some processors, and on others the compiler fuses products and sums, which rounds once instead of twice.
// Simulations that must not depend on the machine use this one. The logarithm is in package exactlog
// (datapath/paper/exactlog).
//
// A conversion of a product to float64 keeps the compiler from fusing it (Go specification, Floating-point
// operators).
//
// It is a ground package.
package exact

import "math"

const (
	ln2Hi = 6.93147180369123816490e-01
	ln2Lo = 1.90821492927058770002e-10
	log2e = 1.44269504088896338700e+00
)

// Exp is e to the power of x. The error is below 1 unit in the last place. It is __ieee754_exp of
// FreeBSD's e_exp.c.
func Exp(x float64) float64 {
	const (
		p1 = 1.66666666666666657415e-01
		p2 = -2.77777777770155933842e-03
		p3 = 6.61375632143793436117e-05
		p4 = -1.65339022054652515390e-06
		p5 = 4.13813679705723846039e-08

		overflow  = 7.09782712893383973096e+02
		underflow = -7.45133219101941108420e+02
	)
	switch {
	case math.IsNaN(x) || math.IsInf(x, 1):
		return x
	case x > overflow:
		return math.Inf(1)
	case x < underflow:
		return 0
	}
	k := int(float64(log2e*x) + math.Copysign(0.5, x))
	hi := x - float64(float64(k)*ln2Hi)
	lo := float64(float64(k) * ln2Lo)
	r := hi - lo
	t := float64(r * r)
	c := r - float64(t*(p1+float64(t*(p2+float64(t*(p3+float64(t*(p4+float64(t*p5)))))))))
	y := 1 - ((lo - float64(r*c)/(2-c)) - hi)
	return math.Ldexp(y, k)
}
