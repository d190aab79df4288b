package journal

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// endpointTally counts the flows of one endpoint of a service port. There may be a hundred thousand of them, few of
// which fail: what a healthy endpoint does not need is apart. TestGrowth bounds them.
type endpointTally struct {
	total, sent, received, draws uint64      // draws are those of policy Cluster, since tally.since
	closed                       int64       // when a connection ended last
	rare                         *rareCounts // nil: all zero
	// The last flow that connects to the endpoint, as a flowRef. There are not so many tables: a thousand a second,
	// for 49 days.
	lastFlow       uint64
	lastAt         int64
	lastGeneration uint32
	open           uint32
}

// goneEndpoint is an endpoint that its service port had.
type goneEndpoint struct {
	decision.Endpoint
	*endpointTally
}

// rareCounts are what most endpoints never have.
type rareCounts struct {
	observe.Flows        // those that endpointTally does not have
	localDraws    uint64 // those of policy Local
	// earlier is the last flow that an earlier table than that of the last one decided.
	earlier flowRef
}

// add adds to the counts. Drawn is not kept: every flow to an endpoint is drawn, bound by affinity or failed.
func (e *endpointTally) add(more observe.Flows) {
	e.total, e.sent, e.received, e.open = e.total+more.Total, e.sent+more.BytesSent, e.received+more.BytesReceived, e.open+uint32(more.Open)
	more.Total, more.Drawn, more.BytesSent, more.BytesReceived, more.Open = 0, 0, 0, 0, 0
	if more != (observe.Flows{}) {
		e.rareCounters().Flows.Add(&more)
	}
}

func (e *endpointTally) flows() (f observe.Flows) {
	if e.rare != nil {
		f = e.rare.Flows
	}
	f.Total, f.Drawn, f.BytesSent, f.BytesReceived, f.Open = e.total, e.total-f.Affinity-f.Failed, e.sent, e.received, uint64(e.open)
	return f
}

func (e *endpointTally) draw(p decision.Policy) {
	if p == decision.Local {
		e.rareCounters().localDraws++
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

func (e *endpointTally) resetDraws() {
	if e.draws = 0; e.rare != nil {
		e.rare.localDraws = 0
	}
}

func (e *endpointTally) rareCounters() *rareCounts {
	if e.rare == nil {
		e.rare = new(rareCounts)
	}
	return e.rare
}

// connected notes a flow that connects to the endpoint.
func (e *endpointTally) connected(m flowRef) {
	switch last := e.last(); {
	case m.generation > last.generation:
		if last.flow != 0 {
			e.rareCounters().earlier = last
		}
	case m.generation == last.generation && m.at >= last.at:
	case m.generation < last.generation && m.at >= e.earlier().at:
		e.rareCounters().earlier = m
		return
	default:
		return
	}
	e.lastFlow, e.lastAt, e.lastGeneration = m.flow, m.at, uint32(m.generation)
}

func (e *endpointTally) last() flowRef {
	return flowRef{e.lastFlow, e.lastAt, uint64(e.lastGeneration)}
}

func (e *endpointTally) earlier() (m flowRef) {
	if e.rare != nil {
		m = e.rare.earlier
	}
	return m
}

// before is the last flow that a table before a generation decided: the generation is that of the newest table.
func (e *endpointTally) before(generation uint64) flowRef {
	if last := e.last(); last.generation < generation {
		return last
	}
	return e.earlier()
}

// endpoints returns the counts of all endpoints, those that are no more at the end. Those without a flow count for
// nothing.
func (t *tally) endpoints() iter.Seq2[*decision.Endpoint, *endpointTally] {
	return func(yield func(*decision.Endpoint, *endpointTally) bool) {
		for i, e := range t.used.endpoints {
			if !yield(&t.used.port.Endpoints[i], e) {
				return
			}
		}
		for i := range t.gone {
			if !yield(&t.gone[i].Endpoint, t.gone[i].endpointTally) {
				return
			}
		}
	}
}

// endpoint returns the counts of an endpoint; nil: it has none.
func (t *tally) endpoint(at netip.AddrPort) *endpointTally {
	for of, e := range t.endpoints() {
		if of.AddrPort == at {
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
	for of, e := range t.endpoints() {
		known[of.AddrPort] = e
	}
	var all []endpointTally
	if len(known) == 0 {
		all = make([]endpointTally, len(s.Endpoints))
	}
	counts := make([]*endpointTally, len(s.Endpoints))
	for i := range s.Endpoints {
		at := s.Endpoints[i].AddrPort
		switch e := known[at]; {
		case e != nil:
			delete(known, at)
			counts[i] = e
		case all != nil:
			counts[i] = &all[i]
		default:
			counts[i] = new(endpointTally)
		}
	}
	t.gone = slices.DeleteFunc(t.gone, func(g goneEndpoint) bool { return known[g.AddrPort] == nil })
	for i, e := range t.used.endpoints {
		if of := t.used.port.Endpoints[i]; known[of.AddrPort] != nil {
			t.gone = append(t.gone, goneEndpoint{of, e})
		}
	}
	t.used = &usedPort{port: s, tally: t, endpoints: counts}
}

// flowRef names a flow, which may have been evicted.
type flowRef struct {
	flow       uint64 // its number; 0: none
	at         int64  // of its decision
	generation uint64 // of the table that decided it
}

func flowRefOf(number uint64, f *flow.Flow) flowRef {
	return flowRef{number, f.Time.UnixNano(), f.Decision.Generation}
}

// result is a flow with its verdict.
type result struct {
	flowRef
	verdict  decision.Verdict
	endpoint netip.AddrPort // invalid: none
}

// confirmsTable reports whether a flow shows that the table of its generation is in use. A kept entry is older, a failed one
// was not made, a user decides as he likes, and of the kernel's copy the generation is not known.
func confirmsTable(f *flow.Flow) bool {
	d := &f.Decision
	return !d.Reason.Observed() && d.Reason != decision.DroppedByHand && !(f.Held != nil && f.Held.Action == flow.HoldChosen) &&
		(d.Verdict != decision.DNAT || connects(f))
}

// connects reports whether a flow has a new entry to the endpoint of its decision.
func connects(f *flow.Flow) bool {
	return f.Decision.HasEndpoint() && (f.Outcome == conntrack.Created || f.Outcome == conntrack.Replaced)
}

// obeyed notes a flow that confirms a table.
func (t *tally) obeyed(number uint64, f *flow.Flow) {
	generation, at := f.Decision.Generation, f.Time.UnixNano()
	if generation == t.first.generation && at >= t.first.at {
		return // as almost always
	}
	m := result{flowRefOf(number, f), f.Decision.Verdict, f.Endpoint()}
	if generation >= t.first.generation {
		t.first = m
	}
	if t.history != nil {
		t.history.obeyed(m)
	}
}
