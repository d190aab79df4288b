// Package shadow has algorithms that decide beside those of a node, without effect: which endpoint each
// would have selected for each flow, and how many connections its endpoints would have.
//
// It is a ground package.
package shadow

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// Shadows are algorithms that decide beside. Each counts the connections that its endpoints would have: a
// flow's connection counts at the endpoint that the shadow selected, for as long as it is really open. What
// is known of an endpoint, its answers and failures, is that of the flows that were really sent to it.
// Flows that affinity has bound, or the kernel's copy decided, count at their real endpoint. Shadows are
// safe for concurrent use.
type Shadows struct {
	list   []*one   // the first counts what was really selected; the others are the shadows
	counts sync.Map // balance.Key to *counts
}

// one is one of the algorithms.
type one struct {
	*balance.Balancer
	algorithm    string
	agree, other atomic.Uint64 // flows of all service ports
}

// counts are those of a service port.
type counts struct {
	flows atomic.Uint64
	agree []atomic.Uint64 // by position in Shadows.list; the first one is not used
}

// Most is how many shadows there may be: each costs every flow a decision.
const Most = 8

// Parse reads a list of algorithms, separated by commas: "p2c,maglev". Commas in parentheses are not among
// the algorithms that there are.
func Parse(r *balance.Registry, text string) ([]balance.Algorithm, error) {
	var list []balance.Algorithm
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			return nil, fmt.Errorf("%q: an algorithm is empty", text)
		}
		a, err := r.Parse(name)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(list, func(b balance.Algorithm) bool { return a.Name == b.Name }) {
			return nil, fmt.Errorf("%q: %s is there twice", text, a.Name)
		}
		list = append(list, a)
	}
	if len(list) > Most {
		return nil, fmt.Errorf("%q: %d algorithms: at most %d", text, len(list), Most)
	}
	return list, nil
}

// New returns shadows of the algorithms. now is that of [balance.New].
func New(algorithms []balance.Algorithm, now func() int64) *Shadows {
	s := &Shadows{list: []*one{{Balancer: balance.NewCounting(now)}}}
	for _, a := range algorithms {
		s.list = append(s.list, &one{Balancer: balance.NewFixed(a, now), algorithm: a.Name})
	}
	return s
}

// Follow prepares for a new table; see [balance.Balancer.Follow].
func (s *Shadows) Follow(t *decision.Table) {
	var forgotten []balance.Key
	for _, o := range s.list { // all serve the same service ports
		forgotten = o.Follow(t)
	}
	for _, k := range forgotten {
		s.counts.Delete(k)
	}
}

// random is the source of the shadows' draws: the workers' own ones stay as they are without shadows.
type random struct{}

func (random) Float64() float64 { return rand.Float64() }

// Decide decides a flow that has been sent to an endpoint. It returns what each shadow selected, in their
// order, and the flow's connection. Both are nil if the flow has no endpoint.
func (s *Shadows) Decide(p *decision.Packet, d *decision.Decision) ([]flow.ShadowPick, Connection) {
	if d.Verdict != decision.DNAT {
		return nil, nil
	}
	service := d.ServicePort
	at := slices.Index(service.Usable[d.Policy], d.Index)
	if at < 0 {
		return nil, nil
	}
	position, choice := uint32(at), d.Reason == decision.Balanced && len(service.Usable[d.Policy]) > 1
	var c *counts
	if choice {
		c = s.countsOf(service)
		c.flows.Add(1)
	}
	picks, conn := make([]flow.ShadowPick, len(s.list)), make(Connection, len(s.list))
	for i, o := range s.list {
		real := o.At(service, d.Policy, position)
		conn[i] = pair{real, real}
		if i == 0 || !choice {
			picks[i] = flow.ShadowPick{Algorithm: o.algorithm, Pick: o.Take(service, d.Policy, position)}
			continue
		}
		pick := o.Pick(service, d.Policy, p, random{})
		picks[i] = flow.ShadowPick{Algorithm: o.algorithm, Pick: pick}
		if pick.Position == position {
			o.agree.Add(1)
			c.agree[i].Add(1)
		} else {
			o.other.Add(1)
			conn[i].own = o.At(service, d.Policy, pick.Position)
		}
	}
	return picks[1:], conn
}

func (s *Shadows) countsOf(p *decision.ServicePort) *counts {
	k := balance.KeyOf(p)
	if c, ok := s.counts.Load(k); ok {
		return c.(*counts)
	}
	c, _ := s.counts.LoadOrStore(k, &counts{agree: make([]atomic.Uint64, len(s.list))})
	return c.(*counts)
}

// Connection is the connection of a flow, as all shadows see it.
type Connection []pair

// pair are the endpoint that a shadow selected, and the real one.
type pair struct{ own, real balance.Connection }

// Observe passes an event of the connection on; see [balance.Connection.Observe].
func (c Connection) Observe(e balance.Event) {
	for _, p := range c {
		if e.Kind == balance.Inactive || e.Kind == balance.Ended {
			p.own.Observe(e)
		} else {
			p.real.Observe(e)
		}
	}
}

// Adopt counts a connection that is already there, to an endpoint of the service port. It returns nil if the
// service port does not have the endpoint.
func (s *Shadows) Adopt(p *decision.ServicePort, endpoint netip.AddrPort) Connection {
	var conn Connection
	for _, o := range s.list {
		c, ok := o.Adopt(p, endpoint)
		if !ok {
			return nil
		}
		conn = append(conn, pair{c, c})
	}
	return conn
}
