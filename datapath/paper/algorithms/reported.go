package algorithms

import (
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// reported is weighted round robin by reports, as Google had it before Prequal (NSDI 2024, section 2, see prequal.go) and
// gRPC has it (gRFC A58): the weight of an endpoint is its throughput over its utilization, of the last period. An endpoint that
// has done nothing has the mean weight of the others.
type reported struct {
	set       *balance.Set
	cluster   Cluster
	in        []uint32
	endpoints []int
	period    time.Duration
	weights   []uint64  // from 0 to fullWeight
	rates     []float64 // for reuse
	turn      uint64
	next      int64
	last      map[*balance.Endpoint]Report // one for all sets
}

// fullWeight is the largest weight.
const fullWeight = 1<<16 - 1

func newReported(c Cluster) made {
	return func(parameter string) (a balance.Algorithm, err error) {
		period := time.Second
		if parameter != "" {
			if period, err = duration(parameter); err != nil {
				return a, err
			}
		}
		a.Feedback = true
		a.New = func(set *balance.Set, before balance.Picker) balance.Picker {
			p := &reported{set: set, cluster: c, in: set.Weighed(), endpoints: endpoints(set, c), period: period}
			p.weights, p.rates = make([]uint64, len(p.in)), make([]float64, len(p.in))
			if b, ok := before.(*reported); ok {
				p.last = b.last
			} else {
				p.last = make(map[*balance.Endpoint]Report)
			}
			return p
		}
		return a, nil
	}
}

func (p *reported) Pick(f balance.Flow) decision.Pick {
	if p.next == 0 { // not all nodes begin with the same endpoint
		p.turn = uint64(f.Rand.Float64() * fullWeight * float64(len(p.in)))
	}
	if now := f.Now(); p.next == 0 || now >= p.next {
		p.next = now + int64(p.period)
		p.weigh()
	}
	// Turns go round. In each round an endpoint's counter grows by its weight, and it gets a flow when the counter overflows:
	// the scheduler of gRFC A58. The heaviest gets one in each round.
	n := uint64(len(p.in))
	for {
		k, round := p.turn%n, p.turn/n
		p.turn++
		const apart = fullWeight / 2 // neighbours do not overflow in the same rounds
		if w := p.weights[k]; (w*round+k*apart)%fullWeight >= fullWeight-w {
			return decision.Pick{
				Position: p.in[k], Probability: 1,
				Evidence: decision.Evidence{Kind: decision.Noted, Note: "its turn, by throughput over utilization"},
			}
		}
	}
}

// weigh asks the endpoints for reports. Those of a period give throughput q = done/period and utilization
// u = worked/(period·workers), so q/u is in proportion to done/worked.
func (p *reported) weigh() {
	most, sum, known := 0.0, 0.0, 0
	for k, i := range p.in {
		p.rates[k] = 0
		now := p.cluster.Report(p.endpoints[i])
		last := p.last[p.set.Candidates[i].Endpoint]
		if now.Done > last.Done && now.Worked > last.Worked {
			p.rates[k] = float64(now.Done-last.Done) / (now.Worked - last.Worked).Seconds()
			most, sum, known = max(most, p.rates[k]), sum+p.rates[k], known+1
		}
		p.last[p.set.Candidates[i].Endpoint] = now
	}
	for k := range p.rates {
		switch {
		case known == 0:
			p.weights[k] = fullWeight
		case p.rates[k] == 0:
			p.weights[k] = max(uint64(sum/float64(known)/most*fullWeight), 1)
		default:
			p.weights[k] = max(uint64(p.rates[k]/most*fullWeight), 1)
		}
	}
}
