package balance

import (
	"cmp"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// State is what a Balancer knows of a service port that has had flows.
type State struct {
	Service   decision.ServicePortName
	Protocol  decision.Protocol
	Family    decision.Family
	Algorithm string
	Endpoints []EndpointState
	// Pickers are the pickers' own states, by traffic policy, for those that have one.
	Pickers map[string]any
}

// EndpointState is the state of an endpoint.
type EndpointState struct {
	*Endpoint
	Weight uint16
	// Current: it is in the table that was followed last. Others still have connections.
	Current bool
}

// Counts returns what the endpoint's flows came to since it is known: flows that were sent to it, and
// those that were answered, were refused and got no answer.
func (e *Endpoint) Counts() (flows, answered, refused, unanswered uint64) {
	return e.flows.Load(), e.answered.Load(), e.refused.Load(), e.unanswered.Load()
}

// Bytes counts the bytes of the connections that have ended, in both directions.
func (e *Endpoint) Bytes() uint64 { return e.bytes.Load() }

// States returns the states of all service ports that have had flows, sorted by name.
func (b *Balancer) States() []State {
	b.mu.Lock()
	ports := make([]*port, 0, len(b.ports))
	for _, p := range b.ports {
		ports = append(ports, p)
	}
	b.mu.Unlock()
	var all []State
	for _, p := range ports {
		if s, ok := p.state(); ok {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b State) int {
		return cmp.Or(a.Service.Service().Compare(b.Service.Service()), cmp.Compare(a.Service.Port, b.Service.Port),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Family, b.Family))
	})
	return all
}

func (p *port) state() (State, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.views) == 0 {
		return State{}, false
	}
	v := p.views[len(p.views)-1]
	s := State{Service: v.service.Name, Protocol: v.service.Protocol, Family: v.service.Family, Algorithm: v.algorithm.Name}
	current := make(map[*Endpoint]bool)
	for i := range v.service.Endpoints {
		e := &v.service.Endpoints[i]
		if state := p.endpoints[e.AddrPort]; state != nil {
			current[state] = true
			s.Endpoints = append(s.Endpoints, EndpointState{state, e.Weight, true})
		}
	}
	for _, state := range p.endpoints {
		if !current[state] {
			s.Endpoints = append(s.Endpoints, EndpointState{Endpoint: state})
		}
	}
	for policy, picker := range v.pickers {
		if r, ok := picker.(Reporter); ok {
			if s.Pickers == nil {
				s.Pickers = make(map[string]any)
			}
			s.Pickers[decision.Policy(policy).String()] = r.State()
		}
	}
	return s, true
}
