package journal

// ring holds the newest of many values, which are numbered from 1. It takes memory in
// pieces, as values come: a node with few flows pays for few.
type ring[T any] struct {
	pieces [][]T
	oldest uint64 // number of the oldest value that is held; next if there is none
	next   uint64 // number of the value to be added
}

const pieceSize = 1024

// newRing makes a ring of the capacity, rounded up to whole pieces.
func newRing[T any](capacity int) ring[T] {
	return ring[T]{pieces: make([][]T, max(1, (capacity+pieceSize-1)/pieceSize)), oldest: 1, next: 1}
}

func (r *ring[T]) capacity() uint64 { return uint64(len(r.pieces)) * pieceSize }
func (r *ring[T]) len() int         { return int(r.next - r.oldest) }
func (r *ring[T]) full() bool       { return r.next-r.oldest == r.capacity() }

// at returns the value of a number; nil: it is not held.
func (r *ring[T]) at(number uint64) *T {
	if number < r.oldest || number >= r.next {
		return nil
	}
	i := number % r.capacity()
	return &r.pieces[i/pieceSize][i%pieceSize]
}

// add returns the place of a new value, which is to be written whole. The ring must not be
// full.
func (r *ring[T]) add() (*T, uint64) {
	number := r.next
	i := number % r.capacity()
	if r.pieces[i/pieceSize] == nil {
		r.pieces[i/pieceSize] = make([]T, pieceSize)
	}
	r.next++
	return r.at(number), number
}

// drop forgets the oldest value, whose place is emptied.
func (r *ring[T]) drop() {
	var none T
	*r.at(r.oldest) = none
	r.oldest++
}
