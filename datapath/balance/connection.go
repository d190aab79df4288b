package balance

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Connection is the connection of a flow that a Balancer picked the endpoint of. Events of the zero value
// have no effect.
type Connection struct{ endpoint *Endpoint }

// Connection returns the connection of a decision. It reports false if no algorithm selected the
// endpoint, or if it was decided by a table that is no longer in use.
func (b *Balancer) Connection(d *decision.Decision) (Connection, bool) {
	e := b.picked(d)
	return Connection{e}, e != nil
}

// Opener opens connections to a service port of one table under one policy, without looking it up for each of them: for a
// simulation of millions.
type Opener struct {
	view   *view
	policy decision.Policy
	now    func() int64
}

// Opener returns the Opener of a service port that has usable endpoints under the policy.
func (b *Balancer) Opener(s *decision.ServicePort, policy decision.Policy) Opener {
	return Opener{b.view(s), policy, b.now}
}

// Open selects an endpoint as [Balancer.Pick] does, and returns its position in ServicePort.Usable of the policy, and the
// connection.
func (o *Opener) Open(p *decision.Packet, r decision.Rand) (uint32, Connection) {
	var pick decision.Pick
	o.view.pick(o.policy, p, r, o.now, &pick)
	return pick.Position, Connection{o.view.sets[o.policy].Candidates[pick.Position].Endpoint}
}

// OpenOnly reports whether no algorithm reads more of the connection's endpoint than the number of its open connections. A
// simulation may then pass no event on, and call Close once the connection is closed.
func (c Connection) OpenOnly() bool { return c.endpoint != nil && c.endpoint.port.openOnly.Load() }

// Close is the events Inactive and Ended at once, of a connection for which OpenOnly is true.
func (c Connection) Close() { c.endpoint.open.Add(-1) }

// Observe passes an event of the connection on. Its endpoint is filled in. The events of a connection
// come in the order of their kinds: Inactive before Ended, each once.
func (c Connection) Observe(e Event) {
	if c.endpoint == nil {
		return
	}
	e.Endpoint = c.endpoint
	c.endpoint.port.observe(e)
}

// At returns a connection to the endpoint at the position in ServicePort.Usable of the policy, which is not
// counted as one that was opened: for events about the endpoint.
func (b *Balancer) At(s *decision.ServicePort, policy decision.Policy, position uint32) Connection {
	return Connection{b.view(s).sets[policy].Candidates[position].Endpoint}
}

// Adopt counts a connection that is already there, to an endpoint of the service port, as one that was
// opened. It reports false if the service port does not have the endpoint.
func (b *Balancer) Adopt(s *decision.ServicePort, endpoint netip.AddrPort) (Connection, bool) {
	v := b.view(s)
	v.port.mu.Lock()
	e := v.port.endpoints[endpoint]
	v.port.mu.Unlock()
	if e == nil {
		return Connection{}, false
	}
	e.open.Add(1)
	return Connection{e}, true
}

// Table is the table that was followed last; nil: none was.
func (b *Balancer) Table() *decision.Table {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.table
}
