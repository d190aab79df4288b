// Package distinct keeps lists of different values.
//
// It is a ground package.
package distinct

import "slices"

// Append appends those of the values that the list does not have yet.
func Append[T comparable](list []T, values ...T) []T {
	for _, v := range values {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}
