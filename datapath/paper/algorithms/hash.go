package algorithms

import (
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/exactlog"
)

// lookup returns the position of a key's candidate. All nodes with the same candidates have the same.
type lookup func(key uint64) uint32

// hashed selects by the hash of the flow's addresses and ports.
type hashed struct{ find lookup }

// hashing makes pickers of a consistent hash.
func hashing(of func(set *balance.Set) lookup) newPicker {
	return func(set *balance.Set, _ balance.Picker) balance.Picker { return hashed{of(set)} }
}

func (p hashed) Pick(f balance.Flow) decision.Pick {
	return decision.Pick{Position: p.find(balance.HashFlow(f.Packet)), Probability: 1, Evidence: byHash}
}

var byHash = decision.Evidence{Kind: decision.Noted, Note: "by the hash of addresses and ports"}

// hashOf is the hash of a candidate: the same in all sets.
func hashOf(set *balance.Set, i uint32) uint64 {
	return xxhash.Sum64String(set.Candidates[i].AddrPort.String())
}

// mix is the n-th of a sequence of random hashes of one: the finalizer of SplitMix64 (Steele, Lea and Flood, Fast
// Splittable Pseudorandom Number Generators, OOPSLA 2014, figure 17).
func mix(hash, n uint64) uint64 {
	z := hash + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// newJump is the jump consistent hash: Lamping and Veach, A Fast, Minimal Memory, Consistent Hash Algorithm, 2014 (figure 1).
// It needs no table, but it numbers the endpoints, here by their text: when the last one comes or goes, no key
// moves needlessly; when another one does, the numbers of those after it change, and most of their keys move. It has no weights.
func newJump(set *balance.Set) lookup {
	in := set.Weighed()
	return func(key uint64) uint32 { return in[jump(key, len(in))] }
}

// jump returns the bucket of a key: the last one that a sequence of jumps reaches. A key whose bucket is b of b+1 jumps to j
// with a probability so that each of j+1 buckets has 1/(j+1) of the keys.
func jump(key uint64, buckets int) int {
	b, j := int64(-1), int64(0)
	for j < int64(buckets) {
		b = j
		key = key*2862933555777941757 + 1 // the generator of the paper
		j = int64(float64(b+1) * (float64(1<<31) / float64(key>>33+1)))
	}
	return int(b)
}

// newMultiProbe is multi-probe consistent hashing: Appleton and O'Reilly, Multi-Probe Consistent Hashing,
// arXiv:1505.00062, 2015. Each endpoint has one point on a ring. A key has several probes, and the one with the shortest way to its
// next point decides. With 1 + 1/ε probes the fullest endpoint has about 1 + ε of the mean; 21 is the authors' example, for
// 1.05. It has no weights.
func newMultiProbe(set *balance.Set, probes int) lookup {
	in := *set
	in.Candidates = slices.Clone(set.Candidates)
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

// newRendezvous is the highest random weight: Thaler and Ravishankar, Using Name-Based Mappings to Increase Hit Rates,
// IEEE/ACM Transactions on Networking 6(1), 1998. Each endpoint has a hash of its own for a key, and the highest
// wins. With weights w it is the highest w / -ln(hash), where hash is in (0, 1): the logarithmic method of Schindelhauer and
// Schomaker, Weighted Distributed Hash Tables, SPAA 2005.
func newRendezvous(set *balance.Set) lookup {
	in := set.Weighed()
	hashes, weights := make([]uint64, len(in)), make([]float64, len(in))
	equal := true
	for k, i := range in {
		hashes[k], weights[k] = hashOf(set, i), float64(set.WeightOf(i))
		equal = equal && weights[k] == weights[0]
	}
	if equal {
		return func(key uint64) uint32 {
			best, highest := 0, uint64(0)
			for k, hash := range hashes {
				if h := mix(key^hash, 0); h > highest {
					best, highest = k, h
				}
			}
			return in[best]
		}
	}
	return func(key uint64) uint32 {
		best, highest := 0, math.Inf(-1)
		for k, hash := range hashes {
			u := (float64(mix(key^hash, 0)>>11) + 0.5) / (1 << 53)
			if score := weights[k] / -exactlog.Log(u); score > highest {
				best, highest = k, score
			}
		}
		return in[best]
	}
}

// tablePoints is the number of points of each endpoint of a ring's table: the number of "views" in section 5.3 of the paper on Maglev.
const tablePoints = 1000

// newRingTable is a lookup table that a ring fills, as the one that Eisenbud et al., Maglev, NSDI 2016, section 5.3, compare with their own:
// Karger's. The endpoints take turns, and in each claim the slot of their next point, if it is free. A slot that is nobody's belongs to the
// next one's endpoint. The paper does not say how its table was filled; of the ways that were tried, only this one has the values of its
// figure 11 for both sizes.
//
// A slot has few claims that succeed late, so the numbers of slots differ less than those of independent draws: with n endpoints, an endpoint has a
// free slot in turn t with probability exp(-nt/slots), and the variance of its number of slots is half of Poisson's once the table is full.
func newRingTable(set *balance.Set, slots int) lookup {
	const free = 1<<32 - 1
	table := make([]uint32, slots)
	for i := range table {
		table[i] = free
	}
	in, most := set.Weighed(), heaviest(set)
	hashes := make([]uint64, len(in))
	for k, i := range in {
		hashes[k] = hashOf(set, i)
	}
	for n := range uint64(tablePoints) {
		for k, i := range in {
			if n > 0 && n >= tablePoints*set.WeightOf(i)/most {
				continue
			}
			if slot := mix(hashes[k], n) % uint64(slots); table[slot] == free {
				table[slot] = i
			}
		}
	}
	// Twice around: the last slots belong to the first that is somebody's.
	for next, i := uint32(free), 2*slots-1; i >= 0; i-- {
		if at := &table[i%slots]; *at == free {
			*at = next
		} else {
			next = *at
		}
	}
	return func(key uint64) uint32 { return table[key%uint64(slots)] }
}
