package journal

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// BenchmarkInsert takes over flows that push older ones out.
func BenchmarkInsert(b *testing.B) {
	j := New(Config{})
	ports := make([]*decision.ServicePort, 1000)
	for i := range ports {
		ports[i] = web()
		ports[i].Name.Name = "web" + string(rune(i))
	}
	table := decision.NewTable(1, start, node, nil)
	batch := make([]flow.Flow, 32)
	n := 0
	for b.Loop() {
		for i := range batch {
			n++
			batch[i] = flow.Flow{
				Packet:   decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 24), byte(n >> 16), byte(n >> 8)}), uint16(n)|1), Destination: client},
				Decision: decision.Decision{Verdict: decision.DNAT, ServicePort: ports[n%len(ports)], Index: uint32(n & 1), Generation: 1},
				Table:    table, Node: table.Node(), Time: time.Now(), Outcome: conntrack.Created,
			}
		}
		j.Flows(batch)
		j.take(time.Now())
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/flow")
}
