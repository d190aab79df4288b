package algorithms

import (
	"github.com/cespare/xxhash/v2"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
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
