package stats

import (
	"math/rand/v2"
	"testing"
)

// TestMSER5: the cut is at the end of a transient, also if that is not at the boundary of a batch.
func TestMSER5(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	noise := func(n int, from float64) (values []float64) {
		for range n {
			values = append(values, from+r.NormFloat64())
		}
		return values
	}
	for _, tt := range []struct {
		name        string
		values      []float64
		least, most int
		short       bool
	}{
		{"a step after 500", append(noise(500, 20), noise(4500, 0)...), 500, 520, false},
		{"a step after 503", append(noise(503, 20), noise(4500, 0)...), 505, 520, false},
		{"constant", make([]float64, 100), 0, 0, false},
		{"a queue that grows until the end", ramp(4000), 2000, 2000, true},
		{"too few", make([]float64, 9), 0, 0, true},
		{"none", nil, 0, 0, true},
	} {
		if got, short := MSER5(tt.values); got < tt.least || got > tt.most || short != tt.short {
			t.Errorf("%s: cut %d, short %v; want %d to %d, %v", tt.name, got, short, tt.least, tt.most, tt.short)
		}
	}
	if got, _ := MSER5(noise(5000, 0)); got > 1000 {
		t.Errorf("without a transient %d of 5000 are cut", got)
	}
}

func ramp(n int) (values []float64) {
	for i := range n {
		values = append(values, float64(i))
	}
	return values
}
