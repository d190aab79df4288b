package flowtext

import (
	"fmt"
	"strings"
)

// Count is a number with its noun: "1 flow", "2 flows".
func Count(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
