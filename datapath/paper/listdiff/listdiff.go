// Package listdiff compares lists whose order has a meaning, such as the rules of a chain.
package listdiff

import "slices"

// Diff is one item that differs.
type Diff[T any] struct {
	Before *T // nil: the item is added
	After  *T // nil: it is removed; if neither is nil, it has moved among the others
}

// Compare returns the differences of the second list: each item is paired with an equal one, of several the first with the first,
// and as many pairs as possible count as unmoved. Items are equal if their spelling is. It takes n log n time.
func Compare[T any](before, after []*T, spelling func(*T) string) []Diff[T] {
	places := make(map[string][]int)
	for i, r := range before {
		k := spelling(r)
		places[k] = append(places[k], i)
	}
	partner := make([]int, len(after)) // for each rule of after its position in before; -1: none
	gone := make([]bool, len(before))
	for i := range gone {
		gone[i] = true
	}
	for i, r := range after {
		partner[i] = -1
		if k := spelling(r); len(places[k]) > 0 {
			partner[i], places[k] = places[k][0], places[k][1:]
			gone[partner[i]] = false
		}
	}
	stays := increasing(partner)
	var diffs []Diff[T]
	next := 0 // of before
	removeUntil := func(end int) {
		for ; next < end; next++ {
			if gone[next] {
				diffs = append(diffs, Diff[T]{Before: before[next]})
			}
		}
	}
	for i, r := range after {
		switch {
		case partner[i] < 0:
			// The replaced items come first.
			for end := next; end < len(before) && gone[end]; end++ {
				removeUntil(end + 1)
			}
			diffs = append(diffs, Diff[T]{After: r})
		case stays[i]:
			removeUntil(partner[i])
			next = max(next, partner[i]+1)
		default:
			diffs = append(diffs, Diff[T]{before[partner[i]], r})
		}
	}
	removeUntil(len(before))
	return diffs
}

// increasing marks a longest subsequence of rising numbers, without negative ones.
func increasing(numbers []int) []bool {
	var ends []int // of the subsequence of each length, the place of the least end
	previous := make([]int, len(numbers))
	for i, n := range numbers {
		if n < 0 {
			continue
		}
		length, _ := slices.BinarySearchFunc(ends, n, func(end, n int) int { return numbers[end] - n })
		previous[i] = -1
		if length > 0 {
			previous[i] = ends[length-1]
		}
		if length == len(ends) {
			ends = append(ends, i)
		} else {
			ends[length] = i
		}
	}
	marked := make([]bool, len(numbers))
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = previous[i] {
			marked[i] = true
		}
	}
	return marked
}
