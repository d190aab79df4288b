package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestExperience(t *testing.T) {
	e := clientResult{errors: map[string]int{}}
	refused := errors.New("refused")
	e.add([]outcome{{took: time.Millisecond}, {took: late}, {took: late + 1}, {took: time.Second}, {took: time.Millisecond, err: refused}, {took: time.Hour, err: refused}})
	if e.attempts != 6 || e.failed != 2 || e.delayed != 2 || e.resent != 1 || e.errors["refused"] != 2 {
		t.Errorf("%+v", e)
	}
}

func TestRow(t *testing.T) {
	for _, tc := range []struct {
		row  row
		want string
	}{
		{row{attack: "a", proxy: kubeProxy}, "| a | kube-proxy's rules | - | - | - | - | - | - | - | - |"},
		{
			row{attack: "a", proxy: nfqproxy, packets: 7, entries: 9, client: &clientResult{attempts: 400, failed: 1, delayed: 100, resent: 40, requests: 50, lost: 50}},
			"| a | nfqproxy | 7 | 400 | 0.25 % | 25.00 % | 10.00 % | 100.00 % | 9 | - |",
		},
		{row{attack: "a", proxy: nfqproxy, entries: 2, queued: 1, datagrams: 100}, "| a | nfqproxy | 0 | - | - | - | - | - | 2 | 1 of 100 |"},
	} {
		if got := tc.row.String(); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

func TestShare(t *testing.T) {
	for _, tc := range []struct {
		part, of int
		want     string
	}{{0, 0, "0 %"}, {0, 5, "0 %"}, {1, 10001, "< 0.01 %"}, {1, 10000, "0.01 %"}, {1, 3, "33.33 %"}} {
		if got := share(tc.part, tc.of); got != tc.want {
			t.Errorf("%d of %d: %q, want %q", tc.part, tc.of, got, tc.want)
		}
	}
}

func TestCounter(t *testing.T) {
	const text = "# HELP a b\na{l=\"x\"} 3\na{l=\"xy\"} 1.2e+06\n"
	for sample, want := range map[string]int{`a{l="x"}`: 3, `a{l="xy"}`: 1200000} {
		if got, err := counter(strings.NewReader(text), sample); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", sample, got, err, want)
		}
	}
	if _, err := counter(strings.NewReader(text), "a"); err == nil {
		t.Error("a sample that is not there was found")
	}
}

// TestSource: with two datagrams, each flow but the last ones gets its second.
func TestSource(t *testing.T) {
	f := flood{rate: 2000, twice: true}
	times := map[string]int{}
	for i := range 2000 {
		times[f.source(i).String()]++
	}
	if n := times[forgedSource(1, forgedPort).String()]; n != 2 {
		t.Errorf("%d datagrams of a flow, want 2", n)
	}
	if n := times[forgedSource(999, forgedPort).String()]; n != 1 {
		t.Errorf("%d datagrams of the last flow, want 1: its second comes later", n)
	}
	if a, b := forgedSource(1<<17-1, 1000).String(), forgedSource(1<<17, 1000).String(); a != "198.19.255.255:1000" || b != "198.18.0.0:1001" {
		t.Errorf("the last source with the first port is %s, the next one %s", a, b)
	}
}
