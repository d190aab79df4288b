package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

func TestHistogramBuckets(t *testing.T) {
	var h histogram
	for d, bucket := range map[time.Duration]int{
		0: 0, 1: 0, 100: 0, 101: 1, 200: 1, 201: 2,
		HistogramBound(HistogramBuckets - 1):      HistogramBuckets - 1,
		HistogramBound(HistogramBuckets-1) + 1:    HistogramBuckets,
		time.Hour:                                 HistogramBuckets,
		-time.Second /* the clock was no help */ : 0,
	} {
		var before, after Histogram
		h.addTo(&before)
		h.observe(d, 3)
		h.addTo(&after)
		if got := after.Counts[bucket] - before.Counts[bucket]; got != 3 || after.Total() != before.Total()+3 {
			t.Errorf("%d ns: %d more in bucket %d, %d in all; want 3 and 3", d, got, bucket, after.Total()-before.Total())
		}
		if got, want := after.Sum-before.Sum, 3*max(d, 1); got != want {
			t.Errorf("%d ns: sum grew by %d, want %d", d, got, want)
		}
	}
}

// TestFlowsHoldEveryDecision: an enum of package decision that grows needs a larger array.
func TestFlowsHoldEveryDecision(t *testing.T) {
	for what, names := range map[string][2]string{
		"verdicts": {decision.Verdict(verdicts - 1).String(), decision.Verdict(verdicts).String()},
		"entries":  {decision.Entry(entries - 1).String(), decision.Entry(entries).String()},
		"reasons":  {decision.Reason(reasons - 1).String(), decision.Reason(reasons).String()},
	} {
		if names[0] == "unknown" || names[1] != "unknown" {
			t.Errorf("%s: the last is %q, and %q comes after it", what, names[0], names[1])
		}
	}
}

// TestFlows: the flows of all workers count, and classes without any are left out. Those with an entry are translated.
func TestFlows(t *testing.T) {
	a := FlowClass{decision.DNAT, decision.EntryNodePort, decision.Bound}
	b := FlowClass{decision.Drop, decision.EntryLoadBalancer, decision.SourceNotAllowed}
	var one, two counters
	one.flows[a.Verdict][a.Entry][a.Reason].Add(3)
	two.flows[a.Verdict][a.Entry][a.Reason].Add(1)
	two.flows[b.Verdict][b.Entry][b.Reason].Add(4)
	one.created.Add(1)
	one.kept.Add(2)
	two.replaced.Add(4)
	two.failed.Add(8)
	var s Stats
	one.addTo(&s)
	two.addTo(&s)
	if len(s.Flows) != 2 || s.Flows[a] != 4 || s.Flows[b] != 4 || s.Dropped != 4 || s.Translated != 7 {
		t.Errorf("flows %v, dropped %d, translated %d", s.Flows, s.Dropped, s.Translated)
	}
}

// TestStatsInLogLine: short enough to be read.
func TestStatsInLogLine(t *testing.T) {
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("stopped", "flows", Stats{Packets: 5, Translated: 4, Queues: make([]QueueStats, 8)})
	line := out.String()
	if !strings.Contains(line, "flows.packets=5") || !strings.Contains(line, "flows.translated=4") || len(line) > 500 {
		t.Errorf("%d bytes: %s", len(line), line)
	}
}

func TestOverflow(t *testing.T) {
	var o overflow
	for i, step := range []struct{ queued, enqueued, want uint64 }{
		{100, 100, 0}, {150, 160, 0}, {200, 170, 30}, {210, 200, 30}, {300, 240, 60},
	} {
		if got := o.look(step.queued, step.enqueued); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
	o.restart(250) // the rules' counters are 0 again
	if got := o.look(20, 265); got != 65 {
		t.Errorf("after new rules: %d, want 65", got)
	}
}
