package balance

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// roundRobin gives each endpoint its turn: the schedulers rr and wrr of IPVS. It is a list of turns,
// and the number of the next. IPVS's wrr gives an endpoint of weight 5 its turns one after the other;
// here they are spread evenly over a round.
type roundRobin struct {
	set   *Set
	turns []uint32 // positions in set.Candidates
	next  atomic.Uint64
}

// maxRound is the largest number of turns in a round of weighted endpoints. Weights whose round would
// be longer are rounded.
const maxRound = 1 << 16

func newRoundRobin(set *Set, before Picker, weighted bool) Picker {
	p := &roundRobin{set: set}
	if weighted {
		p.turns = spread(weights(set))
	}
	if len(p.turns) == 0 { // not weighted, or all weights are 0
		p.turns = set.positions(false)
	}
	if before, ok := before.(*roundRobin); ok {
		p.next.Store(p.after(before))
	}
	return p
}

// after is the number of the turn that follows the last one of the picker before: that of the next
// endpoint that is still there.
func (p *roundRobin) after(before *roundRobin) uint64 {
	next := before.next.Load()
	for i := range uint64(len(before.turns)) {
		e := before.set.Candidates[before.turns[(next+i)%uint64(len(before.turns))]].Endpoint
		for turn, c := range p.turns {
			if p.set.Candidates[c].Endpoint == e {
				return uint64(turn)
			}
		}
	}
	return 0
}

func (p *roundRobin) Pick(Flow) decision.Pick {
	n := uint64(len(p.turns))
	turn := (p.next.Add(1) - 1) % n
	return decision.Pick{
		Position: p.turns[turn], Probability: 1,
		Evidence: decision.Evidence{Kind: decision.Turn, Values: [3]uint32{uint32(turn + 1), uint32(n)}},
	}
}

// State implements [Reporter].
func (p *roundRobin) State() any {
	n := uint64(len(p.turns))
	return map[string]uint64{"turn": p.next.Load()%n + 1, "turns": n}
}

// weights are the candidates' weights, without a common divisor.
func weights(set *Set) []int {
	w := make([]int, len(set.Candidates))
	common := 0
	for i := range set.Candidates {
		w[i] = int(set.Candidates[i].Weight)
		common = gcd(common, w[i])
	}
	for i := range w {
		w[i] /= max(common, 1)
	}
	return w
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// spread returns a round: each position as often as its weight, at even distances.
func spread(weights []int) []uint32 {
	total := 0
	for _, w := range weights {
		total += w
	}
	type turn struct {
		at       float64 // in the round, from 0 to 1
		position uint32
	}
	var turns []turn
	for i, w := range weights {
		if total > maxRound && w > 0 {
			w = max(w*maxRound/total, 1)
		}
		for k := range w {
			turns = append(turns, turn{(float64(k) + 0.5) / float64(w), uint32(i)})
		}
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Compare(a.at, b.at) })
	round := make([]uint32, len(turns))
	for i, t := range turns {
		round[i] = t.position
	}
	return round
}
