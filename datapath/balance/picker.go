package balance

import (
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Algorithm makes pickers.
type Algorithm struct {
	// Name is the algorithm with its parameters, as [Registry.Parse] reads it: "jsq(3)".
	Name string
	// Feedback: it depends on what happens to connections after the pick.
	Feedback bool
	// OpenOnly: all that it reads of that is Endpoint.Open.
	OpenOnly bool
	// New returns a picker for a set of endpoints. before is the picker of the set that this one
	// replaces, to take its state over; nil: there is none. A picker may be in use for its set while
	// and after New is called with it.
	New func(set *Set, before Picker) Picker
}

// Picker selects endpoints of one [Set] for new flows. It is safe for concurrent use; Pick is called
// for each flow by all workers, so it should neither allocate nor wait. A picker that is also an
// [Observer] is informed of what happens to the connections; one that is a [Reporter] shows its state.
type Picker interface {
	// Pick selects a candidate: Position is its position in Set.Candidates. Evidence.Kind must be
	// set.
	Pick(f Flow) decision.Pick
}

// Flow is a new flow.
type Flow struct {
	Packet *decision.Packet // its first packet
	Rand   decision.Rand    // of the worker
	Now    func() int64     // the time in nanoseconds, as that of an [Event]
}

// Observer is informed of what happens to connections. Observe may be called by several goroutines at once.
type Observer interface{ Observe(e Event) }

// Reporter shows its state.
type Reporter interface {
	// State is a value for encoding/json: what the picker knows besides the endpoints' own state.
	State() any
}

// Event is what happened to a connection.
type Event struct {
	Kind     EventKind
	Endpoint *Endpoint
	// At is when it happened, in nanoseconds as [Flow.Now].
	At int64
	// After is the time from the decision to the first packet of the reply; for Answered.
	After time.Duration
	// Bytes are those of both directions, if the kernel counts them; for Ended.
	Bytes uint64
}

// EventKind is the kind of an [Event].
type EventKind uint8

// The kinds, in the order of a connection's life.
const (
	Answered   EventKind = iota + 1 // the first packet of the reply came
	Refused                         // the first packet of the reply refused the connection
	Unanswered                      // it ended without a reply
	Inactive                        // it is being closed; its entry remains for some time
	Ended                           // its entry is gone
)

// Set is the set of endpoints that a picker selects from. It is immutable, except for the endpoints'
// own state.
type Set struct {
	Service    *decision.ServicePort
	Policy     decision.Policy
	Candidates []Candidate // in kube-proxy's order: by their text
}

// positions are the positions of candidates: of those that have a weight, or of all.
func (s *Set) positions(weighted bool) (positions []uint32) {
	for i := range s.Candidates {
		if s.Candidates[i].Weight > 0 || !weighted {
			positions = append(positions, uint32(i))
		}
	}
	return positions
}

// Weighed are the positions of the candidates that have a weight; all, if none has.
func (s *Set) Weighed() []uint32 {
	if in := s.positions(true); len(in) > 0 {
		return in
	}
	return s.positions(false)
}

// WeightOf is the weight of a candidate of [Set.Weighed]: 1 if all weights are 0.
func (s *Set) WeightOf(i uint32) uint64 { return uint64(max(s.Candidates[i].Weight, 1)) }

// Candidate is an endpoint of a set.
type Candidate struct {
	*Endpoint
	Weight uint16 // 0: no new flows by algorithms with weights
	// Position is the candidate's position in ServicePort.Usable.
	Position uint32
}

// Drawn draws one of n, as kube-proxy does. n is 1 or more.
func Drawn(r decision.Rand, n int) decision.Pick {
	draw := r.Float64()
	return decision.Pick{
		Position: uint32(min(int(draw*float64(n)), n-1)), Draw: draw, Drawn: true, Probability: 1 / float64(n),
		Evidence: decision.Evidence{Kind: decision.DrawnOf, Values: [3]uint32{uint32(n)}},
	}
}

// random is kube-proxy's draw.
type random struct{ set *Set }

var randomAlgorithm = Algorithm{Name: "random", New: func(set *Set, _ Picker) Picker { return random{set} }}

func (p random) Pick(f Flow) decision.Pick { return Drawn(f.Rand, len(p.set.Candidates)) }
