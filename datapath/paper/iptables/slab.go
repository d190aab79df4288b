package iptables

// slabSize is how many elements a slab allocates at once.
const slabSize = 1024

// slab allocates many small slices in few pieces: a file may have a million of them.
type slab[T any] struct{ free []T }

// take returns n elements, all zero.
func (s *slab[T]) take(n int) []T {
	if n > len(s.free) {
		s.free = make([]T, max(n, slabSize))
	}
	taken := s.free[:n:n]
	s.free = s.free[n:]
	return taken
}
