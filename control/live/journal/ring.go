package journal

import "hash/maphash"

// ring holds the newest of many values, which are numbered from 1. The kernel gives it memory as values
// come, page by page: a node with few flows pays for few. To the garbage collector all of it is in use from
// the start, so that it does not run more often while a new daemon's ring fills.
type ring[T any] struct {
	values []T
	oldest uint64 // number of the oldest value that is held; next if there is none
	next   uint64 // number of the value to be added
}

func newRing[T any](capacity int) ring[T] {
	return ring[T]{values: make([]T, capacity), oldest: 1, next: 1}
}

func (r *ring[T]) capacity() uint64 { return uint64(len(r.values)) }
func (r *ring[T]) len() int         { return int(r.next - r.oldest) }
func (r *ring[T]) full() bool       { return r.next-r.oldest == r.capacity() }

// at returns the value of a number; nil: it is not held.
func (r *ring[T]) at(number uint64) *T {
	if number < r.oldest || number >= r.next {
		return nil
	}
	return &r.values[number%r.capacity()]
}

// add returns the place of a new value, which is to be written whole. The ring must not be
// full.
func (r *ring[T]) add() (*T, uint64) {
	number := r.next
	r.next++
	return r.at(number), number
}

// drop forgets the oldest value, whose place is emptied.
func (r *ring[T]) drop() {
	var none T
	*r.at(r.oldest) = none
	r.oldest++
}

// tuples finds the flows of a tuple. It is a hash table whose chains run through the entries, from newer to older ones:
// so it is a small part of a map, and an evicted flow need not be removed, as it ends its chain.
type tuples struct {
	seed   maphash.Seed
	chains []uint64 // numbers of the newest flows; 0: none
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
