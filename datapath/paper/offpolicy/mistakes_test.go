package offpolicy

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// TestLeftOut: flows that cannot count have their reason.
func TestLeftOut(t *testing.T) {
	for want, change := range map[string]func(r *flow.Record){
		"sent to no endpoint":                                          func(r *flow.Record) { r.Verdict, r.Endpoint = "reject", "" },
		"its connection entry was there before":                        func(r *flow.Record) { r.Conntrack = "kept" },
		"session affinity selected the endpoint":                       func(r *flow.Record) { r.Reason = decision.Bound.String() },
		"the kernel's copy of the service table selected the endpoint": func(r *flow.Record) { r.Reason = decision.ByKernel.String() },
		"a user selected the endpoint of a held flow":                  func(r *flow.Record) { r.Held = &flow.Hold{Action: flow.HoldChosen} },
		"a second chance: an endpoint failed before":                   func(r *flow.Record) { r.Earlier = make([]flow.Attempt, 1) },
		"the record has no life (nfqproxy flows -o jsonl has it)":      func(r *flow.Record) { r.Life = nil },
		"its answer is not known yet, or was lost":                     func(r *flow.Record) { *r.Life = flow.Life{State: flow.Decided} },
		"the probability of the endpoint is not recorded":              func(r *flow.Record) { r.Candidates, r.Balance.Probability = nil, 0 },
		"a deterministic algorithm selected the endpoint":              func(r *flow.Record) { r.Candidates = only(r, 1); r.Balance.Probability = 1 },
		"no endpoint by the objects":                                   func(r *flow.Record) { r.Destination = "10.96.0.21:80" },
	} {
		records := uneven.log(t, 1)[:3]
		change(&records[1])
		r := uneven.estimate(t, "", records)
		if r.Flows != 3 || r.Counted != 2 || len(r.LeftOut) != 1 || r.LeftOut[0] != (LeftOut{want, 1}) {
			t.Errorf("want %q, got %+v of %d, %d counted", want, r.LeftOut, r.Flows, r.Counted)
		}
	}
}

// only gives the record's candidates, of which one has a probability.
func only(r *flow.Record, p float64) []flow.Candidate {
	var list []flow.Candidate
	for _, c := range r.Candidates {
		c.Probability = 0
		if c.Endpoint == r.Endpoint {
			c.Probability = p
		}
		list = append(list, c)
	}
	return list
}

// TestProbability: of the candidate, of the algorithm, or of kube-proxy's draw.
func TestProbability(t *testing.T) {
	for want, r := range map[float64]*flow.Record{
		0.2:  {Endpoint: "b", Candidates: []flow.Candidate{{Endpoint: "a", Probability: 0.8}, {Endpoint: "b", Probability: 0.2}}, Balance: &flow.Balance{}},
		0.3:  {Endpoint: "b", Candidates: []flow.Candidate{{Endpoint: "a"}, {Endpoint: "b"}}, Balance: &flow.Balance{Probability: 0.3}},
		0.25: {Endpoint: "b", Candidates: make([]flow.Candidate, 4)},
		1:    {Endpoint: "b", Candidates: []flow.Candidate{{Endpoint: "b", Probability: 1}}, Balance: &flow.Balance{}},
	} {
		if got, reason, err := probability(r); got != want || reason != "" || err != nil {
			t.Errorf("got %v %q %v, want %v", got, reason, err, want)
		}
	}
}

// TestMistakes: each has one message.
func TestMistakes(t *testing.T) {
	good := func(change func(r *flow.Record)) string {
		records := uneven.log(t, 1)[:2]
		change(&records[1])
		return text(t, records)
	}
	for _, tt := range []struct {
		log    string
		config func(c *Config)
		want   string
	}{
		{want: "there is no record in it"},
		{log: "{}", want: "line 1: a record of version 0: only version 1 of the flow log is known"},
		{log: good(func(r *flow.Record) { r.Candidates = only(r, 1.5) }), want: "line 2: endpoint 10.244.0.1:8080 has the probability 1.5: want 0, or 1e-09 to 1"},
		{log: good(func(r *flow.Record) { r.Candidates = only(r, -1) }), want: "line 2: endpoint 10.244.0.1:8080 has the probability -1: want 0, or 1e-09 to 1"},
		{log: good(func(r *flow.Record) { r.Candidates = only(r, 1e-300) }), want: "line 2: endpoint 10.244.0.1:8080 has the probability 1e-300: want 0, or 1e-09 to 1"},
		{log: good(func(r *flow.Record) { r.Life.AnsweredAfter = -1 }), want: "line 2: life.answeredAfter -1: want seconds from 0 to 1e+06"},
		{log: good(func(r *flow.Record) { r.Endpoint = "web" }), want: `line 2: endpoint "web": want an address with a port`},
		{log: good(func(r *flow.Record) {
			r.Candidates = []flow.Candidate{{Endpoint: "x"}, {Endpoint: r.Endpoint, Probability: 0.5}}
		}), want: `line 2: candidate "x": want an address with a port`},
		{log: text(t, uneven.log(t, 1)[:1]), config: func(c *Config) { c.Table = uneven.empty() }, want: "no flow of the log can count: no endpoint by the objects (1)"},
		{config: func(c *Config) { c.Confidence = 100 }, want: "confidence 100: want percent above 0 and below 100, as 95"},
		{config: func(c *Config) { c.Confidence = math.NaN() }, want: "confidence NaN: want percent above 0 and below 100, as 95"},
		{config: func(c *Config) { c.Replications = 0 }, want: "replications 0: want 1 to 1000"},
	} {
		c := uneven.config("")
		if tt.config != nil {
			tt.config(&c)
		}
		if _, err := Estimate(strings.NewReader(tt.log), c); err == nil || err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", err, tt.want)
		}
	}
}

// empty is the table of the service without endpoints.
func (w world) empty() *decision.Table {
	w.servers = nil
	return w.table("")
}

// TestFewFlows: of some flows there is an estimate, of one no interval.
func TestFewFlows(t *testing.T) {
	first := uneven.log(t, 1)
	first[0].Life = &flow.Life{State: flow.Unanswered} // of flows that all have the same outcome there is none either
	for n := 1; n <= 45; n++ {
		r := uneven.estimate(t, "", first[:n])
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		if o := r.All.outcome(t, Unanswered); r.All.Weights.Effective > 0 && (o.IPS.Value == nil || (o.IPS.Half == nil) != (n == 1)) {
			t.Errorf("%d flows: %+v", n, o)
		}
	}
}

// TestWithoutLatency: a log without times of answers has the other estimates.
func TestWithoutLatency(t *testing.T) {
	records := uneven.log(t, 1)
	for i := range records {
		records[i].Life.AnsweredAfter = 0
	}
	g := uneven.estimate(t, "", records).Services[0]
	if o := g.outcome(t, Latency); o.Recorded != nil || o.DR.Value != nil || g.LoadDependence != nil || g.outcome(t, Refused).DR.Value == nil {
		t.Errorf("group %+v", g)
	}
	if got := g.warning(Missing); got != "connect latency is not known: no flow that counts has life.answeredAfter" {
		t.Errorf("warning %q", got)
	}
}

// FuzzEstimate: any log gives a report that JSON can have, or one error.
func FuzzEstimate(f *testing.F) {
	log := text(f, uneven.log(f, 1)[:2]) // longer ones take long to minimize
	f.Add(log)
	f.Add(strings.ReplaceAll(log, `"closed"`, `"established"`))
	f.Add(strings.ReplaceAll(log, `"10.244.0.1:8080"`, `"[fd00::1]:8080"`))
	f.Add(strings.ReplaceAll(log, "2026-01-02", "0001-01-01"))
	c := uneven.config("lc")
	c.Replications = 2
	f.Fuzz(func(t *testing.T, log string) {
		r, err := Estimate(strings.NewReader(log), c)
		if err != nil {
			return
		}
		left := 0
		for _, l := range r.LeftOut {
			left += l.Flows
		}
		if r.Counted < 1 || r.Counted+left != r.Flows {
			t.Fatalf("%d flows, %d counted, %d left out", r.Flows, r.Counted, left)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}
