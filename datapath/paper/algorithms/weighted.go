package algorithms

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// maxSample is the largest sample of an algorithm.
const maxSample = 16

// weighted is the power of d choices for endpoints with weights: Berenbrink, Brinkmann, Friedetzky and Nagel, Balls
// into Non-Uniform Bins, IPDPS 2010. Endpoints are drawn in proportion to their weights, independently. The one that would have
// the fewest open connections per weight gets the flow; of equals the one with the largest weight. p2c and jsq draw
// all with the same probability instead.
type weighted struct {
	set  *balance.Set
	in   []uint32
	sums []uint64 // of the weights up to each of them
	size int
}

func newWeighted(size int) newPicker {
	return func(set *balance.Set, _ balance.Picker) balance.Picker {
		p := &weighted{set: set, in: set.Weighed(), size: size}
		sum := uint64(0)
		for _, i := range p.in {
			sum += set.WeightOf(i)
			p.sums = append(p.sums, sum)
		}
		return p
	}
}

func (p *weighted) Pick(f balance.Flow) decision.Pick {
	var best, second uint64
	at := uint32(0)
	for k := range p.size {
		i := p.draw(f.Rand)
		open, weight := uint64(p.set.Candidates[i].Open())+1, p.set.WeightOf(i)
		if k == 0 {
			at, best, second = i, open, open
			continue
		}
		mine, other := open*p.set.WeightOf(at), best*weight
		if mine < other || mine == other && weight > p.set.WeightOf(at) {
			at, best, second = i, open, best
		} else if k == 1 || open < second {
			second = open
		}
	}
	return decision.Pick{Position: at, Evidence: decision.Evidence{Kind: decision.FewerOpen, Values: [3]uint32{uint32(best - 1), uint32(second - 1), uint32(p.size)}}}
}

// draw draws a candidate in proportion to its weight.
func (p *weighted) draw(r decision.Rand) uint32 {
	total := p.sums[len(p.sums)-1]
	want := min(uint64(r.Float64()*float64(total)), total-1)
	at, _ := slices.BinarySearch(p.sums, want+1)
	return p.in[at]
}
