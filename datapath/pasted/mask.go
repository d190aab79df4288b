package pasted

import (
	"regexp"
	"slices"
	"strings"
)

// masks are what people write instead of an address, a name or a number.
var masks = regexp.MustCompile(`(?i)^\$|<[\w .-]*>|\*\*|redacted|^\{\{|^x{2,}\b|\bx{1,4}([.:]x{1,4})+\b|x{6,}|^\[\w*(ip|addr|node|host|hidden|masked)\w*\]`)

// IsMask reports whether a word stands in the place of an address, a name or a number.
func IsMask(word string) bool {
	lower := strings.ToLower(word) // to test it fast: most words are no masks
	return (strings.ContainsAny(word, "$<*{[") || strings.Count(lower, "x") > 1 || strings.Contains(lower, "redacted")) && masks.MatchString(word)
}

// IsMasked reports whether a part of a text may be masked.
func IsMasked(text string) bool {
	return slices.ContainsFunc(strings.Fields(text), func(word string) bool {
		return IsMask(word) || strings.Contains(strings.ToLower(word), "xxx")
	})
}
