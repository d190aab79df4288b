package offpolicy

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestRanks(t *testing.T) {
	if got, want := ranks([]float64{5, 1, 5, 7}), []float64{1.5, 0, 1.5, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, tt := range []struct {
		a, b []float64
		want float64
		ok   bool
	}{
		{[]float64{1, 2, 3}, []float64{10, 20, 300}, 1, true},
		{[]float64{1, 2, 3}, []float64{3, 2, 1}, -1, true},
		{[]float64{106, 86, 100, 101, 99, 103, 97, 113, 112, 110}, []float64{7, 0, 27, 50, 28, 29, 20, 12, 6, 17}, -29. / 165, true}, // the example of Wikipedia's page on it
		{[]float64{1, 1}, []float64{1, 2}, 0, false},
		{nil, nil, 0, false},
	} {
		if got, ok := spearman(tt.a, tt.b); ok != tt.ok || math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("%v %v: %v %v, want %v", tt.a, tt.b, got, ok, tt.want)
		}
	}
}

// TestJackknife: of a mean with one flow in each block it is the usual interval of a mean.
func TestJackknife(t *testing.T) {
	values := []float64{1, 2, 3, 4, 10}
	s := statistic{width: 2, add: func(i int, sums []float64) { sums[0] += values[i]; sums[1]++ }, of: func(sums []float64) float64 { return sums[0] / sums[1] }}
	v := s.estimate(len(values), 0.95)
	if want := 2.7764 * math.Sqrt(12.5/5); *v.Value != 4 || math.Abs(*v.Half-want) > 0.001 {
		t.Errorf("%v ± %v, want 4 ± %v", *v.Value, *v.Half, want)
	}
	if v := s.estimate(1, 0.95); *v.Value != 1 || v.Half != nil {
		t.Errorf("%+v", v)
	}
	for _, n := range []int{1, 5, 20, 21, 99, 1000} {
		sizes := make(map[int]int)
		for i := range n {
			sizes[blockOf(i, n)]++
		}
		if len(sizes) != min(blocks, n) || blockOf(n-1, n) != min(blocks, n)-1 {
			t.Errorf("%d flows: blocks %v", n, sizes)
		}
		for _, size := range sizes {
			if size != n/min(blocks, n) && size != n/min(blocks, n)+1 {
				t.Errorf("%d flows: blocks %v", n, sizes)
			}
		}
	}
}

// TestModel: a flow is not predicted by itself.
func TestModel(t *testing.T) {
	s := &service{endpoints: uneven.addresses(1)}
	for i := range 40 {
		s.flows = append(s.flows, &counted{service: s, picks: []int{0}, result: result{refused: i%4 < 2}})
	}
	s.robust()
	for i, c := range s.flows { // fold 0 has the refused flows, fold 1 the others
		if got := c.robust[refused].value; got != float64(i%4/2) {
			t.Fatalf("flow %d: %v", i, got)
		}
	}
}

// TestChance: of flows without a dependence 5 % have p below 0.05.
func TestChance(t *testing.T) {
	const tries = 2000
	r, below := rand.New(rand.NewPCG(1, 2)), 0
	for range tries {
		s := &service{endpoints: uneven.addresses(2)}
		for i := range 60 {
			s.flows = append(s.flows, &counted{service: s, endpoint: i % 2, open: r.IntN(5), result: result{latency: r.Float64() + float64(i%2)}})
		}
		if s.dependence().P < 0.05 {
			below++
		}
	}
	if below < tries*3/100 || below > tries*7/100 {
		t.Errorf("%d of %d", below, tries)
	}
}
