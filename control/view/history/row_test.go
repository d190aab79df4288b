package history

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nfqproxy/nfqproxy/control/observe/observetest"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// expected is what a history keeps of a record.
func expected(r *flow.Record) *flow.Record {
	c := *r
	c.Event, c.Emitted, c.Queue, c.Draw, c.TableAge, c.Steps = 0, nil, nil, nil, 0, nil
	if r.Life != nil {
		l := *r.Life
		l.History = nil
		if l.CountedAt != nil && !l.Over {
			l.CountedAt = &l.Since
		}
		c.Life = &l
	}
	return &c
}

func TestRowKeepsRecord(t *testing.T) {
	records := observetest.NewCluster().Records()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	uneven := *records[0]
	uneven.ID, uneven.Endpoint = "uneven", "[fd00::1]:8080"
	uneven.Candidates = []flow.Candidate{{Endpoint: "[fd00::1]:8080", Probability: 0.25}, {Endpoint: "[fd00::2]:8080", Probability: 0.75}}
	uneven.Balance = &flow.Balance{Algorithm: "lc", Evidence: "2 open against 5", Probability: 0.25}
	uneven.Shadows = []flow.Shadow{{Algorithm: "maglev", Endpoint: "[fd00::2]:8080", Probability: 1}}
	uneven.Earlier = []flow.Attempt{{Endpoint: "[fd00::2]:8080", Outcome: flow.Refused, Time: at}}
	uneven.Held = &flow.Hold{ID: "h", Seconds: 2, Action: flow.HoldChosen}
	odd := *records[0]
	odd.ID, odd.Life, odd.Stages, odd.Time = "odd", nil, nil, &at
	odd.Candidates, odd.Excluded = []flow.Candidate{{Endpoint: "10.0.0.1:1", Probability: 0.5}, {Endpoint: "10.0.0.2:1"}}, []flow.Excluded{}
	odd.Endpoint = "10.0.0.1:1" // the probability is that of even candidates
	observed := *records[0]
	observed.ID, observed.Proxy, observed.Outdated, observed.Reason = "observed", "kube-proxy (iptables)", 1.5, "service-proxy"
	for _, r := range append(records, &uneven, &odd, &observed) {
		x := rowOf(r, pool{})
		if diff := cmp.Diff(expected(r), x.record(), cmp.Comparer(time.Time.Equal)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", r.ID, diff)
		}
	}
}

// A row has microseconds, and hundreds of nanoseconds.
func TestRowPrecision(t *testing.T) {
	g := newTraffic(time.Now(), 1000)
	near := cmp.Comparer(func(a, b float64) bool { return a == b || a-b < 1.1e-6 && b-a < 1.1e-6 })
	nearTime := cmp.Comparer(func(a, b time.Time) bool { return a.Sub(b).Abs() <= 2*time.Microsecond })
	for range 1000 {
		r := g.flow()
		x := rowOf(r, pool{})
		got := x.record()
		if r.Life.Answered != got.Life.Answered || r.Life.Sent.Packets == 6 { // an unanswered one: counted at its end
			r.Life.CountedAt = got.Life.CountedAt
		}
		r.Life.CountedAt, got.Life.CountedAt = nil, nil
		if diff := cmp.Diff(expected(r), got, near, nearTime); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	}
}

func TestNames(t *testing.T) {
	hour := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for _, part := range []int{0, 1, 12345678} {
		f, ok := parseName(nameOf(hour, "ip-10-0-0-1.ec2.internal", part))
		if want := (file{hour: hour, recorder: "ip-10-0-0-1.ec2.internal", part: part}); !ok || f != want {
			t.Errorf("%+v, %t, want %+v", f, ok, want)
		}
	}
	for _, name := range []string{
		"", ".parquet", "2026-01-02T03Z.parquet", "2026-01-02T03Z_.parquet", "2026-01-02T25Z_a.parquet", "2026-01-02T03Z_a_0.parquet",
		"2026-01-02T03Z_a_x.parquet", "2026-01-02T03Z_a_1_2.parquet", "2026-01-02T03Z_a.parquet.unfinished", "2026-01-02T03Z_a",
	} {
		if f, ok := parseName(name); ok {
			t.Errorf("%q is %+v", name, f)
		}
	}
	if f, ok := parseName("2026-01-02T03Z_a.parquet.corrupt"); !ok || !f.corrupt {
		t.Errorf("%+v, %t", f, ok)
	}
}

func TestIDSet(t *testing.T) {
	var s idSet
	for _, id := range []string{"a-1", "a-2", "b-1", "a-4096", "", "-", "a-01", "no number", "a-1-2", "a-18446744073709551615"} {
		if s.has(id) || !s.add(id) || !s.has(id) || s.add(id) {
			t.Errorf("%q", id)
		}
	}
	bounded := idSet{most: 2}
	for _, id := range []string{"a-1", "a-4096", "a-8192"} {
		bounded.add(id)
	}
	if bounded.has("a-1") || !bounded.has("a-4096") || !bounded.has("a-8192") {
		t.Error("the oldest page is not the one that was forgotten")
	}
}
