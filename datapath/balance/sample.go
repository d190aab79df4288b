package balance

import (
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

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
	p := &sampled{set: set, cost: cost, kind: kind}
	for i := range set.Candidates {
		if set.Candidates[i].Weight > 0 {
			p.in = append(p.in, uint32(i))
		}
	}
	if len(p.in) == 0 {
		for i := range set.Candidates {
			p.in = append(p.in, uint32(i))
		}
	}
	p.size = min(size, len(p.in))
	return p
}

func (p *sampled) Pick(f Flow) decision.Pick {
	var sample [maxSample]uint32
	n := p.draw(f.Rand, &sample)
	best, bestCost, second := sample[0], p.cost(p.set.Candidates[sample[0]].Endpoint), uint64(0)
	for k, i := range sample[1:n] {
		c := p.cost(p.set.Candidates[i].Endpoint)
		if c*p.weight(best) < bestCost*p.weight(i) {
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

func (p *sampled) weight(i uint32) uint64 { return uint64(max(p.set.Candidates[i].Weight, 1)) }

// draw draws different candidates, and returns how many.
func (p *sampled) draw(r decision.Rand, sample *[maxSample]uint32) int {
	n := len(p.in)
	for k := 0; k < p.size; {
		c := p.in[min(int(r.Float64()*float64(n)), n-1)]
		again := false
		for _, other := range sample[:k] {
			again = again || other == c
		}
		if !again {
			sample[k] = c
			k++
		}
	}
	return p.size
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
