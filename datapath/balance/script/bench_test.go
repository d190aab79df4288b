package script_test

import (
	"fmt"
	"testing"
)

// BenchmarkDecide measures a whole decision by the examples, to compare with that of package balance.
func BenchmarkDecide(b *testing.B) {
	for _, policy := range []string{"constant", "least.star", "cautious.star"} {
		text := "def pick(candidates, flow, state):\n    return 0\n"
		if policy != "constant" {
			text = example(b, policy)
		}
		for _, n := range []int{2, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/endpoints=%d", policy, n), func(b *testing.B) {
				c := newCluster(b, text, n)
				c.flow()
				b.ReportAllocs()
				for b.Loop() {
					d := c.flow()
					c.Undo(&d)
				}
			})
		}
	}
}
