package main

import (
	"io"
	"strings"
	"testing"
)

func TestSummarize(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   figure
		text   string
	}{
		{nil, figure{}, "–"},
		{[]float64{5}, figure{5, 5, 5, 1}, "5.00"},
		{[]float64{300, 100, 200}, figure{200, 100, 300, 3}, "200 (100–300)"},
		{[]float64{4, 1, 2, 30}, figure{3, 1, 30, 4}, "3.00 (1.00–30.0)"},
		{[]float64{0, 0}, figure{0, 0, 0, 2}, "0"},
	} {
		if got := summarize(tc.values); got != tc.want || got.String() != tc.text {
			t.Errorf("%v: %+v, %q; want %+v, %q", tc.values, got, got, tc.want, tc.text)
		}
	}
}

func TestRatio(t *testing.T) {
	f := func(v float64) figure { return figure{v, v, v, 1} }
	for _, tc := range []struct {
		ours, theirs figure
		want         string
	}{
		{f(2), f(1), "2.00"}, {f(86), f(100), "0.86 ≈"}, {f(114), f(100), "1.14 ≈"}, {f(84), f(100), "0.84"},
		{f(116), f(100), "1.16"}, {f(1), f(0), "–"}, {figure{}, f(1), "–"},
	} {
		if got := ratio(tc.ours, tc.theirs); got != tc.want {
			t.Errorf("%v over %v: %q, want %q", tc.ours.median, tc.theirs.median, got, tc.want)
		}
	}
}

func TestReport(t *testing.T) {
	var csv strings.Builder
	s := newSamples(&csv)
	w := workload{workers: 16, timeouts: shortTimeouts}.id()
	for round, rate := range []float64{1000, 1200, 1100} {
		s.add(sample{10, "nfqproxy", w, "rate", "1/s", round, rate})
		s.add(sample{10, "nfqproxy", w, "p50", "µs", round, 50})
		s.add(sample{10, "nftables", w, "rate", "1/s", round, 2 * rate})
		s.add(sample{10, "nftables", w, "p50", "µs", round, 49})
	}
	s.add(sample{10, "nftables", w, failedBy + "read: timeout", "", 1, 2})
	s.add(sample{10, "nftables", w, failedBy + "connect: connection refused", "", 1, 1})
	s.add(sample{10, "nftables", w, "failed", "", 1, 3})
	text := s.report([]contestant{{name: "nfqproxy", what: "ours"}, {name: "nftables", what: "theirs"}, {name: "legacy", missing: "no such file"}})
	for _, want := range []string{
		"| 10 | nfqproxy | 1100 (1000–1200) |  | 50.0 |  |",
		"| 10 | nftables | 2200 (2000–2400) | 0.50 | 49.0 | 1.02 ≈ |",
		"**legacy**: omitted: no such file",
		"- 10 services, nftables, tcp, 16 workers, short timeouts, round 2: 2 failed: read: timeout\n",
		"- 10 services, nftables, tcp, 16 workers, short timeouts, round 2: 1 failed: connect: connection refused\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
	if want := `10,nftables,"tcp, 16 workers, short timeouts",failed,,1,3` + "\n"; !strings.HasSuffix(csv.String(), want) {
		t.Errorf("the CSV does not end in %s:\n%s", want, &csv)
	}
	if text := newSamples(io.Discard).report(nil); !strings.Contains(text, "None.") {
		t.Errorf("nothing was lost, but: %s", text)
	}
}

func TestRuleLines(t *testing.T) {
	nft := `table ip t { # handle 1
	set s { # handle 3
		type ipv4_addr
	}
	chain c { # handle 1
		type filter hook input priority filter; policy accept;
		ip daddr { 10.0.0.1, 10.0.0.2 } accept # handle 4
		meta l4proto tcp xt target "NFQUEUE" # handle 5
	}
}`
	n := 0
	for line := range strings.Lines(nft) {
		if nftRule.MatchString(strings.TrimSpace(line)) {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d rules, want 2", n)
	}
}

func TestReadiness(t *testing.T) {
	o := &objects{endpoints: maxEndpoints}
	// Addresses of service 24's endpoints go from 240 to 249, those of service 25 wrap.
	for _, i := range []int{0, 24, 25} {
		for j := range maxEndpoints {
			who := endpoint(i, j).As4()[3]
			for which := range 2 {
				if got, want := o.half(which).answers(i, who), j/5 == which; got != want {
					t.Errorf("service %d, endpoint %d: answers for half %d: %v", i, j, which, got)
				}
			}
			if !everyEndpoint(j) || !podRange.Contains(endpoint(i, j)) {
				t.Errorf("service %d, endpoint %d: %s", i, j, endpoint(i, j))
			}
		}
	}
	if last := endpoint(maxServices-1, maxEndpoints-1); !podRange.Contains(last) {
		t.Errorf("the last endpoint, %s, is outside of %s", last, podRange)
	}
}

func TestPlan(t *testing.T) {
	p, err := parsePlan([]string{"-quick", "-services", "5,70", "-rounds", "2"})
	if err != nil || len(p.sizes) != 2 || p.sizes[1] != 70 || p.rounds != 2 || p.changes != 3 || len(p.workloads()) != 5 {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := parsePlan(nil); err != nil || len(p.sizes) != 3 || len(p.workloads()) != 7 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, args := range [][]string{{"-services", "0"}, {"-endpoints", "3"}, {"-endpoints", "12"}, {"-services", "7,7"}, {"-services", "x"}, {"-rounds", "-1"}} {
		if _, err := parsePlan(args); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}

// Each load of a visit has to leave room for its warm-up.
func TestPortsSuffice(t *testing.T) {
	if onePort+onePorts > manyPort || manyPort+manyPorts > 61000 || reusedPort+reusedAll > 61000 {
		t.Error("ranges of source ports overlap, or reach into the kernel's (61000 and up)")
	}
}

// TestRollingReport: of all visits the percentiles, and of each one the median.
func TestRollingReport(t *testing.T) {
	s := newSamples(io.Discard)
	for round, values := range [][]float64{{1, 2, 3}, {10, 20, 300}} {
		for _, v := range values {
			s.add(sample{1000, "nftables-observed", rolling, "rules", "ms", round, v})
			s.add(sample{1000, "nftables-observed", rolling, "changes", "", round, 1})
		}
		s.add(sample{1000, "nftables-observed", rolling, "made", "", round, 9000})
		s.add(sample{1000, "nftables-observed", rolling, "failed", "", round, float64(7 + round)})
		s.add(sample{1000, "nftables-observed", rolling, "delayed", "", round, 0})
	}
	const want = "| nftables-observed | 6 | 3.00 (2.00–20.0) / 300 / 300 / 300 [6] | – | – | 7.50 (7.00–8.00) | 0 | 9000 |\n"
	if got := s.reportRolling(1000, []contestant{{name: "nfqproxy"}, {name: "nftables-observed"}}); !strings.HasSuffix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
	if got := s.reportRolling(1, []contestant{{name: "nftables-observed"}}); got != "" {
		t.Error(got)
	}
}
