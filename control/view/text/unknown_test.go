package text

import (
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestUnknown: what Hubble does not report is not known, and not none.
func TestUnknown(t *testing.T) {
	translated := &flow.Record{
		Verdict: "dnat", Reason: "service-proxy", Proxy: "Cilium", Protocol: "TCP", Source: "10.0.0.5:40000", Destination: "10.96.0.20:80", Service: "default/web",
		Endpoint: "10.0.1.7:8080", Candidates: []flow.Candidate{}, Excluded: []flow.Excluded{}, Life: &flow.Life{State: flow.Established},
	}
	with := func(change func(*flow.Record)) *flow.Record {
		r, life := *translated, *translated.Life
		r.Life = &life
		change(&r)
		return &r
	}
	seen := with(func(r *flow.Record) { r.Life.SeenSource = "10.0.0.5:40000" })
	masqueraded := with(func(r *flow.Record) { r.Masquerade, r.MasqueradeAddress = true, "172.20.0.2" })
	unknown := with(func(r *flow.Record) {
		r.Verdict, r.Reason, r.Service, r.Destination, r.Endpoint = "accept", "translation-unknown", "", "10.0.1.7:8080", ""
	})
	dropped := with(func(r *flow.Record) {
		r.Verdict, r.Reason, r.Endpoint, r.Error, r.Life.State = "drop", "policy-denied", "", "Cilium dropped it on its way to 10.0.1.7:8080", flow.Dropped
	})
	for _, tt := range []struct {
		name           string
		record         *flow.Record
		outcome, cell  string
		storyHas, lack []string
	}{
		{"translated", translated, "default/web  => 10.0.1.7:8080  masq: not known  by Cilium", "10.0.1.7:8080",
			[]string{"service   default/web\n", "decided by Cilium; nfqproxy only observed the flow\n", "source    not known\n", "choice    unknown: the endpoints are not recorded\n"}, []string{"unchanged", "by its"}},
		{"delivered", seen, "default/web  => 10.0.1.7:8080  masq: -  by Cilium", "10.0.1.7:8080", []string{"source    unchanged\n", "choice    unknown: the endpoints are not recorded\n"}, nil},
		{"masqueraded", masqueraded, "default/web  => 10.0.1.7:8080  masq: 172.20.0.2  by Cilium", "10.0.1.7:8080", []string{"source    masqueraded as 172.20.0.2\n"}, nil},
		{"unknown", unknown, "translation not known", "not known", []string{"verdict   not known: no information on whether the node's service proxy translated it\n"}, []string{"unchanged", "choice"}},
		{"dropped", dropped, "default/web  => drop: policy denied", "drop: policy denied", []string{"verdict   dropped: policy-denied\n", "error     Cilium dropped it on its way to 10.0.1.7:8080\n"}, nil},
	} {
		if got := (Style{}).Outcome(tt.record); got != tt.outcome {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.outcome)
		}
		if got := Endpoint(tt.record); got != tt.cell {
			t.Errorf("%s: endpoint %q, want %q", tt.name, got, tt.cell)
		}
		story := Story(tt.record, Options{})
		for _, want := range tt.storyHas {
			if !strings.Contains(story, want) {
				t.Errorf("%s: no %q in\n%s", tt.name, want, story)
			}
		}
		for _, not := range tt.lack {
			if strings.Contains(story, not) {
				t.Errorf("%s: %q in\n%s", tt.name, not, story)
			}
		}
	}
}
