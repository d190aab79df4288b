package stats

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// TestTimes: percentiles and sum are those of all times, exactly of few and of times that are the same, and within 0.05 % of many.
func TestTimes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var times Times
	for _, n := range []int{0, 1, mostFew, mostFew + 1, 50_000} {
		for _, most := range []int64{1, 1 << digits, 1<<digits + 1, 1e9, 1 << 40, math.MaxInt64} {
			all, sum := make([]int64, n), 0.0
			times.Reset()
			for i := range all {
				all[i] = int64(float64(most) * r.Float64() * r.Float64())
				if i%10 == 0 {
					all[i] = 200_000
				}
				times.Add(all[i])
				sum += float64(all[i])
			}
			slices.Sort(all)
			for _, permille := range []int{0, 1, 50, 500, 990, 999, 1000} {
				got, want := times.Percentile(permille), Percentile(all, permille)
				if allowed := want / 2048; n <= mostFew && got != want || max(got-want, want-got) > allowed {
					t.Errorf("%d of up to %d at %d: %d, want %d", n, most, permille, got, want)
				}
				if want == 200_000 && most <= 1<<digits+1 && got != want {
					t.Errorf("%d of up to %d at %d: %d, want exactly %d", n, most, permille, got, want)
				}
			}
			if got := times.Sum(); times.N() != n || math.Abs(got-sum) > sum*1e-12 || sum < 1<<53 && got != sum {
				t.Errorf("%d of up to %d: %d with the sum %v, want %v", n, most, times.N(), got, sum)
			}
		}
	}
	times.Reset()
	times.Add(-1)
	if times.N() != 1 || times.Percentile(500) != 0 {
		t.Errorf("a time below 0 counts as %d", times.Percentile(500))
	}
}

// TestAddAll: it is as if each time were added.
func TestAddAll(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, sizes := range [][]int{{0, 10, 20}, {10, 5000}, {5000, 10}, {5000, 5000}, {mostFew, 1, 1}} {
		var want, got Times
		for _, n := range sizes {
			var part Times
			for range n {
				v := r.Int64N(1e6)
				want.Add(v)
				part.Add(v)
			}
			got.AddAll(&part)
		}
		if want.n != got.n || !slices.Equal(want.few, got.few) || !reflect.DeepEqual(want.pages, got.pages) {
			t.Errorf("%v times: %d with the sum %v, want %d with %v, or others", sizes, got.N(), got.Sum(), want.N(), want.Sum())
		}
	}
}

// TestTimesMemory: it does not grow with the number of times.
func TestTimesMemory(t *testing.T) {
	var times Times
	add := func() {
		for i := range int64(100_000) {
			times.Add(i * i)
		}
	}
	add()
	if n := testing.AllocsPerRun(1, add); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
