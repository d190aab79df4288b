package shadow

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
)

// Service compares the shadows of a service port that has had flows.
type Service struct {
	balance.Key
	// Flows are those that had a choice, and Agree how many of them each shadow would have sent to the same
	// endpoint, in the order of [Shadows.Algorithms].
	Flows uint64
	Agree []uint64
	// Loads are those of the endpoints: the first as it is, then one for each shadow. All have the same endpoints
	// in the same order.
	Loads [][]Load
}

// Load is the load of an endpoint.
type Load struct {
	Endpoint netip.AddrPort
	Flows    uint64 // since it is known
	Open     int    // connections
	Current  bool   // it is in the table; others still have connections
}

// Algorithms are the names of the shadows, in the order in which they were given.
func (s *Shadows) Algorithms() []string {
	names := make([]string, len(s.list)-1)
	for i, o := range s.list[1:] {
		names[i] = o.algorithm
	}
	return names
}

// Report compares the shadows of all service ports that have had flows, sorted by name.
func (s *Shadows) Report() []Service {
	var all []Service
	at := make(map[balance.Key]int)
	for i, o := range s.list {
		for _, state := range o.States() {
			if i == 0 {
				at[state.Key] = len(all)
				all = append(all, s.service(&state))
			} else if n, ok := at[state.Key]; ok {
				all[n].fill(i, &state)
			}
		}
	}
	return all
}

// service makes the Service of a state of what is really there.
func (s *Shadows) service(state *balance.State) Service {
	r := Service{Key: state.Key, Agree: make([]uint64, len(s.list)-1), Loads: make([][]Load, len(s.list))}
	if c, ok := s.counts.Load(state.Key); ok {
		c := c.(*counts)
		r.Flows = c.flows.Load()
		for i := range r.Agree {
			r.Agree[i] = c.agree[i+1].Load()
		}
	}
	for i := range r.Loads {
		r.Loads[i] = make([]Load, len(state.Endpoints))
		for n, e := range state.Endpoints {
			r.Loads[i][n] = Load{Endpoint: e.AddrPort, Current: e.Current}
		}
	}
	r.fill(0, state)
	return r
}

// fill fills in the loads of a state. Endpoints that appeared or went meanwhile are left out.
func (r *Service) fill(i int, state *balance.State) {
	states := make(map[netip.AddrPort]balance.EndpointState, len(state.Endpoints))
	for _, e := range state.Endpoints {
		states[e.AddrPort] = e
	}
	for n := range r.Loads[i] {
		l := &r.Loads[i][n]
		if e, ok := states[l.Endpoint]; ok {
			l.Flows, _, _, _ = e.Counts()
			l.Open = e.Open()
		}
	}
}

// Total counts flows of all service ports that had a choice.
type Total struct {
	Algorithm    string
	Agree, Other uint64
	// Imbalance is the sum of the open connections of each service port's fullest endpoint over the sum of the
	// means of their endpoints: 1 if all have the same, and 0 if there are none.
	Imbalance float64
}

// Totals are those of the shadows, in their order; actual is the imbalance that is really there.
func (s *Shadows) Totals() (actual float64, totals []Total) {
	for i, o := range s.list {
		imbalance := imbalanceOf(o.States())
		if i == 0 {
			actual = imbalance
			continue
		}
		totals = append(totals, Total{o.algorithm, o.agree.Load(), o.other.Load(), imbalance})
	}
	return actual, totals
}

func imbalanceOf(states []balance.State) float64 {
	most, mean := 0.0, 0.0
	for _, s := range states {
		top, sum, n := 0, 0, 0
		for _, e := range s.Endpoints {
			if !e.Current {
				continue
			}
			top, sum, n = max(top, e.Open()), sum+e.Open(), n+1
		}
		if n > 0 {
			most, mean = most+float64(top), mean+float64(sum)/float64(n)
		}
	}
	if mean == 0 {
		return 0
	}
	return most / mean
}
