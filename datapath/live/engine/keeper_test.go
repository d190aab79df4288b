package engine

import (
	"testing"
	"time"
)

func TestTableWatch(t *testing.T) {
	var w tableWatch
	for i, step := range []struct {
		after   time.Duration
		refused uint64
		want    string
	}{
		{0, 0, ""}, {1, 3, "ConntrackFull"}, {2, 9, ""}, {3, 9, ""}, {11, 10, ""},
		{20, 10, ""}, {21, 10, "ConntrackRecovered"}, {50, 10, ""}, {51, 11, "ConntrackFull"},
	} {
		got := ""
		if a := w.look(time.Unix(1000, 0).Add(step.after*time.Second), step.refused); a != nil {
			got = a.Reason
			if a.Over != (got == "ConntrackRecovered") {
				t.Errorf("step %d: over %v", i, a.Over)
			}
		}
		if got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}
