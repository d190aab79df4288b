package text

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/flow/vocabulary"
)

// balanced is a record of a choice between two endpoints.
func balanced() *flow.Record {
	at := time.Date(2025, 3, 1, 12, 4, 5, 123e6, time.UTC)
	draw := 0.7123
	return &flow.Record{
		Time: &at, Node: "worker1", Verdict: "dnat", Reason: "balanced", Protocol: "TCP",
		Source: "10.244.1.9:41000", Destination: "10.96.118.136:80", Service: "default/my-nginx-service",
		Endpoint: "10.244.2.2:80", Candidates: []flow.Candidate{{Endpoint: "10.244.1.2:80", Probability: 0.5}, {Endpoint: "10.244.2.2:80", Probability: 0.5}}, Draw: &draw,
	}
}

func TestLine(t *testing.T) {
	with := func(change func(*flow.Record)) *flow.Record {
		r := balanced()
		change(r)
		return r
	}
	const head = "12:04:05.123 worker1  TCP 10.244.1.9:41000 -> 10.96.118.136:80  default/my-nginx-service  => "
	for _, tc := range []struct {
		name   string
		record *flow.Record
		want   string
	}{
		{"balanced", balanced(), head + "10.244.2.2:80 (2 of 2, draw 0.71)  masq: -"},
		{"only one", with(func(r *flow.Record) { r.Candidates, r.Draw = r.Candidates[1:], nil }), head + "10.244.2.2:80 (the only one)  masq: -"},
		{"masqueraded", with(func(r *flow.Record) {
			r.Masquerade, r.MasqueradeReason, r.MasqueradeAddress = true, "node-port", "172.20.0.2"
		}), head + "10.244.2.2:80 (2 of 2, draw 0.71)  masq: 172.20.0.2 (node-port)"},
		{"masqueraded, simulated", with(func(r *flow.Record) { r.Masquerade, r.MasqueradeReason = true, "hairpin" }), head + "10.244.2.2:80 (2 of 2, draw 0.71)  masq: (hairpin)"},
		{"kept", with(func(r *flow.Record) { r.Conntrack, r.Draw = "kept", nil }), head + "10.244.2.2:80 (2 of 2)  masq: -  kept"},
		{"kept, endpoint gone", with(func(r *flow.Record) { r.Conntrack, r.Endpoint = "kept", "10.244.9.9:80" }), head + "10.244.9.9:80  masq: -  kept"},
		{"kept, masqueraded", with(func(r *flow.Record) { r.Conntrack, r.Masquerade = "kept", true }), head + "10.244.2.2:80 (2 of 2, draw 0.71)  masq: yes  kept"},
		{"failed", with(func(r *flow.Record) { r.Conntrack, r.Error = "failed", "table full" }), head + "10.244.2.2:80 (2 of 2, draw 0.71)  masq: -  failed: table full"},
		{"rejected", with(func(r *flow.Record) { r.Verdict, r.Reason = "reject", "no-endpoints" }), head + "reject: no endpoints"},
		{"no service", with(func(r *flow.Record) { r.Service, r.Verdict = "", "accept" }), "12:04:05.123 worker1  TCP 10.244.1.9:41000 -> 10.96.118.136:80  not for a service"},
		{"simulated", with(func(r *flow.Record) { r.Time, r.Node = nil, "" }), strings.TrimPrefix(head, "12:04:05.123 worker1  ") + "10.244.2.2:80 (2 of 2, draw 0.71)  masq: -"},
		{"empty", &flow.Record{}, "  ->   not for a service"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := (Style{}).Line(tc.record); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
	if got := (Style{NodeWidth: 10}).Line(balanced()); !strings.Contains(got, "worker1     TCP") {
		t.Errorf("node column: %q", got)
	}
}

func TestColor(t *testing.T) {
	r := balanced()
	r.Masquerade = true
	for _, record := range []*flow.Record{r, {}} {
		got := (Style{Color: true}).Line(record)
		if strings.Count(got, "\x1b[") == 0 || strings.Count(got, "\x1b[")%2 != 0 || !strings.Contains(got, "\x1b[0m") {
			t.Errorf("colours do not end: %q", got)
		}
	}
}

func TestSteps(t *testing.T) {
	r := &flow.Record{Steps: []flow.Step{
		{Chain: "KUBE-SERVICES", Rule: "-d 10.96.0.10/32 -j KUBE-SVC-X", Outcome: flow.StepJumped, Text: "the ClusterIP"},
		{Chain: "KUBE-SVC-X", Rule: "! -s 10.244.0.0/16 -j KUBE-MARK-MASQ", Outcome: flow.StepMarked, Text: "outside"},
		{Chain: "KUBE-SVC-X", Rule: "-m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-Y", Outcome: flow.StepPassed, Text: "draw 0.7"},
		{Chain: "KUBE-SEP-Z", Rule: "-j DNAT", Outcome: flow.StepApplied, Text: "translated"},
	}}
	const want = `  KUBE-SERVICES -> the ClusterIP
  KUBE-SVC-X     * outside
                 . p 0.50: draw 0.7
  KUBE-SEP-Z    -> translated
`
	if got := (Style{}).Steps(r.Steps, "  ", WalkWords); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := (Style{}).Steps(nil, "  ", WalkWords); got != "" {
		t.Errorf("a record without steps: %q", got)
	}
}

// TestEveryReasonHasWords: a story has no codes in it where it could have words.
func TestEveryReasonHasWords(t *testing.T) {
	known := func(s string) bool { return s != "unknown" && s != "used" }
	missing := func(what string, l vocabulary.List, code string) {
		if i := slices.IndexFunc(l, func(w vocabulary.Word) bool { return w.Code == code }); i < 0 || l[i].Text == "" {
			t.Errorf("no words for %s %s", what, code)
		}
	}
	for e := decision.Exclusion(1); known(e.String()); e++ {
		missing("exclusion", words.Exclusions, e.String())
	}
	for v := decision.Reason(0); known(v.String()); v++ {
		missing("reason", words.Reasons, v.String())
	}
	for e := decision.EntryClusterIP; known(e.String()); e++ {
		missing("entry", words.Entries, e.String())
	}
	for m := decision.MarkAll; m.String() != ""; m++ {
		missing("mark", words.Masquerades, m.String())
	}
}
