package history

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// traffic makes records of a node as those of a busy one: services of several endpoints, clients with random ports, and
// connections whose times and counts follow no pattern that a compressor could find.
type traffic struct {
	random *rand.Rand
	prefix string
	next   uint64
	at     time.Time
	rate   float64 // flows per second
}

func newTraffic(start time.Time, rate float64) *traffic {
	return &traffic{random: rand.New(rand.NewPCG(1, 2)), prefix: "k3v9x2ab", at: start, rate: rate}
}

func (g *traffic) lognormal(median, sigma float64) float64 {
	return median * math.Exp(sigma*g.random.NormFloat64())
}

// flow returns the record of the next flow when it is over.
func (g *traffic) flow() *flow.Record {
	n := g.random
	g.next++
	g.at = g.at.Add(time.Duration(n.ExpFloat64() / g.rate * 1e9))
	at := g.at
	service := min(int(n.ExpFloat64()*12), 59) // a few are busy
	endpoints := 2 + service%9
	client := min(int(n.ExpFloat64()*80), 399)
	chosen := n.IntN(endpoints)
	port := 32768 + n.IntN(28232)
	address := func(i int) string { return fmt.Sprintf("10.244.%d.%d:8080", (service+i)%6, 10+(service*7+i)%200) }
	waited := g.lognormal(12e-6, 0.5)
	r := &flow.Record{
		Version: flow.Version, ID: fmt.Sprintf("%s-%d", g.prefix, g.next), Time: &at, Node: "node-a",
		Verdict: "dnat", Reason: "balanced", Protocol: "TCP",
		Source: fmt.Sprintf("10.244.1.%d:%d", client%250, port), Destination: fmt.Sprintf("10.96.0.%d:80", service+10),
		SourcePod: fmt.Sprintf("shop/client-7d4b9c6f5-%05d", client), SourceNode: "node-a",
		Service: fmt.Sprintf("shop/service-%d:http", service), Entry: "cluster-ip", Branch: "internal-policy", Policy: "Cluster",
		Endpoint: address(chosen), Pod: fmt.Sprintf("shop/service-%d-5f6d8-%d", service, chosen), EndpointNode: fmt.Sprintf("node-%d", (service+chosen)%6),
		Candidates: []flow.Candidate{}, Excluded: []flow.Excluded{}, Conntrack: "created", Generation: 12 + g.next/100000,
		Stages: &flow.Stages{Waited: &waited, Decided: g.lognormal(4e-7, 0.3), Written: g.lognormal(4e-6, 0.4), Accepted: g.lognormal(6e-6, 0.4)},
	}
	for i := range endpoints {
		r.Candidates = append(r.Candidates, flow.Candidate{Endpoint: address(i), Probability: 1 / float64(endpoints)})
	}
	if service%5 == 0 {
		r.Excluded = append(r.Excluded, flow.Excluded{Endpoint: address(endpoints), Reason: "not-ready"})
	}
	l := &flow.Life{State: flow.Closed, Answered: true, Over: true, KernelState: "TIME_WAIT", SeenSource: r.Source}
	took := time.Duration(g.lognormal(0.03, 1.2) * 1e9)
	l.AnsweredAfter = math.Round(g.lognormal(300e-6, 0.7)*1e6) / 1e6
	switch {
	case n.IntN(5) == 0:
		r.Protocol, r.Destination, l.State, l.KernelState = "UDP", "10.96.0.10:53", flow.Expired, ""
		l.Sent = &flow.Count{Packets: 1, Bytes: uint64(60 + n.IntN(40))}
		l.Received = &flow.Count{Packets: 1, Bytes: uint64(90 + n.IntN(200))}
		l.Since = at.Add(30 * time.Second)
		l.Duration = 30 + n.Float64()
	case n.IntN(100) == 0:
		l.State, l.Answered, l.AnsweredAfter, l.KernelState = flow.Unanswered, false, 0, "SYN_SENT"
		l.Since, l.Duration = at.Add(3*time.Second), 120+n.Float64()
		l.Sent, l.Received = &flow.Count{Packets: 6, Bytes: 360}, &flow.Count{}
	default:
		up, down := g.lognormal(900, 1), g.lognormal(6000, 1.5)
		l.Sent = &flow.Count{Packets: 5 + uint64(down/3000), Bytes: 320 + uint64(up)}
		l.Received = &flow.Count{Packets: 4 + uint64(down/1400), Bytes: 280 + uint64(down)}
		l.Since = at.Add(took)
		l.Duration = 120 + took.Seconds()
	}
	end := at.Add(time.Duration(l.Duration * 1e9))
	l.CountedAt = &end
	r.Life = l
	return r
}
