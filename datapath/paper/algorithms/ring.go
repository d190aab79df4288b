package algorithms

import (
	"cmp"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// ring is a consistent hash with points on a ring: Karger et al., Consistent Hashing and Random Trees, STOC 1997,
// section 4. A key belongs to the first point at or after it. Of the heaviest endpoints each has the given number of points,
// others have them in proportion to their weights, and at least one. The default is that of libketama.
type ring struct {
	set    *balance.Set
	points []point // by hash
}

type point struct {
	at       uint64
	position uint32 // in Set.Candidates
}

func newRing(set *balance.Set, each int) *ring {
	r, most := &ring{set: set}, heaviest(set)
	for _, i := range set.Weighed() {
		hash := hashOf(set, i)
		for n := range max(uint64(each)*set.WeightOf(i)/most, 1) {
			r.points = append(r.points, point{mix(hash, n), i})
		}
	}
	slices.SortFunc(r.points, func(a, b point) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.position, b.position)) })
	return r
}

// after is the first point at or after a key.
func (r *ring) after(key uint64) int {
	i, _ := slices.BinarySearchFunc(r.points, key, func(p point, key uint64) int { return cmp.Compare(p.at, key) })
	return i % len(r.points)
}

func (r *ring) find(key uint64) uint32 { return r.points[r.after(key)].position }

// bounded is the ring with bounded loads: Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with Bounded Loads,
// SODA 2018, section 2. An endpoint with its share of 1+ε times the mean, rounded up, is full, and the next on
// the ring gets the flow. A node counts its own open connections, as the load balancers do that have the algorithm.
type bounded struct {
	ring
	in      []uint32
	percent uint64 // 100 ε
}

func newBounded(percent int) newPicker {
	const points = 160
	return func(set *balance.Set, _ balance.Picker) balance.Picker {
		return &bounded{*newRing(set, points), set.Weighed(), uint64(percent)}
	}
}

func (p *bounded) Pick(f balance.Flow) decision.Pick {
	open := uint64(1) // with the new flow
	for _, i := range p.in {
		open += uint64(p.set.Candidates[i].Open())
	}
	share := 100 * uint64(len(p.in))
	most := (open*(100+p.percent) + share - 1) / share
	first := p.after(balance.HashFlow(f.Packet))
	// The mean is below the limit, so one of them has room, unless connections begin at the same time.
	for n := range p.points {
		i := p.points[(first+n)%len(p.points)].position
		if uint64(p.set.Candidates[i].Open()) >= most {
			continue
		}
		e := byHash
		if n > 0 {
			e.Note = "by the hash of addresses and ports; the first on the ring is full"
		}
		return decision.Pick{Position: i, Probability: 1, Evidence: e}
	}
	return decision.Pick{Position: p.points[first].position, Probability: 1, Evidence: byHash}
}
