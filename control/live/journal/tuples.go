package journal

import "hash/maphash"

// tuples finds the flows of a tuple. It is a hash table whose chains run through the entries, from newer to older ones:
// so it is a small part of a map, and an evicted flow need not be removed, as it ends its chain.
type tuples struct {
	seed   maphash.Seed
	chains []uint64 // numbers of the newest flows; 0: none
}

// newTuples makes one for so many flows.
func newTuples(flows uint64) tuples {
	return tuples{maphash.MakeSeed(), make([]uint64, flows)}
}

func (t *tuples) chain(k key) *uint64 {
	return &t.chains[maphash.Comparable(t.seed, k)%uint64(len(t.chains))]
}

// add puts a new flow before the others of its chain, and returns the number of the next one, its entry.older.
func (t *tuples) add(k key, number uint64) (older uint64) {
	at := t.chain(k)
	older, *at = *at, number
	return older
}

// newest returns the newest flow of a tuple; nil: none is known.
func (j *Journal) newest(k key) (uint64, *entry) { return j.before(*j.tuples.chain(k), k) }

// before returns the newest flow of a tuple from a place in its chain on.
func (j *Journal) before(number uint64, k key) (uint64, *entry) {
	for {
		e := j.flows.at(number)
		if e == nil {
			return 0, nil
		}
		if e.key == k {
			return number, e
		}
		number = e.older
	}
}
