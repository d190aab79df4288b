// Package nearest finds the most similar existing name for a misspelled one.
//
// It is a ground package.
package nearest

import (
	"fmt"
	"slices"
	"strings"
)

// Name returns the name nearest to a misspelled one; empty: none is near. A name in a namespace is
// also found without the namespace ("web" in "shop/web"), and the other way round.
func Name(wrong string, names []string) string {
	best, least := "", limit(wrong)+1
	for _, name := range names {
		if name == "" {
			continue
		}
		d := distance(strings.ToLower(wrong), strings.ToLower(name))
		if base(wrong) == wrong != (base(name) == name) { // one has a namespace, the other none
			d = min(d, distance(strings.ToLower(base(wrong)), strings.ToLower(base(name))))
		}
		if d < least {
			best, least = name, d
		}
	}
	return best
}

// Hint names the nearest name, for the end of a message: ` (did you mean "web"?)`. It is empty if
// none is near.
func Hint(wrong string, names []string) string {
	if name := Name(wrong, names); name != "" {
		return fmt.Sprintf(" (did you mean %q?)", name)
	}
	return ""
}

// Few lists the first names in alphabetical order for a message, and the number of the others.
func Few(names []string) string { return Some(slices.Compact(slices.Sorted(slices.Values(names)))) }

// Some is Few for a list that has an order.
func Some(list []string) string {
	const few = 8
	if n := len(list); n > few {
		list = append(list[:few:few], fmt.Sprintf("and %d more", n-few))
	}
	return strings.Join(list, ", ")
}

// base is a name without its namespace.
func base(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// limit is how many mistakes a name may have: one in three letters.
func limit(name string) int { return max(1, len(name)/3) }

// longest bounds names: the work is the product of their lengths.
const longest = 256

// distance is the number of letters to insert, remove, replace or swap with the next one
// (optimal string alignment), to make one name of the other.
func distance(a, b string) int {
	if len(a) > longest || len(b) > longest {
		return max(len(a), len(b))
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// Either joins words for a message: "a, b or c".
func Either(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}
