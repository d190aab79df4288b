package traffic

import (
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// SecondChance follows the name of an algorithm whose nodes give second chances, as nfqproxy run
// --second-chance does: a flow that its endpoint refuses, or does not answer, is decided again when the client
// sends its SYN again.
const SecondChance = "+second-chance"

// maxRetries is how many endpoints a flow may fail at before the node passes the refusal on, less the first.
const maxRetries = 2

// resent is when clients send a SYN again: after 1 and 3 seconds (RFC 6298, net.ipv4.tcp_syn_linear_timeouts=0).
var resent = [maxRetries]int64{1e9, 3e9}

// mayTry reports whether there is an endpoint at which the connection has not failed, if it fails at its own.
func (s *simulation) mayTry(id int32) bool {
	c := &s.connections[id]
	if int(c.retries) >= maxRetries {
		return false
	}
	port := s.portOf(c)
	if port == nil {
		return false
	}
	failed := append(slices.Clone(s.failed[id][:c.retries]), c.server)
	return slices.ContainsFunc(port.Usable[decision.Cluster], func(i uint32) bool { return !slices.Contains(failed, s.control.ids[port][i]) })
}

// portOf is the service port of a connection in the table of its node; nil: there is none.
func (s *simulation) portOf(c *connection) *decision.ServicePort {
	service := &s.c.Cluster.Services[s.servers[c.server].service]
	for _, p := range s.nodes[c.node].table.Service(decision.ServiceName{Namespace: service.Namespace, Name: service.Name}) {
		return p
	}
	return nil
}

// await waits for what a client without a reply does: it sends its SYN again, or gives up.
func (s *simulation) await(id int32) {
	c := &s.connections[id]
	end := c.arrived + s.giveUp
	if s.secondChance && int(c.retries) < maxRetries {
		if at := c.arrived + resent[c.retries]; at < end {
			s.queue.add(at, again, id, c.use)
			return
		}
	}
	s.queue.add(max(end, s.now), gaveUp, id, c.use)
}

// tryAgain decides a connection again whose client has sent its SYN again. An endpoint at which it has not failed is drawn
// if the algorithm selects one at which it has.
func (s *simulation) tryAgain(id int32) {
	c := &s.connections[id]
	n := &s.nodes[c.node]
	if !n.alive {
		s.abandon(id)
		return
	}
	if c.phase == unanswered && !s.mayTry(id) {
		c.retries = maxRetries
		s.await(id)
		return
	}
	if c.phase == unanswered {
		s.fail(c, balance.Unanswered)
	}
	s.failed[id][c.retries] = c.server
	c.retries++
	d := s.decide(n, c.client, c.port, s.servers[c.server].service)
	if d.Verdict == decision.DNAT {
		d = s.elsewhere(n, s.failed[id][:c.retries], d)
	}
	if d.Verdict != decision.DNAT {
		s.countRefused(c.counted)
		s.discard(id)
		return
	}
	if c.counted {
		s.result.SecondChances++
	}
	c.server = s.control.server(&d)
	c.tracked, c.hasTracker = n.balancer.Connection(&d)
	if c.counted {
		s.servers[c.server].flows++
	}
	s.servers[c.server].recent++
	s.offer(id)
}

// decided is when the connection was decided the last time.
func (c *connection) decided() int64 {
	if c.retries == 0 {
		return c.arrived
	}
	return c.arrived + resent[c.retries-1]
}

// elsewhere is the decision, or one for an endpoint at which the connection has not failed.
func (s *simulation) elsewhere(n *node, failed []int32, d decision.Decision) decision.Decision {
	port := d.ServicePort
	if !slices.Contains(failed, s.control.server(&d)) {
		return d
	}
	var rest []uint32
	for k, i := range port.Usable[d.Policy] {
		if !slices.Contains(failed, s.control.ids[port][i]) {
			rest = append(rest, uint32(k))
		}
	}
	if len(rest) == 0 {
		return d
	}
	k := rest[min(int(n.rand.Float64()*float64(len(rest))), len(rest)-1)]
	if port.Balance != "" {
		n.balancer.Undo(&d)
		d.Pick = n.balancer.Take(port, d.Policy, k)
	}
	d.Index = port.Usable[d.Policy][k]
	return d
}
