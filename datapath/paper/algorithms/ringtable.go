package algorithms

import "github.com/nfqproxy/nfqproxy/datapath/balance"

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
	in, most := weighed(set), heaviest(set)
	hashes := make([]uint64, len(in))
	for k, i := range in {
		hashes[k] = hashOf(set, i)
	}
	for n := range uint64(tablePoints) {
		for k, i := range in {
			if n > 0 && n >= tablePoints*weightOf(set, i)/most {
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
