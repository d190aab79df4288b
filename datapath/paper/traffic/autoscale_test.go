package traffic

import (
	"math"
	"testing"
	"time"
)

// TestDesired: the examples of Kubernetes' documentation of the algorithm, and its treatment of Pods without metrics.
func TestDesired(t *testing.T) {
	for _, tt := range []struct {
		what                string
		p                   pods
		utilization, target float64
		want                int
	}{
		{"twice the target doubles", pods{ready: 4}, 0.2, 0.1, 8},
		{"half of it halves", pods{ready: 4}, 0.05, 0.1, 2},
		{"the ceiling of the product", pods{ready: 5}, 0.7, 0.5, 7},
		{"the ceiling of the product, and not of its rounding", pods{ready: 10}, 0.3, 0.1, 30},
		{"within the tolerance", pods{ready: 10}, 0.54, 0.5, 10},
		{"above the tolerance", pods{ready: 10}, 0.56, 0.5, 12},
		{"below the tolerance", pods{ready: 10}, 0.44, 0.5, 9},
		{"idle", pods{ready: 10}, 0, 0.5, 0},
		{"those that start are enough", pods{ready: 4, unready: 4}, 1, 0.5, 8},
		{"those that start are not enough", pods{ready: 4, unready: 2}, 1, 0.5, 8},
		{"those that start are too many", pods{ready: 4, unready: 8}, 0.9, 0.5, 12},
		{"a missing one may be busy", pods{ready: 8, missing: 2}, 0.3, 0.5, 9},
		{"a missing one may be idle", pods{ready: 8, missing: 2}, 0.65, 0.5, 10},
	} {
		if got := tt.p.desired(tt.p.ready+tt.p.unready+tt.p.missing, tt.utilization, tt.target, 0.1); got != tt.want {
			t.Errorf("%s: %d endpoints, want %d", tt.what, got, tt.want)
		}
	}
}

// scaled is a service with ten workers for each endpoint and, on average, 120 of them busy.
func scaled(endpoints int, a Autoscale) *Config {
	c := &Config{
		Cluster: cluster(5, 1, endpoints, 10, 1<<20), Workload: exponentialWork(0, tenth),
		Duration: 30 * time.Minute, Window: 5 * time.Second, Events: []Event{{Autoscale: &a}},
	}
	c.Workload.Arrivals = Arrivals{Process: poisson, Rate: 1200}
	return c
}

// TestAutoscale: whatever the number at the start, the endpoints are busy to the target within the tolerance in the end.
func TestAutoscale(t *testing.T) {
	life := Lifecycle{Ready: 20 * time.Second, PreStop: 5 * time.Second, Grace: 10 * time.Second}
	for _, target := range []float64{0.4, 0.6} {
		for _, begin := range []int{3, 60} {
			r := run(t, scaled(begin, Autoscale{Lifecycle: life, Target: target, Max: 100}), "random", 1)
			n := r.Windows[len(r.Windows)-1].Endpoints
			least, most := math.Floor(12/target/1.1), math.Ceil(12/target/0.9)
			if float64(n) < least || float64(n) > most {
				t.Errorf("target %v, %d endpoints at the start: %d in the end, want %v to %v", target, begin, n, least, most)
			}
			if begin == 60 && r.Refused+r.Broken+r.Unanswered > 0 {
				t.Errorf("%d refused, %d broken, %d unanswered when endpoints end", r.Refused, r.Broken, r.Unanswered)
			}
		}
	}
}

// endpointsAt are the endpoints in the service at times.
func endpointsAt(r *Result, times ...time.Duration) (n []int) {
	for _, at := range times {
		for _, w := range r.Windows {
			if w.End == at {
				n = append(n, w.Endpoints)
			}
		}
	}
	return n
}

// TestAutoscaleSteps: the number at most doubles, or grows by 4, in an interval; endpoints serve once they are ready; and fewer are used only
// after the stabilization.
func TestAutoscaleSteps(t *testing.T) {
	c := scaled(1, Autoscale{Lifecycle: Lifecycle{Ready: 7 * time.Second}, Target: 0.1, Max: 50})
	r := run(t, c, "random", 1)
	second := time.Second
	want := []int{1, 1, 5, 5, 10, 10, 20, 40, 50}
	got := endpointsAt(r, 15*second, 20*second, 25*second, 35*second, 40*second, 50*second, 55*second, 70*second, 85*second)
	for i := range want {
		if len(got) != len(want) || got[i] != want[i] {
			t.Fatalf("endpoints %v, want %v", got, want)
		}
	}
	now := time.Minute
	for _, stabilization := range []*time.Duration{nil, &now} {
		r := run(t, scaled(60, Autoscale{Target: 0.5, Max: 100, Stabilization: stabilization}), "random", 1)
		a := &Autoscale{Stabilization: stabilization}
		end := time.Duration(a.stabilization())
		// The first number is that after the first interval, and there is no earlier one.
		if n := endpointsAt(r, 10*second, 15*second, 20*second); len(n) != 3 || n[0] != 60 || n[2] > 26 {
			t.Errorf("endpoints %v", n)
		}
		c := scaled(24, Autoscale{Target: 0.5, Max: 100, Stabilization: stabilization})
		c.Workload.Arrivals.Flows = 120_000 // for 100 s
		r = run(t, c, "random", 1)
		n := endpointsAt(r, 100*second, 90*second+end, 130*second+end)
		if n[0] < 20 || n[1] < n[0]-4 || n[2] != 1 {
			t.Errorf("stabilization %v: endpoints %v after the last flow, before its end and afterwards", end, n)
		}
	}
}
