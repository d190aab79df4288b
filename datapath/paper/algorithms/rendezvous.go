package algorithms

import (
	"math"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/paper/exactlog"
)

// newRendezvous is the highest random weight: Thaler and Ravishankar, Using Name-Based Mappings to Increase Hit Rates,
// IEEE/ACM Transactions on Networking 6(1), 1998. Each endpoint has a hash of its own for a key, and the highest
// wins. With weights w it is the highest w / -ln(hash), where hash is in (0, 1): the logarithmic method of Schindelhauer and
// Schomaker, Weighted Distributed Hash Tables, SPAA 2005.
func newRendezvous(set *balance.Set) lookup {
	in := weighed(set)
	hashes, weights := make([]uint64, len(in)), make([]float64, len(in))
	equal := true
	for k, i := range in {
		hashes[k], weights[k] = hashOf(set, i), float64(weightOf(set, i))
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
