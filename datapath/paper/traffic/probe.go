package traffic

import (
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// probe watches which endpoints the same flows get before and after each change of a service's set, on a
// node of its own without other flows.
type probe struct {
	balancer  *balance.Balancer
	rand      *rand.Rand
	endpoints []int32 // the servers of the flows
}

// probeFlows is a prime number, so that no number of turns divides it.
const probeFlows = 4001

// Change is a change of a service's set of endpoints.
type Change struct {
	At      time.Duration
	Service int // in Cluster.Services
	// Kept counts the probe flows whose endpoint is in the set before and after the change, Moved those
	// of them that get another one.
	Kept, Moved int
}

// watch begins to watch a service.
func (s *simulation) watch(service int32, algorithms *balance.Registry) {
	if s.probes[service] != nil {
		return
	}
	p := &probe{balancer: balance.New(algorithms, func() int64 { return s.now }), rand: stream(s.seed, "probe", int(service))}
	s.probes[service] = p
	p.endpoints = s.ask(p, service)
}

// ask decides the probe flows by the newest table. They are all open at the same time.
func (s *simulation) ask(p *probe, service int32) []int32 {
	table := s.control.newest[0]
	s.reports.node = noNode
	p.balancer.Follow(table)
	endpoints := make([]int32, probeFlows)
	decisions := make([]decision.Decision, probeFlows)
	for i := range endpoints {
		packet := decision.Packet{
			Protocol: decision.TCP, Source: netip.AddrPortFrom(clientAddr(int32(maxClients-1-i%64)), uint16(firstPort+i/64)),
			Destination: s.control.destinations[service],
		}
		decisions[i] = decision.Decide(table, &packet, p.rand, nil, p.balancer)
		if endpoints[i] = -1; decisions[i].Verdict == decision.DNAT {
			endpoints[i] = s.control.server(&decisions[i])
		}
	}
	for i := range decisions {
		p.balancer.Undo(&decisions[i])
	}
	return endpoints
}

// compare compares the endpoints of the probe flows with those before a change.
func (s *simulation) compare(service int32) {
	p := s.probes[service]
	if p == nil {
		return
	}
	c := Change{At: time.Duration(s.now), Service: int(service)}
	before := p.endpoints
	p.endpoints = s.ask(p, service)
	for i, id := range before {
		if id >= 0 && s.servers[id].listed {
			if c.Kept++; p.endpoints[i] != id {
				c.Moved++
			}
		}
	}
	s.result.Changes = append(s.result.Changes, c)
}
