package journal

import (
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
)

// Meter measures what flows show about the work of a service proxy. Its methods are called often and must return at
// once.
type Meter interface {
	// Converged is called with what happened ([observe.FirstFlow] and the like), and how long after the table with the
	// change was built: 0 if before.
	Converged(event string, after time.Duration)
	// Odd is called with the counts of a flow that the observed proxy treated differently from the objects.
	Odd(observe.Flows)
}

// judgedAfter is how long after a change the flows to an endpoint without new flows count as those of the change.
const judgedAfter = time.Minute

// maxUnjudged bounds the endpoints that are not judged yet.
const maxUnjudged = 10_000

// followed is an endpoint of a change, whose flows are noted; the zero value is none.
type followed struct {
	addr netip.AddrPort
	// begins: it gets new flows since the change. ends: it gets none since, and did before.
	begins, ends bool
	// settled: a later change is about it, or its counts are removed.
	settled bool
	// flow is the first flow to one that begins. Of another one that is settled, it is the last flow before that.
	flow flowRef
	// late is how long after the change a table without it decided the last flow.
	late  time.Duration
	rules int64 // when the proxy's rules had the change; 0: no notification told yet; unknown: one may have been missed
}

// unjudged is an endpoint that got new flows until a change, at a time.
type unjudged struct {
	*followed
	at time.Time
}

// follow begins to follow the endpoints of a change. Their flows may have been counted already.
func (c *changes) follow(h *history, p *portChange, t *tally) {
	for i := range p.followed {
		g := &p.followed[i]
		var of *endpointTally
		if t != nil && g.addr.IsValid() {
			of = t.endpoint(g.addr)
		}
		switch {
		case g.begins:
			if of != nil && of.last().generation >= p.Generation {
				g.flow = of.last()
				c.converged(observe.FirstFlow, time.Unix(0, g.flow.at).Sub(p.Time))
			}
		case !g.ends:
			continue
		default:
			h.stopAwaiting(g.addr)
			if of != nil && of.total > 0 { // without flows, nothing can show whether the proxy knows it
				g.late = max(0, time.Unix(0, of.last().at).Sub(p.Time))
				c.unjudged = append(c.unjudged, unjudged{g, p.Time})
			}
		}
		if c.rules != nil {
			c.rules.want(p.port, g, p.Time, c)
		}
	}
	for len(c.unjudged) > maxUnjudged {
		c.judge()
	}
}

// connected notes a flow that created a connection to an endpoint.
func (c *changes) connected(h *history, to netip.AddrPort, m flowRef) {
	if h.awaited == 0 && m.generation >= h.newest {
		return // as almost always
	}
	for i := range h.changes {
		of := &h.changes[i]
		for k := range of.followed {
			g := &of.followed[k]
			if g.addr != to || g.settled || g.begins != (m.generation >= of.Generation) {
				continue
			}
			after := time.Unix(0, m.at).Sub(of.Time)
			switch {
			case !g.begins:
				g.late = max(g.late, after)
			case g.flow.flow == 0:
				h.awaited--
				c.converged(observe.FirstFlow, after)
				fallthrough
			case m.at < g.flow.at:
				g.flow = m
			}
		}
	}
}

// settle ends the observation of an endpoint: a table of the generation gives it new flows again, or its counts are
// removed.
func (c *changes) settle(h *history, addr netip.AddrPort, generation uint64, t *tally) {
	for i := range h.changes {
		for k := range h.changes[i].followed {
			g := &h.changes[i].followed[k]
			if g.addr != addr || g.settled {
				continue
			}
			g.settled = true
			if g.begins || t == nil {
				continue
			}
			if e := t.endpoint(addr); e != nil {
				g.flow = e.before(generation)
			}
		}
	}
	h.countAwaited()
}

// stopAwaiting notes that an endpoint gets no new flows: no flow to it is the first since an earlier change.
func (h *history) stopAwaiting(addr netip.AddrPort) {
	for i := range h.changes {
		for k := range h.changes[i].followed {
			if g := &h.changes[i].followed[k]; g.addr == addr && g.begins {
				g.settled = true
			}
		}
	}
}

func (h *history) countAwaited() {
	h.awaited = 0
	for i := range h.changes {
		for k := range h.changes[i].followed {
			if g := &h.changes[i].followed[k]; g.begins && !g.settled && g.flow.flow == 0 {
				h.awaited++
			}
		}
	}
}

// judgeOld judges the endpoints whose change is long ago.
func (c *changes) judgeOld(now time.Time) {
	for len(c.unjudged) > 0 && now.Sub(c.unjudged[0].at) >= judgedAfter {
		c.judge()
	}
}

// judge reports how late the last flow to the first endpoint was.
func (c *changes) judge() {
	c.converged(observe.LastFlow, c.unjudged[0].late)
	c.unjudged[0] = unjudged{}
	c.unjudged = c.unjudged[1:]
}

func (c *changes) converged(event string, after time.Duration) {
	if c.meter != nil {
		c.meter.Converged(event, max(0, after))
	}
}
