package offpolicy

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/netns/netnstest"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
)

// TestCoverage: intervals of 95 % have the truth in about 95 % of logs.
func TestCoverage(t *testing.T) {
	t.Parallel()
	logs, least, most := 200, 176, 199
	if !netnstest.All() {
		logs, least, most = 80, 70, 80
	}
	third := 1. / 3
	targets := map[string]map[string]float64{"": uneven.truth(third, third, third), "wrr": uneven.truth(1./8, 2./8, 5./8)}
	delete(targets[""], Imbalance) // the fullest of equal ones is above 1 by chance
	covers := make(map[string]int)
	for seed := range uint64(logs) {
		h, err := replay.ReadHistory(strings.NewReader(text(t, uneven.log(t, seed))), "node-a")
		if err != nil {
			t.Fatal(err)
		}
		for algorithm, truth := range targets {
			c := uneven.config(algorithm)
			c.Replications = 3
			r, err := estimate(h, c)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range truth {
				o := r.Services[0].outcome(t, name)
				for estimator, v := range map[string]Value{"IPS": o.IPS, "SNIPS": o.SNIPS, "DR": o.DR} {
					if v.Value == nil || v.Half == nil {
						t.Fatalf("seed %d: %s of %s has no interval", seed, estimator, name)
					}
					if math.Abs(*v.Value-want) <= *v.Half {
						covers[algorithm+" "+name+" "+estimator]++
					}
				}
			}
		}
	}
	t.Logf("%v of %d", covers, logs)
	const exact = "wrr imbalance DR" // the shares of wrr are the same in each log
	if covers[exact] == 0 || len(covers) != 3*(len(targets[""])+len(targets["wrr"])) {
		t.Errorf("covers %v", covers)
	}
	for what, n := range covers {
		if n < least || n > most && what != exact {
			t.Errorf("%s covers the truth in %d of %d logs, want %d to %d", what, n, logs, least, most)
		}
	}
}

// TestUnbiased: the estimates are far from what was recorded, and near the truth.
func TestUnbiased(t *testing.T) {
	w := uneven
	w.flows = 20_000
	truth := w.truth(1./8, 2./8, 5./8)
	r := w.estimate(t, "wrr", w.log(t, 5))
	for name, want := range truth {
		o := r.All.Outcomes
		if name == Imbalance {
			o = r.Services[0].Outcomes
		}
		g := Group{Outcomes: o}
		of := g.outcome(t, name)
		for _, v := range []Value{of.IPS, of.SNIPS, of.DR} {
			if math.Abs(*v.Value/want-1) > 0.08 {
				t.Errorf("%s: %v, want %v", name, *v.Value, want)
			}
		}
		if math.Abs(*of.Recorded/want-1) < 0.15 {
			t.Errorf("%s: recorded %v is near %v: the test cannot fail", name, *of.Recorded, want)
		}
	}
	if g := r.Services[0]; g.Algorithm != "wrr" || len(g.Warnings)+len(r.All.Warnings)+len(g.Unlogged) > 0 || math.Abs(g.Weights.Mean-1) > 0.05 {
		t.Errorf("group %+v", g)
	}
	// A flow that the target sends to the same endpoint weighs 1/logged: the mean of squares is that of 1/logged.
	if got, want := r.All.Weights.Effective/20_000, 8/(1/0.5+2/0.3+5/0.2); math.Abs(got/want-1) > 0.1 {
		t.Errorf("effective share %v, want %v", got, want)
	}
	if got, want := r.All.Weights.Largest*20_000, 1/0.2; math.Abs(got/want-1) > 0.05 {
		t.Errorf("largest share %v, want %v", got, want)
	}
}

// TestSamePolicy: the algorithm of the log itself gives what was recorded.
func TestSamePolicy(t *testing.T) {
	w := world{flows: 2000, servers: []server{{logged: 0.5, latency: 0.001, refused: 0.1}, {logged: 0.5, latency: 0.003, unanswered: 0.1}}}
	r := w.estimate(t, "", w.log(t, 1))
	// The replications draw differently: a weight is the mean of ten draws, whose squares have the mean 1.1.
	if got := r.All.Weights.Effective / 2000; got < 0.85 || got > 0.95 {
		t.Errorf("effective share %v, want 1/1.1", got)
	}
	for _, o := range r.All.Outcomes {
		for _, v := range []Value{o.IPS, o.SNIPS, o.DR} {
			if math.Abs(*v.Value-*o.Recorded) > 2**v.Half {
				t.Errorf("%s: %v ± %v, recorded %v", o.Name, *v.Value, *v.Half, *o.Recorded)
			}
		}
	}
}

// TestInterference: latency that depends on load gives a warning, latency that differs by endpoint none.
func TestInterference(t *testing.T) {
	mistakes := 0
	for seed := range uint64(30) {
		w := uneven
		if r := w.estimate(t, "wrr", w.log(t, seed)); r.Services[0].has(Interference) {
			mistakes++
			if o := r.All.outcome(t, Latency); o.Valid {
				t.Error("the estimate of all is valid")
			}
		} else if o := r.All.outcome(t, Latency); !o.Valid {
			t.Error("invalid without a reason")
		}
		w.flows, w.loadful = 1500, 1.5
		r := w.estimate(t, "wrr", w.log(t, seed))
		g := &r.Services[0]
		if text := g.warning(Interference); !strings.Contains(text, "connect latency depends on the endpoint's open connections (rank correlation 0.") || g.outcome(t, Latency).Valid || !g.outcome(t, Refused).Valid || r.All.outcome(t, Latency).Valid {
			t.Errorf("seed %d: warning %q, %+v", seed, text, g.LoadDependence)
		}
	}
	if mistakes > 3 {
		t.Errorf("%d of 30 logs without a dependence have a warning", mistakes)
	}
	r := uneven.estimate(t, "lc", uneven.log(t, 3))
	if text := r.Services[0].warning(Interference); !strings.HasPrefix(text, "interference: lc depends on the load") || r.Services[0].outcome(t, Latency).Valid {
		t.Errorf("warning %q", text)
	}
	if text := r.All.warning(Interference); text != "the estimate of connect latency is invalid, as in default/web:http" {
		t.Errorf("warning %q", text)
	}
}

// TestOverlap: an endpoint that the log never has is named, and few weighted flows too.
func TestOverlap(t *testing.T) {
	w := uneven
	w.servers = append([]server(nil), uneven.servers...)
	w.servers[0].logged, w.servers[2].logged = 0.7, 0
	records := w.log(t, 1)
	r := w.estimate(t, "wrr", records)
	g := &r.Services[0]
	if len(g.Unlogged) != 1 || g.Unlogged[0].Endpoint != "10.244.0.3:8080" || math.Abs(g.Unlogged[0].Share-5./8) > 0.01 {
		t.Errorf("unlogged %+v", g.Unlogged)
	}
	if text := g.warning(Overlap); !strings.HasPrefix(text, "no overlap: wrr selects endpoints to which no flow of the log went: 10.244.0.3:8080 (62.") {
		t.Errorf("warning %q", text)
	}
	r = uneven.estimate(t, "wrr", uneven.log(t, 1)[:90])
	if text := r.Services[0].warning(Overlap); !strings.HasPrefix(text, "little overlap: the weighted flows are worth ") || !strings.HasSuffix(text, " of 90 flows") {
		t.Errorf("warning %q", text)
	}
	rare := world{flows: 6000, servers: []server{{logged: 0.98}, {logged: 0.02, weight: 1}}}
	r = rare.estimate(t, "wrr", rare.log(t, 1))
	if text := r.Services[0].warning(Overlap); r.All.Weights.Effective < fewEffective || !strings.HasSuffix(text, " of 6000 flows") {
		t.Errorf("warning %q", text)
	}
	// None at all: there is no estimate, but of the spread.
	var first []flow.Record
	for _, r := range records {
		if r.Endpoint == address(0) {
			first = append(first, r)
		}
	}
	only := w
	only.servers = append([]server(nil), w.servers...)
	only.servers[0].weight = 0
	r = only.estimate(t, "wrr", first)
	g = &r.Services[0]
	if o := g.outcome(t, Refused); o.IPS.Value != nil || o.SNIPS.Value != nil || o.DR.Value != nil || o.Recorded == nil {
		t.Errorf("outcome %+v", o)
	}
	if o := g.outcome(t, Imbalance); o.IPS.Value != nil || o.DR.Value == nil || math.Abs(*o.DR.Value-15./7) > 0.01 {
		t.Errorf("outcome %+v", o)
	}
}

// TestSeeds: the same seed gives the same report.
func TestSeeds(t *testing.T) {
	log := text(t, uneven.log(t, 1))
	report := func(seed uint64) string {
		c := uneven.config("")
		c.Seed = seed
		r, err := Estimate(strings.NewReader(log), c)
		if err != nil {
			t.Fatal(err)
		}
		r.Seed = 0
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if first := report(1); report(1) != first {
		t.Error("the same seed gives another report")
	}
	if report(1) == report(2) {
		t.Error("the seed has no effect")
	}
}

// TestText: a table, the weights and the warnings of each service; of all, if there are several.
func TestText(t *testing.T) {
	records := uneven.log(t, 1)
	r := uneven.estimate(t, "lc", records)
	r.Services = append(r.Services, r.Services[0])
	r.LeftOut, r.Others = []LeftOut{{"session affinity selected the endpoint", 3}}, 2
	var b bytes.Buffer
	if _, err := r.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"800 flows, 800 counted; 10 replications, intervals of 95 %, seed 1\n", "\ndefault/web:http, by lc: 800 flows\n", "OUTCOME   RECORDED", "connect latency (invalid)", " ms ", " ± ",
		"weights: mean ", "\nwarning: interference: lc", "\nall services: 800 flows\n", "\nleft out:\n       3  session affinity selected the endpoint\n       2  of other nodes\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// TestStream: of the records of a stream about one flow only the last one counts.
func TestStream(t *testing.T) {
	records := uneven.log(t, 1)[:10]
	var stream []flow.Record
	for i := range records {
		records[i].ID = "a-" + string(rune('0'+i))
		early := records[i]
		early.Life = &flow.Life{State: flow.Decided, Since: *early.Time}
		stream = append(stream, early)
	}
	stream = append(stream, records...)
	if r := uneven.estimate(t, "", stream); r.Flows != 10 || r.Counted != 10 || len(r.LeftOut) != 0 {
		t.Errorf("report %+v", r)
	}
}
