package journal

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// endpointTally counts the flows of one endpoint of a service port. There may be a hundred thousand of them, few of
// which fail: what a healthy endpoint does not need is apart. TestMemory bounds their size.
type endpointTally struct {
	// of is the endpoint in the newest service port that has it, or a copy when none has it any more.
	of                           *decision.Endpoint
	total, sent, received, draws uint64  // draws are those of policy Cluster, since tally.since
	last                         mention // the last flow that connects to the endpoint
	closed                       int64   // when a connection ended last
	open                         uint32
	rare                         *rareCounts // nil: all zero
}

// rareCounts are what most endpoints never have.
type rareCounts struct {
	observe.Flows        // those that endpointTally does not have
	localDraws    uint64 // those of policy Local
	// earlier is the last flow that an earlier table than that of endpointTally.last decided.
	earlier mention
}

// add adds to the counts. Drawn is not kept: every flow to an endpoint is drawn, bound by affinity or failed.
func (e *endpointTally) add(more observe.Flows) {
	e.total, e.sent, e.received, e.open = e.total+more.Total, e.sent+more.BytesSent, e.received+more.BytesReceived, e.open+uint32(more.Open)
	more.Total, more.Drawn, more.BytesSent, more.BytesReceived, more.Open = 0, 0, 0, 0, 0
	if more != (observe.Flows{}) {
		e.rarely().Flows = sum(&e.rare.Flows, &more)
	}
}

func (e *endpointTally) flows() (f observe.Flows) {
	if e.rare != nil {
		f = e.rare.Flows
	}
	f.Total, f.Drawn, f.BytesSent, f.BytesReceived, f.Open = e.total, e.total-f.Affinity-f.Failed, e.sent, e.received, uint64(e.open)
	return f
}

// draw counts a draw.
func (e *endpointTally) draw(p decision.Policy) {
	if p == decision.Local {
		e.rarely().localDraws++
	} else {
		e.draws++
	}
}

// drawn returns the draws by policy.
func (e *endpointTally) drawn() (draws [2]uint64) {
	draws[decision.Cluster] = e.draws
	if e.rare != nil {
		draws[decision.Local] = e.rare.localDraws
	}
	return draws
}

// resetDraws begins to count them anew.
func (e *endpointTally) resetDraws() {
	if e.draws = 0; e.rare != nil {
		e.rare.localDraws = 0
	}
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

// endpoints returns the counts of all endpoints, those that are no more at the end. Those without a flow count for
// nothing.
func (t *tally) endpoints() iter.Seq[*endpointTally] {
	return func(yield func(*endpointTally) bool) {
		for _, of := range [][]*endpointTally{t.used.endpoints, t.gone} {
			for _, e := range of {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// endpoint returns the counts of an endpoint; nil: it has none.
func (t *tally) endpoint(at netip.AddrPort) *endpointTally {
	for e := range t.endpoints() {
		if e.of.AddrPort == at {
			return e
		}
	}
	return nil
}

// use returns the service port with its counts. The newest one is kept: it is used again and again.
func (t *tally) use(s *decision.ServicePort) *usedPort {
	if t.used.port != s {
		t.change(s)
	}
	return t.used
}

// change finds the counts of each endpoint of another service port. It begins those that are missing, in one piece of
// memory if all are.
func (t *tally) change(s *decision.ServicePort) {
	known := make(map[netip.AddrPort]*endpointTally)
	for e := range t.endpoints() {
		known[e.of.AddrPort] = e
	}
	var all []endpointTally
	if len(known) == 0 {
		all = make([]endpointTally, len(s.Endpoints))
	}
	counts := make([]*endpointTally, len(s.Endpoints))
	for i := range s.Endpoints {
		of := &s.Endpoints[i]
		e := known[of.AddrPort]
		switch {
		case e != nil:
			delete(known, of.AddrPort)
		case all != nil:
			e = &all[i]
		default:
			e = new(endpointTally)
		}
		e.of, counts[i] = of, e
	}
	back := func(e *endpointTally) bool { return known[e.of.AddrPort] == nil }
	t.gone = slices.DeleteFunc(t.gone, back)
	for _, e := range t.used.endpoints {
		if !back(e) {
			of := *e.of // its service port is not to be kept for it
			e.of = &of
			t.gone = append(t.gone, e)
		}
	}
	t.used = &usedPort{port: s, tally: t, endpoints: counts}
}
