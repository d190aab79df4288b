package journal

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// endpointTally counts the flows of one endpoint of a service port. There may be a hundred thousand of them, few of
// which fail: what a healthy endpoint does not need is apart.
type endpointTally struct {
	at                           netip.AddrPort
	pod, node                    string
	total, drawn, sent, received uint64
	draws                        [2]uint64 // by policy, since tally.since
	last                         mention   // the last flow that connects to the endpoint
	closed                       int64     // when a connection ended last
	open                         uint32
	rare                         *rareCounts // nil: all zero
}

// rareCounts are what most endpoints never have.
type rareCounts struct {
	observe.Flows // those that endpointTally does not have
	// earlier is the last flow that an earlier table than that of endpointTally.last decided.
	earlier mention
}

// count changes the flows.
func (e *endpointTally) count(change func(*observe.Flows)) {
	f := e.flows()
	change(&f)
	e.total, e.drawn, e.sent, e.received, e.open = f.Total, f.Drawn, f.BytesSent, f.BytesReceived, uint32(f.Open)
	f.Total, f.Drawn, f.BytesSent, f.BytesReceived, f.Open = 0, 0, 0, 0, 0
	if e.rare != nil || f != (observe.Flows{}) {
		e.rarely().Flows = f
	}
}

func (e *endpointTally) flows() (f observe.Flows) {
	if e.rare != nil {
		f = e.rare.Flows
	}
	f.Total, f.Drawn, f.BytesSent, f.BytesReceived, f.Open = e.total, e.drawn, e.sent, e.received, uint64(e.open)
	return f
}

func (e *endpointTally) rarely() *rareCounts {
	if e.rare == nil {
		e.rare = new(rareCounts)
	}
	return e.rare
}

// connected notes a flow that connects to the endpoint.
func (e *endpointTally) connected(number uint64, f *flow.Flow) {
	m := mention{number, f.Time.UnixNano(), f.Decision.Generation}
	switch {
	case m.generation > e.last.generation:
		if e.last.flow != 0 {
			e.rarely().earlier = e.last
		}
		e.last = m
	case m.generation == e.last.generation && m.at >= e.last.at:
		e.last = m
	case m.generation < e.last.generation && m.at >= e.earlier().at:
		e.rarely().earlier = m
	}
}

func (e *endpointTally) earlier() (m mention) {
	if e.rare != nil {
		m = e.rare.earlier
	}
	return m
}

// before is the last flow that a table before a generation decided: the generation is that of the newest table.
func (e *endpointTally) before(generation uint64) mention {
	if e.last.generation < generation {
		return e.last
	}
	return e.earlier()
}

// endpoints are those of one service port, past ones too, sorted by address and port. Those without a flow count for
// nothing.
type endpoints []*endpointTally

func (s endpoints) search(at netip.AddrPort) (i int, found bool) {
	return slices.BinarySearchFunc(s, at, func(e *endpointTally, at netip.AddrPort) int { return e.at.Compare(at) })
}

// of returns the counts of an endpoint; nil: it has none.
func (s endpoints) of(at netip.AddrPort) *endpointTally {
	if i, found := s.search(at); found {
		return s[i]
	}
	return nil
}

// add returns the counts of each endpoint of a service port, in its order. It begins those that are missing, in one piece
// of memory if all are.
func (s *endpoints) add(of []decision.Endpoint) []*endpointTally {
	counts := make([]*endpointTally, len(of))
	if len(*s) == 0 {
		all := make([]endpointTally, len(of))
		for i := range of {
			all[i].at, counts[i] = of[i].AddrPort, &all[i]
		}
		*s = slices.Clone(counts)
		slices.SortFunc(*s, func(a, b *endpointTally) int { return a.at.Compare(b.at) })
	}
	for i := range of {
		k, found := s.search(of[i].AddrPort)
		if !found {
			*s = slices.Insert(*s, k, &endpointTally{at: of[i].AddrPort})
		}
		counts[i] = (*s)[k]
		counts[i].pod, counts[i].node = of[i].Pod, of[i].NodeName
	}
	return counts
}
