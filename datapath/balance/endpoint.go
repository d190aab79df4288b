package balance

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance/exact"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Endpoint is the state of an endpoint of a service port. It survives changes of the set that the
// endpoint is in. It is safe for concurrent use.
type Endpoint struct {
	// What most events change comes first, in one cache line.
	open, inactive  atomic.Int32
	port            *port
	flows, answered atomic.Uint64
	latency         atomic.Uint64 // float64 bits, seconds; 0: unknown
	latencyAt       atomic.Int64
	bytes           atomic.Uint64

	AddrPort            netip.AddrPort
	refused, unanswered atomic.Uint64
	_                   [24]byte // to two cache lines
}

// Open counts the open connections: from the decision until one is being closed. IPVS calls them
// active (tcp_state_active_table in ip_vs_proto_tcp.c).
func (e *Endpoint) Open() int { return int(max(e.open.Load(), 0)) }

// Inactive counts the connections that are being closed, or are closed and whose entry remains.
func (e *Endpoint) Inactive() int { return int(max(e.inactive.Load(), 0)) }

// Latency is the time to the first packet of the reply: it rises to a longer one at once, and falls
// slowly, with a time constant of 10 seconds; 0: unknown.
func (e *Endpoint) Latency() time.Duration {
	return time.Duration(math.Float64frombits(e.latency.Load()) * float64(time.Second))
}

func (e *Endpoint) opened() {
	e.open.Add(1)
	e.flows.Add(1)
}

// observe takes an event over.
func (e *Endpoint) observe(ev *Event) {
	switch ev.Kind {
	case Answered:
		e.answered.Add(1)
		e.sample(ev.After, ev.At)
	case Refused:
		e.refused.Add(1)
	case Unanswered:
		e.unanswered.Add(1)
	case Inactive:
		e.open.Add(-1)
		e.inactive.Add(1)
	case Ended:
		e.inactive.Add(-1)
		e.bytes.Add(ev.Bytes)
	}
}

// decay is the time constant of latencies.
const decay = 10 * time.Second

// sample takes a latency over. Events of one endpoint come one after the other.
func (e *Endpoint) sample(after time.Duration, at int64) {
	was, now := math.Float64frombits(e.latency.Load()), max(after.Seconds(), 1e-9)
	if was > now {
		w := exact.Exp(-float64(max(at-e.latencyAt.Load(), 0)) / float64(decay))
		now = float64(was*w) + float64(now*(1-w)) // not fused: simulations have the same result on all machines
	}
	e.latency.Store(math.Float64bits(now))
	e.latencyAt.Store(at)
}

// State is what a Balancer knows of a service port that has had flows.
type State struct {
	Key
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
	ports := slices.Collect(maps.Values(b.ports))
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
	s := State{Key: KeyOf(v.service), Algorithm: v.algorithm.Name}
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
