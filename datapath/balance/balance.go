// Package balance selects endpoints for new flows by algorithms other than the random draw of
// kube-proxy: those of IPVS, Maglev, the power of two choices, and others that programs add.
//
// The rules of Kubernetes come first: an algorithm selects only among the endpoints that traffic
// policies, readiness, topology and affinity leave to a flow. It learns what happens to its
// connections afterwards, by a tracker or by a simulation.
//
// It is a ground package.
package balance

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Balancer selects endpoints for all service ports of a node that have an algorithm of their own. It
// is a [decision.Balancer]. It keeps the state of each service port and of each endpoint from one
// table to the next, and makes what a service port needs at its first flow. It is safe for
// concurrent use.
type Balancer struct {
	algorithms *Registry
	fixed      *Algorithm // of all service ports; nil: each has its own
	now        func() int64
	views      sync.Map // *decision.ServicePort to *view

	mu    sync.Mutex // not needed to pick
	ports map[Key]*port
	table *decision.Table // that was followed last

	// gone are service ports that were removed by that table: flows of the table before may still be
	// in work. It belongs to Follow.
	gone []Key
}

// Key names a service port in all tables.
type Key struct {
	Service  decision.ServicePortName
	Protocol decision.Protocol
	Family   decision.Family
}

// KeyOf is the key of a service port.
func KeyOf(s *decision.ServicePort) Key { return Key{s.Name, s.Protocol, s.Family} }

// port is the state of a service port, which outlives tables.
type port struct {
	mu        sync.Mutex
	endpoints map[netip.AddrPort]*Endpoint
	// views are those of the newest two tables, the newest last: workers may still use the older.
	views     []*view
	followed  *decision.ServicePort // the newest, by Follow; nil: Follow is not used, or has not seen it yet
	observers atomic.Pointer[[]Observer]
	openOnly  atomic.Bool // see Connection.OpenOnly
}

// view is a service port of one table, ready for picks.
type view struct {
	service   *decision.ServicePort
	port      *port
	algorithm Algorithm
	sets      [2]*Set // by policy
	pickers   [2]Picker
}

// New returns a Balancer for the algorithms. now returns nanoseconds since any fixed time, and never
// goes back; it may be a simulation's.
func New(algorithms *Registry, now func() int64) *Balancer {
	return &Balancer{algorithms: algorithms, now: now, ports: make(map[Key]*port)}
}

// NewFixed returns a Balancer that selects by one algorithm for all service ports, whatever theirs is.
func NewFixed(a Algorithm, now func() int64) *Balancer {
	b := New(nil, now)
	b.fixed = &a
	return b
}

// NewCounting returns a Balancer for all service ports that is there to count: endpoints are taken, and not picked.
func NewCounting(now func() int64) *Balancer { return NewFixed(randomAlgorithm, now) }

// serves reports whether flows of the service port are for the Balancer.
func (b *Balancer) serves(s *decision.ServicePort) bool { return b.fixed != nil || s.Balance != "" }

// algorithm is that of the service port.
func (b *Balancer) algorithm(s *decision.ServicePort) Algorithm {
	if b.fixed != nil {
		return *b.fixed
	}
	a, err := b.algorithms.Parse(s.Balance)
	if err != nil { // the table's maker has warned of it
		return randomAlgorithm
	}
	return a
}

// Pick implements [decision.Balancer]. The endpoint's open connections include the flow from now on,
// until [Balancer.Undo] or the end of its connection.
func (b *Balancer) Pick(s *decision.ServicePort, policy decision.Policy, p *decision.Packet, r decision.Rand) (pick decision.Pick) {
	b.view(s).pick(policy, p, r, b.now, &pick)
	return pick
}

// pick is Pick into memory of the caller: a copy of a pick takes as long as some algorithms.
func (v *view) pick(policy decision.Policy, p *decision.Packet, r decision.Rand, now func() int64, pick *decision.Pick) {
	set := v.sets[policy]
	if len(set.Candidates) == 1 {
		*pick = set.take(0)
		return
	}
	*pick = v.pickers[policy].Pick(Flow{Packet: p, Rand: r, Now: now})
	if int(pick.Position) >= len(set.Candidates) {
		*pick = Drawn(r, len(set.Candidates)) // an algorithm's mistake is no outage
	}
	set.Candidates[pick.Position].opened()
}

// Take implements [decision.Balancer].
func (b *Balancer) Take(s *decision.ServicePort, policy decision.Policy, position uint32) decision.Pick {
	return b.view(s).sets[policy].take(position)
}

// take counts a flow to the only endpoint that it may go to.
func (s *Set) take(position uint32) decision.Pick {
	s.Candidates[position].opened()
	return decision.Pick{Position: position, Probability: 1, Evidence: decision.Evidence{Kind: decision.Only}}
}

// Undo takes a pick back: no connection came of it.
func (b *Balancer) Undo(d *decision.Decision) {
	if e := b.picked(d); e != nil {
		e.open.Add(-1)
	}
}

// picked returns the endpoint that a Balancer picked; nil: the decision is not a Balancer's.
func (b *Balancer) picked(d *decision.Decision) *Endpoint {
	if d.Pick.Evidence.Kind == decision.NoEvidence {
		return nil
	}
	loaded, ok := b.views.Load(d.ServicePort)
	if !ok { // it is long gone
		return nil
	}
	return loaded.(*view).sets[d.Policy].Candidates[d.Pick.Position].Endpoint
}

// view returns the service port's view, and makes it if there is none yet.
func (b *Balancer) view(s *decision.ServicePort) *view {
	if v, ok := b.views.Load(s); ok {
		return v.(*view)
	}
	b.mu.Lock()
	k := KeyOf(s)
	p := b.ports[k]
	if p == nil {
		p = &port{endpoints: make(map[netip.AddrPort]*Endpoint)}
		b.ports[k] = p
	}
	b.mu.Unlock()
	return b.adopt(p, s)
}

// adopt makes the view of a service port, with the state of the views before.
func (b *Balancer) adopt(p *port, s *decision.ServicePort) *view {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v, ok := b.views.Load(s); ok { // another worker was faster
		return v.(*view)
	}
	a := b.algorithm(s)
	v := &view{service: s, port: p, algorithm: a}
	for policy := range v.sets {
		v.sets[policy] = p.set(s, decision.Policy(policy))
		var before Picker
		if n := len(p.views); n > 0 && p.views[n-1].algorithm.Name == a.Name {
			before = p.views[n-1].pickers[policy]
		}
		if len(v.sets[policy].Candidates) > 0 {
			v.pickers[policy] = a.New(v.sets[policy], before)
		}
	}
	p.add(b, v)
	b.views.Store(s, v)
	return v
}

// add adds a view, and removes those that no worker can use any more.
func (p *port) add(b *Balancer, v *view) {
	if n := len(p.views); n > 0 && p.followed != nil && p.followed != v.service {
		p.views = slices.Insert(p.views, n-1, v) // a worker was slower than Follow
		return
	}
	p.views = append(p.views, v)
	for len(p.views) > 2 {
		b.views.Delete(p.views[0].service)
		p.views = slices.Delete(p.views, 0, 1)
	}
	var observers []Observer
	for _, picker := range v.pickers {
		if o, ok := picker.(Observer); ok {
			observers = append(observers, o)
		}
	}
	p.observers.Store(&observers)
	p.openOnly.Store(len(observers) == 0 && (v.algorithm.OpenOnly || !v.algorithm.Feedback))
	p.forget()
}

// set makes the set of a policy's usable endpoints.
func (p *port) set(s *decision.ServicePort, policy decision.Policy) *Set {
	set := &Set{Service: s, Policy: policy}
	for k, i := range s.Usable[policy] {
		e := &s.Endpoints[i]
		state := p.endpoints[e.AddrPort]
		if state == nil {
			state = &Endpoint{AddrPort: e.AddrPort, port: p}
			p.endpoints[e.AddrPort] = state
		}
		set.Candidates = append(set.Candidates, Candidate{Endpoint: state, Weight: e.Weight, Position: uint32(k)})
	}
	return set
}

// forget removes endpoints that no view has, and that have no connections.
func (p *port) forget() {
	known := make(map[netip.AddrPort]bool)
	for _, v := range p.views {
		for i := range v.service.Endpoints {
			known[v.service.Endpoints[i].AddrPort] = true
		}
	}
	maps.DeleteFunc(p.endpoints, func(a netip.AddrPort, e *Endpoint) bool {
		return !known[a] && e.Open() == 0 && e.Inactive() == 0
	})
}

// Follow prepares the service ports of a new table that had flows before, so that their first flows
// under the table need no memory. It forgets those that had gone with the table before, and returns them. The time it
// takes depends on what changed. Tables come one after the other.
func (b *Balancer) Follow(t *decision.Table) (forgotten []Key) {
	b.mu.Lock()
	before := b.table
	b.table = t
	unused := before == nil && len(b.ports) == 0
	b.mu.Unlock()
	if unused { // no service port has had flows: all of the table's are left to their first one
		return nil
	}
	for _, k := range b.gone {
		if !b.has(t.Service(k.Service.Service()), k) {
			b.remove(k)
			forgotten = append(forgotten, k)
		}
	}
	b.gone = nil
	t.ChangedServices(before, func(_ decision.ServiceName, was, is []*decision.ServicePort) {
		for _, s := range is {
			b.mu.Lock()
			p := b.ports[KeyOf(s)]
			b.mu.Unlock()
			if p != nil && b.serves(s) {
				p.mu.Lock()
				p.followed = s
				p.mu.Unlock()
				b.adopt(p, s)
			}
		}
		for _, s := range was {
			if k := KeyOf(s); !b.has(is, k) {
				b.gone = append(b.gone, k)
			}
		}
	})
	return forgotten
}

// has reports whether the service port is among others that the Balancer serves.
func (b *Balancer) has(ports []*decision.ServicePort, k Key) bool {
	return slices.ContainsFunc(ports, func(s *decision.ServicePort) bool { return KeyOf(s) == k && b.serves(s) })
}

// remove forgets a service port.
func (b *Balancer) remove(k Key) {
	b.mu.Lock()
	p := b.ports[k]
	delete(b.ports, k)
	b.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.views {
		b.views.Delete(v.service)
	}
}

// observe passes an event on.
func (p *port) observe(e Event) {
	e.Endpoint.observe(&e)
	if observers := p.observers.Load(); observers != nil {
		for _, o := range *observers {
			o.Observe(e)
		}
	}
}
