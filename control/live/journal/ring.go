package journal

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
