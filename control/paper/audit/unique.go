package audit

// unique is values in the order in which they came first, each once.
type unique[T comparable] struct {
	values []T
	seen   map[T]bool
}

func (u *unique[T]) add(values ...T) {
	if u.seen == nil {
		u.seen = make(map[T]bool)
	}
	for _, v := range values {
		if !u.seen[v] {
			u.seen[v] = true
			u.values = append(u.values, v)
		}
	}
}

// truncate keeps the first n values.
func (u *unique[T]) truncate(n int) {
	for _, v := range u.values[n:] {
		delete(u.seen, v)
	}
	u.values = u.values[:n:n]
}

// setOf is a set of values for many lookups.
func setOf[T comparable](values []T) map[T]bool {
	set := make(map[T]bool, len(values))
	for _, v := range values {
		set[v] = true
	}
	return set
}
