package algorithms

import "github.com/nfqproxy/nfqproxy/datapath/balance"

// newJump is the jump consistent hash: Lamping and Veach, A Fast, Minimal Memory, Consistent Hash Algorithm, 2014 (figure 1).
// It needs no table, but it numbers the endpoints, here by their text: when the last one comes or goes, no key
// moves needlessly; when another one does, the numbers of those after it change, and most of their keys move. It has no weights.
func newJump(set *balance.Set) lookup {
	in := weighed(set)
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
