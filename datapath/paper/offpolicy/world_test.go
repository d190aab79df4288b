package offpolicy

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

// world is a service whose truth is known.
type world struct {
	servers []server
	flows   int
	loadful float64 // by how much each open connection of a server adds to its latency, as a share
}

// server is an endpoint.
type server struct {
	logged              float64 // the share of flows that the logging policy gives to it
	weight              uint16  // for target algorithms
	latency             float64 // mean seconds
	refused, unanswered float64 // shares
}

var beginning = time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)

func address(i int) string { return fmt.Sprintf("10.244.0.%d:8080", i+1) }

// log makes the log of a biased logging policy.
func (w *world) log(t testing.TB, seed uint64) []flow.Record {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 77))
	var candidates []flow.Candidate
	for i, s := range w.servers {
		candidates = append(candidates, flow.Candidate{Endpoint: address(i), Probability: s.logged})
	}
	ends := make([][]time.Time, len(w.servers))
	at := beginning
	var records []flow.Record
	for n := range w.flows {
		at = at.Add(time.Duration(r.ExpFloat64() * float64(20*time.Millisecond)))
		e, draw := 0, r.Float64()
		for e < len(w.servers)-1 && draw >= w.servers[e].logged {
			draw -= w.servers[e].logged
			e++
		}
		s := &w.servers[e]
		ends[e] = slices.DeleteFunc(ends[e], func(end time.Time) bool { return !end.After(at) })
		open := len(ends[e])
		l := &flow.Life{State: flow.Closed, Answered: true}
		took := s.latency * r.ExpFloat64() * (1 + w.loadful*float64(open))
		switch uniform := r.Float64(); {
		case uniform < s.refused:
			l.State, l.Since = flow.Refused, at
		case uniform < s.refused+s.unanswered:
			*l = flow.Life{State: flow.Unanswered, Since: at.Add(3 * time.Second)}
		default:
			l.AnsweredAfter = took
			l.Since = at.Add(time.Duration((took + 0.1*r.ExpFloat64()) * float64(time.Second)))
			ends[e] = append(ends[e], l.Since)
		}
		time := at
		records = append(records, flow.Record{
			Version: flow.Version, Node: "node-a", Time: &time, Verdict: "dnat", Reason: "balanced", Protocol: "TCP", Service: "default/web:http",
			Source: fmt.Sprintf("10.244.%d.9:%d", n%200, 30000+n/200), Destination: "10.96.0.20:80", Endpoint: address(e), Candidates: candidates,
			Conntrack: "created", Balance: &flow.Balance{Algorithm: "script:biased", Probability: s.logged}, Life: l,
		})
	}
	return records
}

func text(t testing.TB, records []flow.Record) string {
	t.Helper()
	var b strings.Builder
	e := json.NewEncoder(&b)
	for i := range records {
		if err := e.Encode(&records[i]); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// table has the service with the target algorithm.
func (w *world) table(algorithm string) *decision.Table {
	s := &decision.ServicePort{
		Name: decision.ServicePortName{Namespace: "default", Name: "web", Port: "http"}, Protocol: decision.TCP, Family: decision.IPv4,
		ClusterIP: netip.MustParseAddr("10.96.0.20"), Port: 80, HasEndpoints: len(w.servers) > 0, Balance: algorithm,
	}
	for i, e := range w.servers {
		s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.MustParseAddrPort(address(i)), Ready: true, Serving: true, Weight: e.weight})
		s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(i))
	}
	return decision.NewTable(1, time.Time{}, decision.Node{Name: "node-a"}, []*decision.ServicePort{s})
}

// config has few replications: tests are to be fast.
func (w *world) config(algorithm string) Config {
	return Config{Table: w.table(algorithm), Replications: 10, Confidence: 95, Seed: 1}
}

func (w *world) estimate(t testing.TB, algorithm string, records []flow.Record) *Report {
	t.Helper()
	r, err := Estimate(strings.NewReader(text(t, records)), w.config(algorithm))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// truth gives the means if each server has a share of the flows.
func (w *world) truth(shares ...float64) map[string]float64 {
	connected, took := 0.0, 0.0
	m := make(map[string]float64)
	for i, s := range w.servers {
		m[Refused] += shares[i] * s.refused
		m[Unanswered] += shares[i] * s.unanswered
		connects := shares[i] * (1 - s.refused - s.unanswered)
		connected += connects
		took += connects * s.latency
		m[Imbalance] = max(m[Imbalance], shares[i]*float64(len(shares)))
	}
	m[Latency] = took / connected
	return m
}

func (g *Group) outcome(t testing.TB, name string) *Outcome {
	t.Helper()
	for i := range g.Outcomes {
		if g.Outcomes[i].Name == name {
			return &g.Outcomes[i]
		}
	}
	t.Fatalf("no outcome %s", name)
	return nil
}

// warning gives the texts of a kind.
func (g *Group) warning(kind string) string {
	var list []string
	for _, w := range g.Warnings {
		if w.Kind == kind {
			list = append(list, w.Text)
		}
	}
	return strings.Join(list, "\n")
}

// uneven is a service whose servers differ in everything.
var uneven = world{flows: 800, servers: []server{
	{logged: 0.5, weight: 1, latency: 0.001, refused: 0.02, unanswered: 0.10},
	{logged: 0.3, weight: 2, latency: 0.010, refused: 0.10, unanswered: 0.02},
	{logged: 0.2, weight: 5, latency: 0.004, refused: 0.20, unanswered: 0.05},
}}

// addresses are those of the first servers.
func (w *world) addresses(n int) []netip.AddrPort {
	var list []netip.AddrPort
	for i := range n {
		list = append(list, netip.MustParseAddrPort(address(i)))
	}
	return list
}
