package balance

import (
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// leastConn selects the endpoint with the least load: the schedulers lc, wlc, sed and nq of IPVS. Of
// several the first one is selected, and endpoints of weight 0 only if all have it.
type leastConn struct {
	set  *Set
	load func(e *Endpoint) uint64
	// idle: an endpoint without open connections comes first.
	idle bool
	// weighted: loads are compared in proportion to the weights.
	weighted bool
	kind     decision.EvidenceKind
}

// overhead is the load of ip_vs_dest_conn_overhead in ip_vs.h: an open connection counts as 256
// inactive ones.
func overhead(e *Endpoint) uint64 { return uint64(e.Open())<<8 + uint64(e.Inactive()) }

// expected is the load of ip_vs_sed_dest_overhead in ip_vs_sed.c: with the new connection, and without
// inactive ones.
func expected(e *Endpoint) uint64 { return uint64(e.Open()) + 1 }

func (p *leastConn) Pick(Flow) decision.Pick {
	best, bestLoad := -1, uint64(0)
	for i := range p.set.Candidates {
		c := &p.set.Candidates[i]
		if c.Weight == 0 {
			continue
		}
		if p.idle && c.Open() == 0 {
			return decision.Pick{Position: uint32(i), Probability: 1, Evidence: decision.Evidence{Kind: decision.Idle}}
		}
		l := p.load(c.Endpoint)
		// l/weight < bestLoad/bestWeight, without division, as in IPVS
		if best < 0 || l*p.weight(best) < bestLoad*p.weight(i) {
			best, bestLoad = i, l
		}
	}
	best = max(best, 0)
	c := &p.set.Candidates[best]
	e := decision.Evidence{Kind: p.kind, Values: [3]uint32{uint32(c.Open()), uint32(c.Inactive()), uint32(p.weight(best))}}
	return decision.Pick{Position: uint32(best), Probability: 1, Evidence: e}
}

func (p *leastConn) weight(i int) uint64 {
	if !p.weighted {
		return 1
	}
	return uint64(p.set.Candidates[i].Weight)
}

// maxSample is the largest sample of an algorithm.
const maxSample = 16

// sampled selects the best endpoint of a small random sample: p2c and jsq by open connections, ewma by
// latency. See Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001.
type sampled struct {
	set  *Set
	in   []uint32 // positions of candidates with a weight; all, if none has one
	size int
	// cost is what is compared, per weight.
	cost func(e *Endpoint) uint64
	kind decision.EvidenceKind
}

func newSampled(set *Set, size int, cost func(*Endpoint) uint64, kind decision.EvidenceKind) Picker {
	p := &sampled{set: set, in: set.Weighed(), cost: cost, kind: kind}
	p.size = min(size, len(p.in))
	return p
}

func (p *sampled) Pick(f Flow) decision.Pick {
	var sample [maxSample]uint32
	n := len(DrawDifferent(f.Rand, p.in, sample[:p.size]))
	best, bestCost, second := sample[0], p.cost(p.set.Candidates[sample[0]].Endpoint), uint64(0)
	for k, i := range sample[1:n] {
		c := p.cost(p.set.Candidates[i].Endpoint)
		if c*p.set.WeightOf(best) < bestCost*p.set.WeightOf(i) {
			best, bestCost, second = i, c, bestCost
		} else if k == 0 || c < second {
			second = c
		}
	}
	pick := decision.Pick{Position: best, Evidence: decision.Evidence{Kind: p.kind, Values: [3]uint32{capped(bestCost), capped(second), uint32(n)}}}
	if n == 1 {
		pick.Probability = 1
	}
	return pick
}

func capped(v uint64) uint32 { return uint32(min(v, 1<<32-1)) }

// DrawDifferent fills a sample with different ones of all, of which there are as many.
func DrawDifferent(r decision.Rand, all, sample []uint32) []uint32 {
	for k := 0; k < len(sample); {
		c := all[min(int(r.Float64()*float64(len(all))), len(all)-1)]
		if !slices.Contains(sample[:k], c) {
			sample[k] = c
			k++
		}
	}
	return sample
}

func openConnections(e *Endpoint) uint64 { return uint64(e.Open()) }

// unansweredLatency is the latency of an endpoint that has open connections but has not answered yet.
const unansweredLatency = time.Second

// latencyCost is the expected wait in microseconds: the latency of connections, times those that are
// open with the new one. Finagle's Peak EWMA is its model.
func latencyCost(e *Endpoint) uint64 {
	latency, open := e.Latency(), uint64(e.Open())
	if latency == 0 && open > 0 {
		latency = unansweredLatency
	}
	return uint64(latency.Microseconds()) * (open + 1)
}
