package engine

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/packet"
)

// A TCP flow that its endpoint refuses, or does not answer before the client sends its SYN again, is
// decided again, for another endpoint. The refusal is dropped, and the connection entry deleted; the
// client's next SYN gets a new one. A connection that has had an answer is never touched.

// Limits of second chances.
const (
	// maxAttempts is how many endpoints a flow may fail at before its refusal is passed on.
	maxAttempts = 3
	// retryLifetime is how long failed attempts of a flow are remembered: a client sends its SYN again
	// after 1, 3, 7 and 15 seconds (tcp_syn_retries).
	retryLifetime = 30 * time.Second
	// maxRetriedFlows is how many flows are remembered; the refusals of others are passed on.
	maxRetriedFlows = 4096
)

// retries are the failed attempts of flows that may still succeed. It is safe for concurrent use.
type retries struct {
	// given counts the flows that got another endpoint, queued the refusals that were looked at.
	given, queued atomic.Uint64

	count atomic.Int64 // of flows: so that workers need no lock if there are none
	mu    sync.Mutex
	flows map[conntrack.Tuple][]flow.Attempt
}

func newRetries() *retries { return &retries{flows: make(map[conntrack.Tuple][]flow.Attempt)} }

// of returns the failed attempts of a flow. The slice is not changed later.
func (c *retries) of(t conntrack.Tuple, now time.Time) []flow.Attempt {
	if c.count.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	attempts := c.flows[t]
	if len(attempts) > 0 && now.Sub(attempts[len(attempts)-1].Time) > retryLifetime {
		delete(c.flows, t)
		c.count.Store(int64(len(c.flows)))
		return nil
	}
	return attempts
}

// add adds a failed attempt. It reports false if the flow has had enough, or too many flows fail.
func (c *retries) add(t conntrack.Tuple, endpoint netip.AddrPort, outcome flow.State, now time.Time) bool {
	before := c.of(t, now)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(before) >= maxAttempts-1 {
		return false
	}
	if before == nil && len(c.flows) >= maxRetriedFlows {
		for old, attempts := range c.flows {
			if now.Sub(attempts[len(attempts)-1].Time) > retryLifetime {
				delete(c.flows, old)
			}
		}
		if len(c.flows) >= maxRetriedFlows {
			return false
		}
	}
	c.flows[t] = append(slices.Clone(before), flow.Attempt{Endpoint: endpoint.String(), Outcome: outcome, Time: now})
	c.count.Store(int64(len(c.flows)))
	return true
}

// isRefusal reports whether the packet is the answer of a host without a listener to a SYN: RST and ACK
// with the sequence number 0 (RFC 9293, section 3.10.7.1). See [ruleset.Spec.Refusals].
func isRefusal(p *packet.Packet) bool {
	t := p.Transport()
	if p.Protocol != packet.TCP || len(t) < 14 {
		return false
	}
	const fin, syn, rst, ack = 1, 2, 4, 16
	return t[13]&(fin|syn|rst|ack) == rst|ack && binary.BigEndian.Uint32(t[4:]) == 0
}

// refused reports whether a refusal is to be dropped, because the flow gets another endpoint.
func (w *worker) refused(p *packet.Packet) bool {
	w.retries.queued.Add(1)
	s, err := w.connections.Lookup(p.Tuple, 0)
	if err != nil || s.Reply != p.Tuple || !w.unanswered(&s) {
		return false
	}
	table := w.table.Load()
	first := decision.Packet{Protocol: decision.TCP, Source: s.Original.Source, Destination: s.Original.Destination, Local: table.IsLocal(s.Original.Source.Addr())}
	d := decision.Decide(table, &first, w.rand, nil, nil)
	if d.Verdict != decision.DNAT || !w.mayRetry(&first, &d, s.Endpoint(), flow.Refused) {
		return false
	}
	gone := [1]error{}
	w.connections.Delete([]conntrack.State{s}, gone[:])
	return gone[0] == nil
}

// unanswered reports whether the entry is that of a flow of ours which has had no answer.
func (w *worker) unanswered(s *conntrack.State) bool {
	return s.Original.Protocol == packet.TCP && s.TCP == conntrack.TCPSynSent && s.Status&conntrack.StatusSeenReply == 0 &&
		s.Mark&conntrack.DefaultMark != 0
}

// mayRetry records that the packet's flow has failed at an endpoint. It reports false, and records nothing, if the decision
// has no other endpoint, the flow has had enough, or too many flows fail.
func (w *worker) mayRetry(p *decision.Packet, d *decision.Decision, endpoint netip.AddrPort, outcome flow.State) bool {
	t, now := flow.TupleOf(p), time.Now()
	failed := append(slices.Clone(w.retries.of(t, now)), flow.Attempt{Endpoint: endpoint.String()})
	if len(untried(d, failed)) == 0 || !w.retries.add(t, endpoint, outcome, now) {
		return false
	}
	if w.balancer != nil {
		w.balancer.Failed(p, outcome == flow.Refused)
	}
	return true
}

// untried are the positions, in ServicePort.Usable of the decision's policy, of the endpoints at which
// the flow has not failed.
func untried(d *decision.Decision, failed []flow.Attempt) (positions []uint32) {
	for k, i := range d.ServicePort.Usable[d.Policy] {
		endpoint := d.ServicePort.Endpoints[i].AddrPort.String()
		if !slices.ContainsFunc(failed, func(a flow.Attempt) bool { return a.Endpoint == endpoint }) {
			positions = append(positions, uint32(k))
		}
	}
	return positions
}

// tryAnother decides for another endpoint if the flow has failed at the decision's. It draws among the
// others, whatever the algorithm.
func (w *worker) tryAnother(table *decision.Table, j *job) {
	if w.retries == nil || j.packet.Protocol != decision.TCP || j.decision.Verdict != decision.DNAT {
		return
	}
	failed := w.retries.of(flow.TupleOf(&j.packet), time.Now())
	if failed == nil {
		return
	}
	j.earlier = failed
	rest := untried(&j.decision, failed)
	d, s := &j.decision, j.decision.ServicePort
	if at := slices.Index(s.Usable[d.Policy], d.Index); len(rest) == 0 || slices.Contains(rest, uint32(at)) {
		return
	}
	k := rest[min(int(w.rand.Float64()*float64(len(rest))), len(rest)-1)]
	before := *d
	before.Reason = decision.Balanced // not bound: it must go elsewhere
	other, ok := decision.Choose(table, &j.packet, &before, s.Usable[d.Policy][k])
	if !ok {
		return
	}
	if w.balancer != nil && s.Balance != "" {
		w.balancer.Undo(d)
		other.Pick = w.balancer.Take(s, other.Policy, k)
	}
	j.decision = other
}

// replaceUnanswered decides flows again whose SYN was sent again, because their endpoint does not answer.
func (w *worker) replaceUnanswered(table *decision.Table, n int) {
	if w.retries == nil {
		return
	}
	for i := range n {
		j := &w.jobs[i]
		if j.state != jobDecided || j.entry < 0 {
			continue
		}
		switch r := &w.results[j.entry]; {
		case r.Outcome == conntrack.Kept && j.decision.Verdict == decision.DNAT && w.unanswered(&r.Existing) && r.Existing.Original == flow.TupleOf(&j.packet):
			w.replace(table, i, r.Existing.Endpoint())
		case r.Outcome == conntrack.Created && j.earlier != nil:
			w.retries.given.Add(1)
		}
	}
}

// replace decides a flow again that its endpoint does not answer.
func (w *worker) replace(table *decision.Table, i int, endpoint netip.AddrPort) {
	j, at := &w.jobs[i], w.jobs[i].entry
	if !w.mayRetry(&j.packet, &j.decision, endpoint, flow.Unanswered) {
		return
	}
	w.tryAnother(table, j)
	kept := len(w.entries)
	w.carryOut(table, i)
	if len(w.entries) > kept {
		w.entries[at] = w.entries[kept]
		w.entries[at].OverUnanswered = true
		w.entries = w.entries[:kept]
		j.entry = at
		w.connections.Establish(w.entries[at:at+1], w.results[at:at+1])
	}
	if w.results[at].Outcome == conntrack.Replaced {
		w.retries.given.Add(1)
	}
}
