package journal

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// BenchmarkInsert takes over flows that push older ones out, to all endpoints of the services in turn. With many services none of the
// flows that are known is for the same one, and its counts are in no cache.
func BenchmarkInsert(b *testing.B) {
	for _, services := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			const endpoints = 10
			j := New(Config{})
			ports := make([]*decision.ServicePort, services)
			for i := range ports {
				s := &decision.ServicePort{
					Name: decision.ServicePortName{Namespace: "default", Name: fmt.Sprintf("web-%d", i)}, Protocol: decision.TCP,
					ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, HasEndpoints: true,
				}
				for e := range endpoints {
					at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 + byte(i>>12), byte(i >> 4), byte(i<<4 | e)}), 8080)
					s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: at})
					s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(e))
				}
				ports[i] = s
			}
			table := decision.NewTable(1, start, node, nil)
			batch := make([]flow.Flow, 32)
			n := 0
			insert := func() {
				for i := range batch {
					n++
					batch[i] = flow.Flow{
						Packet:   decision.Packet{Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 24), byte(n >> 16), byte(n >> 8)}), uint16(n)|1), Destination: client},
						Decision: decision.Decision{Verdict: decision.DNAT, ServicePort: ports[n%services], Index: uint32(n / services % endpoints), Generation: 1},
						Table:    table, Node: table.Node(), Time: time.Now(), Outcome: conntrack.Created,
					}
				}
				j.Flows(batch)
				j.take(time.Now())
			}
			for n < 20*services {
				insert()
			}
			before := n
			for b.Loop() {
				insert()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n-before), "ns/flow")
		})
	}
}
