package balance

import "github.com/nfqproxy/nfqproxy/datapath/decision"

// Connection is the connection of a flow that a Balancer picked the endpoint of.
type Connection struct {
	port     *port
	endpoint *Endpoint
}

// Connection returns the connection of a decision. It reports false if no algorithm selected the
// endpoint, or if it was decided by a table that is no longer in use.
func (b *Balancer) Connection(d *decision.Decision) (Connection, bool) {
	e, p := b.picked(d)
	return Connection{p, e}, e != nil
}

// Observe passes an event of the connection on. Its endpoint is filled in. The events of a connection
// come in the order of their kinds: Inactive before Ended, each once.
func (c Connection) Observe(e Event) {
	e.Endpoint = c.endpoint
	c.port.observe(e)
}
