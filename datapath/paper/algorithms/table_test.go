package algorithms

import (
	"math"
	"math/bits"
	"net/netip"
	"testing"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
)

// TestTables: figure 11 of Eisenbud et al., Maglev, NSDI 2016: tables of a thousand endpoints that rendezvous hashing fills have up to
// 49.5 % above the mean with 65537 entries, and 12.3 % with 655373; those of Karger's hashing 29.7 % and 10.3 %. The fullest endpoint differs
// from table to table, so these are ours, with other addresses.
func TestTables(t *testing.T) {
	const entries, more = 65537, 655373
	set := tableSet(5)
	ring := newRing(set, 1000).find
	for _, tt := range []struct {
		name        string
		entries     uint64
		find        lookup
		least, most float64
	}{
		{"rendezvous", entries, newRendezvous(set), 1.37, 1.51},
		{"rendezvous", more, newRendezvous(set), 1.10, 1.15},
		{"ring's table", entries, newRingTable(set, entries), 1.22, 1.40},
		{"ring's table", more, newRingTable(set, more), 1.09, 1.15},
		// At even distances on a ring there are 15 points for each entry of the small table, so its endpoint is a draw.
		{"ring", entries, func(entry uint64) uint32 { key, _ := bits.Div64(entry, 0, entries); return ring(key) }, 1.33, 1.5},
		{"ring", more, func(entry uint64) uint32 { key, _ := bits.Div64(entry, 0, more); return ring(key) }, 1.09, 1.15},
	} {
		if got := fullest(tt.entries, tt.find); got < tt.least || got > tt.most {
			t.Errorf("%s, %d entries: the fullest has %.3f of the mean, want %.2f to %.2f", tt.name, tt.entries, got, tt.least, tt.most)
		}
	}
}

// TestRingTables: the mean of twenty tables is that of the claims' variance, and both values of the paper are among them.
func TestRingTables(t *testing.T) {
	for _, tt := range []struct {
		entries           int
		mean, paper, most float64
	}{{65537, 1.30, 1.297, 1.42}, {655373, 1.115, 1.103, 1.16}} {
		sum, least, most := 0.0, 2.0, 0.0
		const tables = 20
		for net := range byte(tables) {
			set := tableSet(net)
			find := newRingTable(set, tt.entries)
			if i := find(mix(hashOf(set, 0), 0)); i != 0 {
				t.Errorf("%d entries: the first claim is that of endpoint 0, and its entry has gone to %d", tt.entries, i)
			}
			got := fullest(uint64(tt.entries), find)
			sum, least, most = sum+got, min(least, got), max(most, got)
		}
		t.Logf("%d entries: %.3f on average, %.3f to %.3f", tt.entries, sum/tables, least, most)
		if mean := sum / tables; math.Abs(mean-tt.mean) > 0.2*(tt.mean-1) || tt.paper < least || tt.paper > most || most > tt.most {
			t.Errorf("%d entries: the fullest has %.3f of the mean, %.3f to %.3f; want about %.3f, and the paper's %.3f among them", tt.entries, mean, least, most, tt.mean, tt.paper)
		}
	}
}

// tableSet are a thousand endpoints.
func tableSet(net byte) *balance.Set {
	set := new(balance.Set)
	for i := range 1000 {
		a := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, net, byte(i >> 8), byte(i)}), 8080)
		set.Candidates = append(set.Candidates, balance.Candidate{Endpoint: &balance.Endpoint{AddrPort: a}, Weight: 1, Position: uint32(i)})
	}
	return set
}

// fullest is the number of entries of the fullest endpoint, divided by the mean.
func fullest(entries uint64, find lookup) float64 {
	counts, most := make([]int, 1000), 0
	for entry := range entries {
		i := find(entry)
		counts[i]++
		most = max(most, counts[i])
	}
	return float64(most*len(counts)) / float64(entries)
}
