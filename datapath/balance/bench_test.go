package balance_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// algorithms are all that are built in, each with a parameter if it needs one.
var algorithms = []string{"random", "rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "dh", "maglev", "p2c", "jsq(4)", "ewma", "eject(random)", "eject(p2c)"}

// BenchmarkDecide measures a whole decision with each algorithm.
func BenchmarkDecide(b *testing.B) {
	for _, algorithm := range algorithms {
		for _, n := range []int{2, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/endpoints=%d", algorithm, n), func(b *testing.B) {
				c := newCluster(b, algorithm, slices.Repeat([]uint16{1}, n)...)
				packets := make([]decision.Packet, 1024)
				for i := range packets {
					packets[i] = decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), uint16(1024+i)), Destination: netip.MustParseAddrPort("10.96.0.20:80")}
				}
				decision.Decide(c.table, &packets[0], c.rand, nil, c)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					d := decision.Decide(c.table, &packets[i%len(packets)], c.rand, nil, c)
					c.Undo(&d)
				}
			})
		}
	}
}

// TestNoAllocations: no decision costs memory, whatever the algorithm.
func TestNoAllocations(t *testing.T) {
	for _, algorithm := range algorithms {
		c := newCluster(t, algorithm, 1, 2, 3)
		p := &decision.Packet{Protocol: decision.TCP, Source: netip.MustParseAddrPort("172.16.0.1:1024"), Destination: netip.MustParseAddrPort("10.96.0.20:80")}
		c.flow("172.16.0.1:1024")
		if n := testing.AllocsPerRun(100, func() {
			d := decision.Decide(c.table, p, c.rand, nil, c)
			c.Undo(&d)
		}); n != 0 {
			t.Errorf("%s: %v allocations for each flow", algorithm, n)
		}
		if algorithm == "random" { // no Balancer selects
			continue
		}
		o := c.Opener(c.table.Candidates(p)[0], decision.Cluster)
		if n := testing.AllocsPerRun(100, func() {
			_, connection := o.Open(p, c.rand)
			connection.Observe(balance.Event{Kind: balance.Inactive})
			connection.Observe(balance.Event{Kind: balance.Ended})
		}); n != 0 {
			t.Errorf("%s: %v allocations for each connection of an Opener", algorithm, n)
		}
	}
}
