package journal

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// tallies count the flows of every service port.
type tallies map[portKey]*tally

// portKey names a service port in one family.
type portKey struct {
	name   decision.ServicePortName
	family decision.Family
}

// tally are the counts of one service port.
type tally struct {
	observe.Flows
	refusals map[decision.Reason]uint64 // nil: none
	used     *usedPort                  // the newest one
	// gone are the endpoints that it does not have.
	gone []goneEndpoint
	// What the draws since the endpoints last changed are compared with: fit is the service
	// port they were made from, or one with the same endpoints.
	fit   *decision.ServicePort
	since time.Time
	// generation is the generation of fit's table.
	generation uint64
	draws      [2]uint64 // by policy
	// latest is the generation of the newest table that a flow was decided by.
	latest uint64
	// first is the earliest flow of the newest generation that a flow obeys.
	first   result
	history *history // nil: there is none
}

// maxEndpoints is the maximum number of removed endpoints of a service port.
const maxEndpoints = 1000

// of returns the counts of a service port.
func (t tallies) of(s *decision.ServicePort, c *changes) *tally {
	k := portKeyOf(s)
	of := t[k]
	if of == nil {
		of = &tally{history: c.ports[k], used: new(usedPort)}
		t[k] = of
	}
	return of
}

// tally counts a new flow, which is for a service.
func (e *entry) tally(number uint64, f *flow.Flow, undated bool, changes *changes) {
	d, t := &f.Decision, e.port.tally
	t.follow(d.ServicePort, d.Generation, f.Time)
	t.latest = max(t.latest, d.Generation)
	if confirmsTable(f) {
		t.obeyed(number, f)
	}
	if connects(f) && !undated {
		e.connected(flowRefOf(number, f), f.Endpoint(), changes)
	}
	c := e.begin()
	if odd := (observe.Flows{Outdated: c.Outdated, UnknownEndpoint: c.UnknownEndpoint, NotTranslated: c.NotTranslated}); odd != (observe.Flows{}) && changes.meter != nil {
		changes.meter.Odd(odd)
	}
	e.count(c)
	switch {
	case d.Verdict == decision.Reject || d.Verdict == decision.Drop:
		if t.refusals == nil {
			t.refusals = make(map[decision.Reason]uint64)
		}
		t.refusals[d.Reason]++
	case f.Held != nil && f.Held.Action == flow.HoldChosen: // not selected at random
	case d.Verdict == decision.DNAT && d.Reason == decision.Balanced && d.Generation >= t.generation:
		t.draws[d.Policy]++
		e.counts().draw(d.Policy)
	}
}

// connected notes when the flow created its connection to the endpoint.
func (e *entry) connected(m flowRef, to netip.AddrPort, changes *changes) {
	e.counts().connected(m)
	if h := e.port.tally.history; h != nil {
		changes.connected(h, to, m)
	}
}

// counts returns those of the flow's endpoint; nil: it has none.
func (e *entry) counts() *endpointTally {
	if e.port != nil && e.verdict == decision.DNAT && e.reason != decision.UnknownEndpoint {
		return e.port.endpoints[e.index]
	}
	return nil
}

// count adds to the counts of the flow's service port and endpoint.
func (e *entry) count(more observe.Flows) {
	if e.port == nil {
		return
	}
	t := e.port.tally
	t.Flows.Add(&more)
	if of := e.counts(); of != nil {
		of.add(more)
	}
}

// oneLess, added to a count, takes one away.
const oneLess = ^uint64(0)

// begin is what a flow counts at its decision.
func (e *entry) begin() observe.Flows {
	c := observe.Flows{Total: 1}
	switch {
	case e.life.state == flow.Rejected:
		c.Rejected = 1
	case e.life.state == flow.Dropped:
		c.Dropped = 1
	case e.life.state == flow.Failed:
		c.Failed = 1
	case e.verdict == decision.DNAT && e.reason == decision.Bound:
		c.Affinity = 1
	case e.verdict == decision.DNAT:
		c.Drawn = 1
	}
	if e.life.open() {
		c.Open = 1
	}
	switch {
	case e.inherited: // its proxy may have had other objects when it began
	case e.outdated > 0:
		c.Outdated = 1
	case e.reason == decision.UnknownEndpoint:
		c.UnknownEndpoint = 1
	case e.reason == decision.NotTranslated:
		c.NotTranslated = 1
	}
	return c
}

func (e *entry) countState(from, to flow.State) {
	if from == to {
		return
	}
	var c observe.Flows
	if from == flow.Unanswered {
		c.Unanswered = oneLess
	}
	switch to {
	case flow.Unanswered:
		c.Unanswered = 1
	case flow.Refused:
		c.Refused = 1
	case flow.Reset:
		c.Reset = 1
	}
	e.count(c)
}

// follow begins to compare anew when other endpoints can be selected, or by another algorithm.
func (t *tally) follow(s *decision.ServicePort, generation uint64, now time.Time) {
	if t.fit == s || generation < t.generation {
		return
	}
	if t.fit == nil || !sameChoice(t.fit, s) {
		t.since, t.draws, t.generation = now, [2]uint64{}, generation
		for _, e := range t.endpoints() {
			e.resetDraws()
		}
	}
	t.fit = s
}

// sameChoice reports whether the same endpoints can be selected, by the same algorithm and weights.
func sameChoice(a, b *decision.ServicePort) bool {
	if a.Balance != b.Balance {
		return false
	}
	for _, p := range []decision.Policy{decision.Cluster, decision.Local} {
		if !slices.EqualFunc(a.Usable[p], b.Usable[p], func(i, k uint32) bool {
			return a.Endpoints[i].AddrPort == b.Endpoints[k].AddrPort && a.Endpoints[i].Weight == b.Endpoints[k].Weight
		}) {
			return false
		}
	}
	return true
}

// pruneInterval is how often tables are looked at for services that have gone.
const pruneInterval = 10 * time.Second

// SetTable informs the journal of a table in force. It keeps the table, notes what changed in services, removes the
// counts of deleted services and, for services with many, those of removed endpoints. It removes counts from time to
// time, so that many changes cost little; the last table is processed soon.
func (j *Journal) SetTable(p Published) {
	j.following.Lock()
	defer j.following.Unlock()
	t, before := p.Table, j.inForce // which changes only here
	if t == before {
		return
	}
	var d difference
	if before != nil {
		d = compareTables(before, &p)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.takeLocked() // what the tables before decided comes first
	j.ports.inForce = 0
	for _, f := range []decision.Family{decision.IPv4, decision.IPv6} {
		c := t.Counts(f)
		j.ports.inForce += size(c.ServicePorts, c.Endpoints)
		j.changes.large[f] = c.Endpoints > largeCluster
	}
	for _, k := range d.removed {
		j.changes.forget(k, j.services)
	}
	for i := range d.changed {
		j.changes.add(&d.changed[i], j.services)
	}
	j.generations.add(t, d.bytes)
	j.kernel.look = j.kernel.look || before == nil
	j.inForce, j.unpruned = t, true
}

// prune is the work of SetTable.
func (j *Journal) prune(now time.Time) {
	t := j.inForce
	if !j.unpruned || now.Sub(j.pruned) < pruneInterval {
		return
	}
	j.unpruned, j.pruned = false, now
	for k, c := range j.services {
		if c.latest > t.Generation() {
			continue // flows were decided by a table that the journal does not have yet
		}
		s := port(t.Service(k.name.Service()), k)
		if s == nil {
			delete(j.services, k)
			j.ports.supersede(c)
			c.used = new(usedPort)
			continue
		}
		excess := len(c.used.endpoints) + len(c.gone) - maxEndpoints
		if excess <= 0 {
			continue
		}
		present := make(map[netip.AddrPort]bool, len(s.Endpoints))
		for _, e := range s.Endpoints {
			present[e.AddrPort] = true
		}
		c.gone = slices.DeleteFunc(c.gone, func(e goneEndpoint) bool {
			if present[e.AddrPort] || excess <= 0 {
				return false
			}
			excess--
			if c.history != nil {
				c.history.settle(e.AddrPort, math.MaxUint64, c)
			}
			return true
		})
	}
}

// ServiceCounts are the flows of one service port.
type ServiceCounts struct {
	Flows   observe.Flows
	Refused map[string]uint64 // by reason
	// Since is when the count of draws began: when the endpoints that can be drawn last changed.
	Since time.Time
	// Draws are by policy.
	Draws     [2]uint64
	Endpoints map[netip.AddrPort]EndpointCounts
}

// EndpointCounts are the flows of one endpoint.
type EndpointCounts struct {
	Flows     observe.Flows
	Pod, Node string
	Draws     [2]uint64 // by policy, since ServiceCounts.Since
}

// Counts returns the flows of a service port of the table in force; false: it had none. Draws are included if they were
// among its present endpoints.
func (j *Journal) Counts(s *decision.ServicePort) (ServiceCounts, bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	t := j.services[portKeyOf(s)]
	if t == nil {
		return ServiceCounts{}, false
	}
	same := sameChoice(t.fit, s)
	c := ServiceCounts{
		Flows: t.Flows, Refused: make(map[string]uint64, len(t.refusals)), Since: t.since,
		Endpoints: make(map[netip.AddrPort]EndpointCounts, len(t.used.endpoints)+len(t.gone)),
	}
	if same {
		c.Draws = t.draws
	}
	for why, n := range t.refusals {
		c.Refused[why.String()] = n
	}
	for at, e := range t.endpoints() {
		if e.total == 0 {
			continue
		}
		of := EndpointCounts{Flows: e.flows(), Pod: at.Pod, Node: at.NodeName}
		if same {
			of.Draws = e.drawn()
		}
		c.Endpoints[at.AddrPort] = of
	}
	return c, true
}

// Known returns the numbers of the journal's flows.
func (j *Journal) Known() observe.Known {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return observe.Known{Flows: j.flows.len(), Capacity: int(j.flows.capacity()), Open: j.open, Lost: j.Lost(), Forgotten: j.forgotten}
}

// Kernel returns the state of the conntrack event subscription.
func (j *Journal) Kernel() observe.Kernel {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.kernel.Kernel
}
