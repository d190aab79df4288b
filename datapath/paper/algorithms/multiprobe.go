package algorithms

import "github.com/nfqproxy/nfqproxy/datapath/balance"

// newMultiProbe is multi-probe consistent hashing: Appleton and O'Reilly, Multi-Probe Consistent Hashing,
// arXiv:1505.00062, 2015. Each endpoint has one point on a ring. A key has several probes, and the one with the shortest way to its
// next point decides. With 1 + 1/ε probes the fullest endpoint has about 1 + ε of the mean; 21 is the authors' example, for
// 1.05. It has no weights.
func newMultiProbe(set *balance.Set, probes int) lookup {
	in := *set
	in.Candidates = append([]balance.Candidate(nil), set.Candidates...)
	for i := range in.Candidates {
		in.Candidates[i].Weight = min(in.Candidates[i].Weight, 1)
	}
	r := newRing(&in, 1)
	return func(key uint64) uint32 {
		best, shortest := uint32(0), ^uint64(0)
		for n := range probes {
			at := mix(key, uint64(n))
			p := &r.points[r.after(at)]
			if way := p.at - at; way <= shortest { // around the ring, if it is negative
				best, shortest = p.position, way
			}
		}
		return best
	}
}
