package journal

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// The limits of the history: of the service ports that changed last, of each the newest changes, of
// each change the first endpoints.
const (
	changedPorts    = 500
	portChanges     = 20
	changeEndpoints = 10
)

// changes is the history of service ports, from the second table on.
type changes struct {
	ports map[portKey]*history
	order []*history // the port that changed last is last
	// unjudged are endpoints that get no new flows any more, in the order of their changes.
	unjudged []unjudged
	meter    Meter                   // nil: there is none
	rules    *proxyRules             // nil: those of the daemon itself are in force
	large    [decision.IPv6 + 1]bool // see largeCluster, by family
}

// history is that of one service port.
type history struct {
	portKey
	changes []change // the oldest first
	awaited int      // endpoints that get new flows since a change, and have had none
}

// change is an entry of a history. What flows did since is noted as they come.
type change struct {
	observe.Change
	first result // of FirstFlow
	// followed are the endpoints of Endpoints, at the same places.
	followed []followed
}

// difference is what a table changed of the service ports.
type difference struct {
	removed []portKey
	changed []portChange
	// bytes is about the memory that the earlier table takes besides.
	bytes int
}

// portChange is a change of one service port.
type portChange struct {
	portKey
	change
	port *decision.ServicePort
	// usable are all endpoints that get new flows again.
	usable []netip.AddrPort
}

// compareTables returns the differences of a table from the one before. The time that it takes depends on them.
func compareTables(before *decision.Table, p *Published) (d difference) {
	t := p.Table
	t.ChangedServices(before, func(_ decision.ServiceName, before, after []*decision.ServicePort) {
		if slices.Equal(before, after) {
			return
		}
		d.bytes += changedBytes
		for _, s := range before {
			if port(after, portKeyOf(s)) == nil {
				d.removed = append(d.removed, portKeyOf(s))
			}
			if !slices.Contains(after, s) {
				d.bytes += size(1, len(s.Endpoints))
			}
		}
		for _, s := range after {
			if c := compare(port(before, portKeyOf(s)), s); c != nil {
				origin := p.Origins[c.name.Service()]
				c.Changed, c.Received, c.Time, c.InForce = known(origin.Triggered), known(origin.Received), t.Built(), known(p.InForce)
				c.Generation = t.Generation()
				d.changed = append(d.changed, *c)
			}
		}
	})
	return d
}

// known returns nil for the zero time.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func portKeyOf(s *decision.ServicePort) portKey { return portKey{s.Name, s.Family} }

func port(ports []*decision.ServicePort, k portKey) *decision.ServicePort {
	if i := slices.IndexFunc(ports, func(s *decision.ServicePort) bool { return portKeyOf(s) == k }); i >= 0 {
		return ports[i]
	}
	return nil
}

func (c *changes) forget(k portKey, flows tallies) {
	if h := c.ports[k]; h != nil {
		delete(c.ports, k)
		c.order = slices.DeleteFunc(c.order, func(o *history) bool { return o == h })
		if t := flows[k]; t != nil {
			t.history = nil
		}
	}
}

// add adds a change. Flows that the new table decided may have been counted already.
func (c *changes) add(p *portChange, flows tallies) {
	h := c.ports[p.portKey]
	if h == nil {
		if len(c.order) == changedPorts {
			c.forget(c.order[0].portKey, flows)
		}
		h = &history{portKey: p.portKey}
		c.ports[p.portKey] = h
	}
	c.order = append(slices.DeleteFunc(c.order, func(o *history) bool { return o == h }), h)
	t := flows[p.portKey]
	for _, addr := range p.usable {
		h.settle(addr, p.Generation, t)
	}
	c.follow(h, p, t)
	h.changes = append(h.changes[max(0, len(h.changes)-portChanges+1):], p.change)
	h.countAwaited()
	if t != nil {
		t.history = h
		h.obeyed(t.first)
	}
}

// obeyed notes a flow that a table decided.
func (h *history) obeyed(m result) {
	for i := range h.changes {
		if c := &h.changes[i]; c.Generation <= m.generation && (c.first.flow == 0 || m.at < c.first.at) {
			c.first = m
		}
	}
}

// compare returns what changed of a service port; before is nil if it is new. nil: nothing did.
func compare(before, after *decision.ServicePort) *portChange {
	change := &portChange{portKey: portKeyOf(after), port: after}
	if before == nil {
		change.Created = true
		return change
	}
	change.Settings = !reflect.DeepEqual(settings(before), settings(after))
	old := make(map[netip.AddrPort]*decision.Endpoint, len(before.Endpoints))
	for i := range before.Endpoints {
		old[before.Endpoints[i].AddrPort] = &before.Endpoints[i]
	}
	// was: it got new flows before.
	add := func(e *decision.Endpoint, what, why string, was bool) {
		if decision.FamilyOf(e.AddrPort.Addr()) != after.Family {
			return
		}
		var of followed
		switch {
		case what == observe.EndpointRemoved || what == observe.EndpointExcluded:
			of = followed{addr: e.AddrPort, ends: was}
		case why == "":
			of = followed{addr: e.AddrPort, begins: true}
			change.usable = append(change.usable, e.AddrPort)
		}
		if len(change.Endpoints) == changeEndpoints {
			change.More++
			return
		}
		change.Endpoints = append(change.Endpoints, observe.EndpointChange{Endpoint: e.AddrPort.String(), Pod: e.Pod, Change: what, Excluded: why})
		change.followed = append(change.followed, of)
	}
	for i := range after.Endpoints {
		e := &after.Endpoints[i]
		was := old[e.AddrPort]
		delete(old, e.AddrPort)
		why := exclusion(after, e)
		switch {
		case was == nil:
			add(e, observe.EndpointAdded, why, false)
		case exclusion(before, was) == why:
		case why == "":
			add(e, observe.EndpointUsable, "", false)
		default:
			add(e, observe.EndpointExcluded, why, exclusion(before, was) == "")
		}
	}
	for i := range before.Endpoints {
		if e := &before.Endpoints[i]; old[e.AddrPort] != nil {
			add(e, observe.EndpointRemoved, "", exclusion(before, e) == "")
		}
	}
	if !change.Settings && len(change.Endpoints) == 0 {
		return nil
	}
	return change
}

// exclusion is why an endpoint gets no new flows to the ClusterIP, as in records.
func exclusion(s *decision.ServicePort, e *decision.Endpoint) string {
	if why := e.Exclusions[s.InternalPolicy]; why != 0 {
		return why.String()
	}
	return ""
}

// settings is a service port without its endpoints.
func settings(s *decision.ServicePort) decision.ServicePort {
	c := *s
	c.Endpoints, c.Usable, c.HasEndpoints = nil, [len(c.Usable)][]uint32{}, false
	return c
}

// Published is a service table that was put into force.
type Published struct {
	Table *decision.Table
	// InForce is when all workers and the kernel's rules used it; zero: unknown.
	InForce time.Time
	// Origins are where its changes came from, if known.
	Origins map[decision.ServiceName]servicetable.Origin
}

// Changes returns the newest changes of a service port, oldest first. Those before the second table are unknown. Their
// flows are noted on insertion, so they do not depend on which flows the journal still keeps; those of the tables since
// the last change are exact as of now.
func (j *Journal) Changes(s *decision.ServicePort) []observe.Change {
	j.mu.RLock()
	defer j.mu.RUnlock()
	h := j.changes.ports[portKeyOf(s)]
	if h == nil {
		return nil
	}
	t := j.services[h.portKey]
	list := make([]observe.Change, len(h.changes))
	for i := range h.changes {
		c := &h.changes[i]
		list[i] = c.Change
		list[i].FirstFlow = j.flowOf(c.first)
		list[i].Endpoints = slices.Clone(c.Endpoints)
		for k := range list[i].Endpoints {
			j.describe(&list[i].Endpoints[k], &c.followed[k], t)
		}
	}
	return list
}

// describe adds what flows and rules showed of an endpoint; t is nil if its service port had no flows.
func (j *Journal) describe(e *observe.EndpointChange, g *followed, t *tally) {
	if g.rules > 0 {
		e.Rules = new(time.Unix(0, g.rules))
	}
	e.RulesAwaited = g.rules == 0 && (g.begins || g.ends) && j.changes.rules != nil && slices.Contains(notifying, j.observe.Proxy())
	switch {
	case !g.addr.IsValid():
		return
	case g.begins:
		e.FirstFlow = j.flowOf(flowTo(g.flow, g.addr))
		return
	case g.settled:
		e.LastFlow = j.flowOf(flowTo(g.flow, g.addr))
		return
	}
	of := new(endpointTally)
	if t != nil {
		of = cmp.Or(t.endpoint(g.addr), of)
	}
	e.LastFlow = j.flowOf(flowTo(of.last(), g.addr))
	if !j.kernel.Following {
		return
	}
	if e.Open = new(uint64(of.open)); of.open == 0 && of.closed != 0 {
		e.Closed = new(time.Unix(0, of.closed))
	}
}

// flowOf describes a flow; nil: there is none.
func (j *Journal) flowOf(m result) *observe.ChangeFlow {
	if m.flow == 0 {
		return nil
	}
	f := &observe.ChangeFlow{ID: j.ID(m.flow), Time: time.Unix(0, m.at), Verdict: m.verdict.String()}
	if m.endpoint.IsValid() {
		f.Endpoint = m.endpoint.String()
	}
	return f
}

func flowTo(m flowRef, endpoint netip.AddrPort) result { return result{m, decision.DNAT, endpoint} }
