package main

import "testing"

func TestQuantile(t *testing.T) {
	ten := []float64{10, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for q, want := range map[float64]float64{0.5: 5, 0.9: 9, 1: 10, 0: 1} {
		if got := quantile(ten, func(v float64) float64 { return v }, q); got != want {
			t.Errorf("quantile %g: %g, want %g", q, got, want)
		}
	}
	if got := quantile(nil, func(v float64) float64 { return v }, 0.5); got != 0 {
		t.Errorf("of nothing: %g", got)
	}
}
