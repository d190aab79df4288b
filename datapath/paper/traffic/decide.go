package traffic

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// route is where a node sends new flows to a service by its table. The services here have a ClusterIP, and neither session affinity nor
// traffic policies by the client's place: flows differ only in the endpoint that the algorithm selects.
type route struct {
	port    *decision.ServicePort
	usable  []uint32 // in port.Endpoints; none: flows are refused
	servers []int32  // the numbers of port.Endpoints
	// opener selects; valid iff the port has an algorithm. Otherwise the endpoint is drawn.
	opener balance.Opener
}

// route returns the route to a service: that of the decision of one of its flows.
func (s *simulation) route(n *node, service int32) *route {
	if r := n.routes[service]; r != nil {
		return r
	}
	r := &route{}
	if d := decision.Decide(n.table, s.packet(0, 0, service), lowest{}, nil, nil); d.Verdict == decision.DNAT {
		r.port, r.usable, r.servers = d.ServicePort, d.ServicePort.Usable[d.Policy], s.control.ids[d.ServicePort]
		if r.port.Balance != "" {
			r.opener = n.balancer.Opener(r.port, d.Policy)
		}
	}
	n.routes[service] = r
	return r
}

// lowest is a Rand for a decision whose endpoint does not matter.
type lowest struct{}

func (lowest) Float64() float64 { return 0 }

// open decides a new flow on a node, as [simulation.decide] does, and returns the server; below 0: the node refuses it. For
// connections that an algorithm selected the endpoint of, hasTracker is true.
func (s *simulation) open(n *node, client int32, port uint16, service int32) (server int32, tracked balance.Connection, hasTracker bool) {
	if s.opened++; s.o.Stopwatch != nil && s.opened%s.measured == 0 {
		return s.measure(n, client, port, service)
	}
	s.reports.node = n.number
	r := s.route(n, service)
	k := uint32(0)
	switch {
	case len(r.usable) == 0:
		return -1, balance.Connection{}, false
	case r.port.Balance != "":
		k, tracked = r.opener.Open(s.packet(client, port, service), n.rand)
		hasTracker = true
	case len(r.usable) > 1:
		k = balance.Drawn(n.rand, len(r.usable)).Position
	}
	return r.servers[r.usable[k]], tracked, hasTracker
}

// measure is open with the daemon's whole decision, and notes its time.
func (s *simulation) measure(n *node, client int32, port uint16, service int32) (server int32, tracked balance.Connection, hasTracker bool) {
	before := s.o.Stopwatch()
	d := s.decide(n, client, port, service)
	s.result.Costs.Add(s.o.Stopwatch() - before)
	if d.Verdict != decision.DNAT {
		return -1, tracked, false
	}
	tracked, hasTracker = n.balancer.Connection(&d)
	return s.control.server(&d), tracked, hasTracker
}

// decide decides a flow on a node, as the daemon does.
func (s *simulation) decide(n *node, client int32, port uint16, service int32) decision.Decision {
	s.reports.node = n.number
	return decision.Decide(n.table, s.packet(client, port, service), n.rand, nil, n.balancer)
}

// packet is the first packet of a flow, until the next call: in memory of its own, each would be garbage.
func (s *simulation) packet(client int32, port uint16, service int32) *decision.Packet {
	s.first.Source, s.first.Destination = netip.AddrPortFrom(clientAddr(client), port), s.control.destinations[service]
	return &s.first
}
