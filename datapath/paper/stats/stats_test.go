package stats

import (
	"math"
	"testing"
)

func TestPercentile(t *testing.T) {
	var sorted []int64
	for i := range int64(1000) {
		sorted = append(sorted, i+1)
	}
	for _, tt := range []struct {
		n, permille int
		want        int64
	}{
		{1000, 500, 500}, {1000, 990, 990}, {1000, 999, 999}, {1000, 1000, 1000}, {1000, 0, 1},
		{10, 500, 5}, {10, 990, 10}, {11, 500, 6}, {1, 500, 1}, {0, 500, 0},
	} {
		if got := Percentile(sorted[:tt.n], tt.permille); got != tt.want {
			t.Errorf("of %d values at %d: %d, want %d", tt.n, tt.permille, got, tt.want)
		}
	}
}

func TestBalance(t *testing.T) {
	for _, tt := range []struct {
		loads     []float64
		jain, max float64
	}{
		{[]float64{3, 3, 3}, 1, 1},
		{[]float64{1, 0, 0, 0}, 0.25, 4},
		{[]float64{1, 2, 3}, 36.0 / 42, 1.5},
		{[]float64{0, 0}, 1, 1},
		{nil, 1, 1},
	} {
		if got := Jain(tt.loads); got != tt.jain {
			t.Errorf("Jain(%v) = %v, want %v", tt.loads, got, tt.jain)
		}
		if got := MaxOverMean(tt.loads); got != tt.max {
			t.Errorf("MaxOverMean(%v) = %v, want %v", tt.loads, got, tt.max)
		}
	}
}

// TestStudentT: values of published tables (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
func TestStudentT(t *testing.T) {
	for degrees, want := range map[int]float64{1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 19: 2.093, 29: 2.045, 30: 2.042, 31: 2.040, 40: 2.021, 60: 2.000, 100: 1.984, 1_000_000: 1.960} {
		if got := StudentT(degrees); math.Abs(got-want) > 0.0006 {
			t.Errorf("%d degrees of freedom: %v, want %v", degrees, got, want)
		}
	}
}

func TestConfidence(t *testing.T) {
	// mean 5, standard deviation 2.1381, standard error 0.75593, t(7) = 2.3646
	got := Confidence([]float64{2, 4, 4, 4, 5, 5, 7, 9})
	if got.Mean != 5 || math.Abs(got.Half-1.7875) > 0.0001 || got.N != 8 {
		t.Errorf("got %+v", got)
	}
	if got := Confidence([]float64{7}); got != (Interval{7, 0, 1}) {
		t.Errorf("of one value: %+v", got)
	}
	if got := Confidence(nil); got != (Interval{}) {
		t.Errorf("of none: %+v", got)
	}
}

// TestStudentTAt: values of Abramowitz and Stegun, table 26.10, and those of the table here.
func TestStudentTAt(t *testing.T) {
	for _, tt := range []struct {
		confidence float64
		degrees    int
		want       float64
	}{{0.9, 1, 6.314}, {0.9, 2, 2.920}, {0.99, 3, 5.841}, {0.99, 10, 3.169}, {0.9, 19, 1.729}, {0.998, 120, 3.160}, {0.5, 5, 0.727}} {
		if got := StudentTAt(tt.confidence, tt.degrees); math.Abs(got-tt.want) > 0.0006 {
			t.Errorf("%v with %d degrees: %v, want %v", tt.confidence, tt.degrees, got, tt.want)
		}
	}
	for degrees := 1; degrees <= 200; degrees++ {
		if got, want := StudentTAt(0.95, degrees), StudentT(degrees); math.Abs(got-want) > 0.0002 {
			t.Errorf("%d degrees: %v, want %v", degrees, got, want)
		}
	}
}

func TestCorrelation(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3, 3, 3}, 0},
		{[]float64{1, -1, 1, -1}, -0.75},
		{[]float64{1, 1, -1, -1}, 0.25},
	} {
		if got := Correlation(tt.values); math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("Correlation(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
}
