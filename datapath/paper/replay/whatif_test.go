package replay

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// logged is a log of node-a: flows of one client to a service, each to an endpoint, with its time and duration.
type logged struct {
	endpoint    int
	at, open    time.Duration // open < 0: it is open
	withoutLife bool
}

var beginning = time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)

func livesLog(t *testing.T, list ...logged) string {
	t.Helper()
	var b strings.Builder
	for i, l := range list {
		at := beginning.Add(l.at)
		r := flow.Record{
			Version: flow.Version, Node: "node-a", Time: &at, Verdict: "dnat", Reason: "balanced", Protocol: "TCP", Service: "default/web:http",
			Source: fmt.Sprintf("10.244.1.9:%d", 40000+i), Destination: "10.96.0.20:80", Endpoint: fmt.Sprintf("10.244.0.%d:8080", l.endpoint), Conntrack: "created",
		}
		if !l.withoutLife {
			r.Life = &flow.Life{State: flow.Established, Since: at}
			if l.open >= 0 {
				r.Life.State, r.Life.Since = flow.Closed, at.Add(l.open)
			}
		}
		line, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
	}
	return b.String()
}

func whatIf(t *testing.T, algorithm string, endpoints int, log string) (*WhatIfReport, []string) {
	t.Helper()
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "default", Name: "web", Port: "http"}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"), Port: 80, HasEndpoints: endpoints > 0, Balance: algorithm,
	}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(fmt.Sprintf("10.244.0.%d:8080", i+1)), Ready: true, Serving: true, Weight: 1})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
	}
	table := decision.NewTable(1, time.Time{}, decision.Node{Name: "node-a"}, []*decision.ServicePort{s})
	w, err := NewWhatIf(table, nil, rand.New(rand.NewPCG(1, 0)))
	if err != nil {
		t.Fatal(err)
	}
	var differences []string
	report, err := w.Run(strings.NewReader(log), func(d *Difference) error {
		differences = append(differences, d.String())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return report, differences
}

// TestWhatIf: under lc the long connection has its endpoint to itself while it is open.
func TestWhatIf(t *testing.T) {
	list := []logged{{endpoint: 1, open: 10 * time.Second}}
	for i := range 9 { // all went to the same endpoint as the long one
		list = append(list, logged{endpoint: 1, at: time.Duration(i+1) * time.Second, open: 500 * time.Millisecond})
	}
	list = append(list, logged{endpoint: 2, at: 10500 * time.Millisecond, open: -1})
	report, differences := whatIf(t, "lc", 2, livesLog(t, list...))
	if report.Flows != 11 || report.Elsewhere != 10 || report.Same != 1 || report.Unknown != 1 || len(differences) != 10 {
		t.Errorf("report %+v, differences %q", report, differences)
	}
	if want := "line 2: TCP 10.244.1.9:40001 -> 10.96.0.20:80: endpoint: 10.244.0.1:8080, now 10.244.0.2:8080"; differences[0] != want {
		t.Errorf("got  %s\nwant %s", differences[0], want)
	}
	e := report.Services[0].Endpoints
	if e[0].Recorded.Flows != 10 || e[0].Recorded.Peak != 2 || e[0].Now.Flows != 2 || e[1].Now.Flows != 9 || e[1].Now.Peak != 1 {
		t.Errorf("endpoints %+v", e)
	}
	// Over 10.5 s: 10 s and 9 times 0.5 s.
	if got, want := e[0].Recorded.Mean, 14.5/10.5; got < want-0.01 || got > want+0.01 {
		t.Errorf("mean of %v open connections, want %v", got, want)
	}
	if n := len(e[0].Recorded.Open); n != samples || len(report.Samples) != n || slices.Max(e[0].Recorded.Open) != 2 || slices.Max(e[1].Now.Open) != 1 {
		t.Errorf("samples %+v", e)
	}
	var text strings.Builder
	if _, err := report.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"11 flows: 1 to the same endpoint, 10 elsewhere\n", "10.244.0.2:8080       1     9", "1 of 11 flows have no end"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

// TestWhatIfObjects: flows to a service that has lost its endpoints would fail, and the reverse.
func TestWhatIfObjects(t *testing.T) {
	log := livesLog(t, logged{endpoint: 1, open: time.Second}, logged{endpoint: 2, at: time.Second, withoutLife: true})
	report, differences := whatIf(t, "", 0, log)
	if report.Failed != 2 || report.Flows != 2 || report.Unknown != 1 || differences[0] != "line 1: TCP 10.244.1.9:40000 -> 10.96.0.20:80: verdict: dnat 10.244.0.1:8080, now reject" {
		t.Errorf("report %+v, differences %q", report, differences)
	}
	rejected := strings.ReplaceAll(strings.ReplaceAll(log, `"verdict":"dnat"`, `"verdict":"reject"`), `"endpoint":"10.244.0.1:8080"`, `"endpoint":""`)
	if report, _ := whatIf(t, "rr", 2, rejected); report.Served != 2 || report.Failed != 0 {
		t.Errorf("report %+v", report)
	}
}

// TestWhatIfMistakes: each has its line.
func TestWhatIfMistakes(t *testing.T) {
	good := livesLog(t, logged{endpoint: 1})
	for text, want := range map[string]string{
		"":           "there is no record in it",
		"{}\n":       "line 1: a record of version 0",
		good + "x\n": "line 2: not a record of a flow log",
		strings.Replace(good, `"node":"node-a"`, `"node":"node-b"`, 1):         `no record is of node "node-a": there are those of node-b`,
		strings.Replace(good, `"time":"2026-01-02T12:00:00Z",`, "", 1):         "line 1: the record has no time",
		strings.Replace(good, `"source":"10.244.1.9:40000"`, `"source":""`, 1): `line 1: source ""`,
	} {
		table := decision.NewTable(1, time.Time{}, decision.Node{Name: "node-a"}, nil)
		w, err := NewWhatIf(table, nil, rand.New(rand.NewPCG(1, 0)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Run(strings.NewReader(text), nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
}

// TestWhatIfEnds: connections that outlive the last decision end in the order of their ends.
func TestWhatIfEnds(t *testing.T) {
	report, _ := whatIf(t, "rr", 2, livesLog(t, logged{endpoint: 1, open: 2 * time.Second}, logged{endpoint: 2, open: 10 * time.Second}))
	e := report.Services[0].Endpoints
	if got := e[0].Recorded.Mean; got < 0.199 || got > 0.201 {
		t.Errorf("mean %v, want 0.2", got)
	}
	if open := e[0].Recorded.Open; open[0] != 1 || open[30] != 0 || e[1].Recorded.Open[58] != 1 {
		t.Errorf("open %v", open)
	}
}

// TestHistory: of several records of a flow the last one counts; a connection without an answer ends with its entry.
func TestHistory(t *testing.T) {
	log := livesLog(t, logged{endpoint: 1, open: -1}, logged{endpoint: 2, at: time.Second, open: -1})
	log = strings.Replace(log, `"node":"node-a"`, `"id":"a","node":"node-a"`, 1)
	over := strings.NewReplacer(`"state":"established"`, `"state":"unanswered"`, `"over":false`, `"over":true`, `"duration":0`, `"duration":120`)
	first, _, _ := strings.Cut(log, "\n")
	h, err := ReadHistory(strings.NewReader(log+over.Replace(first)), "node-a")
	if err != nil || len(h.Flows) != 2 {
		t.Fatalf("%+v, %v", h, err)
	}
	if f := h.Flows[0]; !f.Ended || f.End.Sub(f.Start) != 2*time.Minute || f.Line != 3 || h.End != f.End {
		t.Errorf("flow %+v", f)
	}
	if f := h.Flows[1]; f.Ended || f.Number != 1 || f.End != h.End.Add(1) {
		t.Errorf("flow %+v", f)
	}
}
