package balance_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
)

// shares are the endpoints of many different flows.
func (c *cluster) endpoints(n int) []string {
	c.t.Helper()
	all := make([]string, n)
	for i := range all {
		all[i] = c.to(fmt.Sprintf("172.%d.%d.%d:%d", 16+i>>16&15, i>>8&255, i&255, 1024+i%60000))
	}
	return all
}

// TestMaglevBalance: with 65537 slots the largest share of 100 endpoints is within 2% of the mean, as
// figure 10 of the paper has it for a table of more than 100 slots per endpoint; weights count.
func TestMaglevBalance(t *testing.T) {
	weights := make([]uint16, 100)
	for i := range weights {
		weights[i] = 1
	}
	c := newCluster(t, "maglev", weights...)
	const n = 100_000
	counts := make(map[string]int)
	for _, e := range c.endpoints(n) {
		counts[e]++
	}
	for e, k := range counts {
		// Five standard deviations of the draw of flows, and 2% of the table.
		if mean := n / 100.0; math.Abs(float64(k)-mean) > 5*math.Sqrt(mean)+0.02*mean {
			t.Errorf("%s has %d of %d flows", e, k, n)
		}
	}
	for _, heavy := range []int{0, 1} {
		weights := []uint16{1, 1, 0}
		weights[heavy] = 3
		weighted := make(map[string]int)
		for _, e := range newCluster(t, "maglev", weights...).endpoints(n) {
			weighted[e]++
		}
		if a, b := weighted[name(heavy)], weighted[name(1-heavy)]; math.Abs(float64(a)/float64(b)-3) > 0.05 || weighted[name(2)] != 0 {
			t.Errorf("weights %d: %v", weights, weighted)
		}
	}
}

// TestMaglevDisruption: without one of 100 endpoints its flows move, and of the others a few percent; as
// figure 12 of the paper has it for 65537 slots, fewer than 3%.
func TestMaglevDisruption(t *testing.T) {
	weights := make(map[string]uint16)
	for i := range 100 {
		weights[name(i)] = 1
	}
	c := newCluster(t, "maglev")
	c.set("maglev", weights)
	before := c.endpoints(20_000)
	delete(weights, name(17))
	c.set("maglev", weights)
	moved, needless := 0, 0
	for i, e := range c.endpoints(20_000) {
		if e != before[i] {
			if moved++; before[i] != name(17) {
				needless++
			}
		}
	}
	if needless > 600 || needless == 0 || moved-needless < 130 || moved-needless > 270 {
		t.Errorf("%d flows moved, %d of them needlessly", moved, needless)
	}
	weights[name(17)] = 1
	c.set("maglev", weights)
	for i, e := range c.endpoints(20_000) {
		if e != before[i] {
			t.Fatalf("flow %d goes to %s, and went to %s before the endpoint was away", i, e, before[i])
		}
	}
}

// TestMaglevAnywhere: the same endpoints and flow give the same slot on every node: these were computed
// once.
func TestMaglevAnywhere(t *testing.T) {
	c := newCluster(t, "maglev(251)", 1, 1, 1, 1)
	d := c.flow("192.0.2.7:4711")
	if text := balance.Text(&d); text != "slot 151 of 251" || d.Endpoint().String() != name(0) {
		t.Errorf("%s: %s", text, d.Endpoint())
	}
}
