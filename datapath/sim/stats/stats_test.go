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
