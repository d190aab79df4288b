package observe_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// TestPValueQuantiles: the critical values of the NIST/SEMATECH e-Handbook of Statistical
// Methods, 1.3.6.7.4, which are rounded to three digits behind the point.
func TestPValueQuantiles(t *testing.T) {
	probabilities := []float64{0.10, 0.05, 0.025, 0.01, 0.001}
	for degrees, quantiles := range map[int][]float64{
		1:   {2.706, 3.841, 5.024, 6.635, 10.828},
		2:   {4.605, 5.991, 7.378, 9.210, 13.816},
		3:   {6.251, 7.815, 9.348, 11.345, 16.266},
		4:   {7.779, 9.488, 11.143, 13.277, 18.467},
		5:   {9.236, 11.070, 12.833, 15.086, 20.515},
		10:  {15.987, 18.307, 20.483, 23.209, 29.588},
		20:  {28.412, 31.410, 34.170, 37.566, 45.315},
		30:  {40.256, 43.773, 46.979, 50.892, 59.703},
		50:  {63.167, 67.505, 71.420, 76.154, 86.661},
		100: {118.498, 124.342, 129.561, 135.807, 149.449},
	} {
		for i, q := range quantiles {
			want := probabilities[i]
			// The table's rounding, by half of the last digit, moves the probability.
			low, high := observe.PValue(q+0.00051, degrees), observe.PValue(q-0.00051, degrees)
			if low > want || high < want {
				t.Errorf("PValue(%v, %d) = %.6f, want %v", q, degrees, observe.PValue(q, degrees), want)
			}
		}
	}
	// The lower tail, of the same tables.
	for degrees, q := range map[int]float64{1: 0.004, 2: 0.103, 10: 3.940, 100: 77.929} {
		low, high := observe.PValue(q+0.00051, degrees), observe.PValue(q-0.00051, degrees)
		if low > 0.95 || high < 0.95 {
			t.Errorf("PValue(%v, %d) = %.6f, want 0.95", q, degrees, observe.PValue(q, degrees))
		}
	}
}

// TestPValueClosedForms: for one degree of freedom and for even ones there are formulas.
func TestPValueClosedForms(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		degrees := 2 * (1 + random.IntN(300))
		x := random.ExpFloat64() * float64(degrees)
		// e^(-x/2) times the sum of (x/2)^i / i! for i below half of the degrees.
		var want float64
		for i := range degrees / 2 {
			logFactorial, _ := math.Lgamma(float64(i) + 1)
			want += math.Exp(float64(i)*math.Log(x/2) - x/2 - logFactorial)
		}
		if got := observe.PValue(x, degrees); math.Abs(got-want) > 1e-10*want+1e-14 {
			t.Fatalf("PValue(%v, %d) = %v, want %v", x, degrees, got, want)
		}
		if got, want := observe.PValue(x, 1), math.Erfc(math.Sqrt(x/2)); math.Abs(got-want) > 1e-10*want+1e-14 {
			t.Fatalf("PValue(%v, 1) = %v, want %v", x, got, want)
		}
	}
}

// TestPValueEdges: whatever it is given, it ends, and gives a probability.
func TestPValueEdges(t *testing.T) {
	for _, x := range []float64{0, -1, math.Inf(-1), math.NaN()} {
		if got := observe.PValue(x, 3); got != 1 {
			t.Errorf("PValue(%v, 3) = %v, want 1", x, got)
		}
	}
	for _, degrees := range []int{0, -1} {
		if got := observe.PValue(5, degrees); got != 1 {
			t.Errorf("PValue(5, %d) = %v, want 1", degrees, got)
		}
	}
	for _, x := range []float64{5e-324, 1e-9, 1, 1000, 1e6, 1e12, 1e300, math.MaxFloat64, math.Inf(1)} {
		last := 0.0
		for _, degrees := range []int{1, 2, 3, 1000, 1001, 1_000_000, 100_000_000} {
			got := observe.PValue(x, degrees)
			if !(got >= last && got <= 1) {
				t.Errorf("PValue(%v, %d) = %v, want at least %v and at most 1", x, degrees, got, last)
			}
			last = got
		}
	}
	// Half of the distribution is above its median, about k(1-2/(9k))^3.
	k := 1e6
	if got := observe.PValue(k*math.Pow(1-2/(9*k), 3), int(k)); math.Abs(got-0.5) > 1e-5 {
		t.Errorf("at the median: %v, want 0.5", got)
	}
}
