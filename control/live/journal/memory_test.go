package journal

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// memory fills a journal and returns the live bytes that a flow takes with its four events, and an endpoint of ten that
// has had flows.
func memory() (perFlow, perEndpoint float64) {
	const services, endpoints, capacity = 1000, 10, 4096
	ports := make([]*decision.ServicePort, services)
	for i := range ports {
		s := &decision.ServicePort{
			Name: decision.ServicePortName{Namespace: "default", Name: fmt.Sprintf("service-%d", i), Port: "tcp"}, Protocol: decision.TCP, Family: decision.IPv4,
			ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, HasEndpoints: true,
		}
		for k := range endpoints {
			s.Endpoints = append(s.Endpoints, decision.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(k), byte(i >> 8), byte(i)}), 8080), Ready: true, Serving: true, Weight: 1})
			s.Usable[decision.Cluster] = append(s.Usable[decision.Cluster], uint32(k))
		}
		ports[i] = s
	}
	table := decision.NewTable(1, start, node, ports)
	before := liveBytes()
	j := New(Config{Flows: capacity})
	j.setFollowing(true, "")
	n := 0
	connect := func(s *decision.ServicePort, index int) {
		n++
		at := start.Add(time.Duration(n) * time.Millisecond)
		f := flow.Flow{
			Packet: decision.Packet{
				Protocol: decision.TCP, Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(n >> 16), byte(n >> 8)}), uint16(n&0xff)+1024),
				Destination: netip.AddrPortFrom(s.ClusterIP, s.Port), InInterface: "eth0",
			},
			Decision: decision.Decision{Verdict: decision.DNAT, Reason: decision.Balanced, Entry: decision.EntryClusterIP, Branch: decision.BranchInternal,
				ServicePort: s, Index: uint32(index), Draw: 0.5, Drawn: true, Generation: 1},
			Table: table, Node: table.Node(), Time: at, Outcome: conntrack.Created,
		}
		j.Flows([]flow.Flow{f})
		j.take(at)
		state := conntrack.State{Original: flow.TupleOf(&f.Packet), Reply: conntrack.Tuple{Source: s.Endpoints[index].AddrPort, Destination: f.Packet.Source, Protocol: uint8(decision.TCP)}, Status: conntrack.StatusSeenReply, TCP: conntrack.TCPEstablished}
		j.apply([]conntrack.Event{
			{Kind: conntrack.Updated, State: state, At: at.Add(time.Millisecond)},
			{Kind: conntrack.Destroyed, State: state, At: at.Add(time.Second)},
		}, at, at)
	}
	for range 2 * capacity { // so that as many events are kept as can be
		connect(ports[0], 0)
	}
	full := liveBytes()
	for _, s := range ports[1:] {
		for k := range endpoints {
			connect(s, k)
		}
	}
	after := liveBytes()
	runtime.KeepAlive(ports)
	runtime.KeepAlive(j)
	return float64(full-before) / capacity, float64(after-full) / float64((services-1)*endpoints)
}

// liveBytes are those of the heap that are in use.
func liveBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what a sync.Pool keeps lives through one
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestGrowth: a journal is most of the memory of a daemon whose services are all in use. Who makes it grow knows.
func TestGrowth(t *testing.T) {
	if perFlow, perEndpoint := memory(); perFlow > 880 || perEndpoint > 145 {
		t.Errorf("a flow takes %.0f bytes and an endpoint %.0f, want 880 and 145 at most", perFlow, perEndpoint)
	}
}

// BenchmarkMemory reports what flows and endpoints take.
func BenchmarkMemory(b *testing.B) {
	var perFlow, perEndpoint float64
	for b.Loop() {
		perFlow, perEndpoint = memory()
	}
	b.ReportMetric(perFlow, "B/flow")
	b.ReportMetric(perEndpoint, "B/endpoint")
}
