package experiment

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/paper/stats"
	"github.com/nfqproxy/nfqproxy/deploy/experiment/chart"
)

// TestJudge: value 10 with the tolerance 1.
func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		mean, half float64
		n          int
		want       string
	}{
		{10, 0.5, 5, Reproduced},
		{10.5, 1, 5, Reproduced},   // it reaches out of the tolerance, and is no wider
		{11.4, 0.5, 5, Reproduced}, // it overlaps
		{11.6, 0.5, 5, Differs},
		{8.4, 0.5, 5, Differs},
		{10, 1.1, 5, NotDecided},
		{13, 2.5, 5, NotDecided},
		{20, 2.5, 5, Differs}, // wide, and far away
		{10, 0, 1, NotDecided},
		{20, 0, 1, NotDecided}, // one run has no interval
		{0, 0, 0, NotDecided},
	} {
		if got := judge(stats.Interval{Mean: tt.mean, Half: tt.half, N: tt.n}, 10, 1); got != tt.want {
			t.Errorf("%v ± %v of %d runs: %s, want %s", tt.mean, tt.half, tt.n, got, tt.want)
		}
	}
}

// TestNext: seeds are added until the interval is narrow, at most twice as many at a time, and no more than max.
func TestNext(t *testing.T) {
	u := &Until{Metric: "response_mean", Half: Amount{0.01, true}, Max: 30}
	wide := []float64{1, 2, 3, 4}
	for _, tt := range []struct {
		n      int
		values []float64
		want   int
	}{
		{4, wide, 8},
		{4, []float64{1, 1, 1, 1}, 4},
		{4, []float64{1, 1.01, 1, 0.99}, 7}, // ± 1.3 %: (1.3)^2 times as many
		{20, wide, 30},
		{30, wide, 30},
		{1, []float64{5}, 2},
		{4, nil, 4},
	} {
		if got := u.next(tt.n, stats.Confidence(tt.values)); got != tt.want {
			t.Errorf("after %d seeds with %v: %d, want %d", tt.n, tt.values, got, tt.want)
		}
	}
	if got := (*Until)(nil).next(3, stats.Confidence(wide)); got != 3 {
		t.Errorf("without until: %d", got)
	}
}

// TestFarApart: a logarithmic axis is for values that differ much, and are above 0.
func TestFarApart(t *testing.T) {
	for _, tt := range []struct {
		x    []float64
		want bool
	}{{[]float64{1, 10, 100}, true}, {[]float64{0.5, 0.9, 0.99}, false}, {[]float64{0, 100}, false}, {nil, false}} {
		var line chart.Series
		for _, x := range tt.x {
			line.Points = append(line.Points, chart.Point{X: x})
		}
		if got := farApart([]chart.Series{line}); got != tt.want {
			t.Errorf("%v: %t", tt.x, got)
		}
	}
}

// TestLock: a directory has one run at a time.
func TestLock(t *testing.T) {
	r := Runner{Dir: filepath.Join(t.TempDir(), "new")}
	unlock, err := r.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another run is writing to "+r.Dir) {
		t.Errorf("started twice: %v", err)
	}
	unlock()
	if unlock, err = r.lock(); err != nil {
		t.Fatal(err)
	}
	unlock()
}
