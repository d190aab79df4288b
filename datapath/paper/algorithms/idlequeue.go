package algorithms

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// idleQueue is join-idle-queue: Lu, Xie, Kliot, Geller, Larus and Greenberg, Join-Idle-Queue: A Novel Load Balancing
// Algorithm for Dynamically Scalable Web Services, Performance Evaluation 68(11), 2011, section 2, as JIQ-Random: an
// endpoint that becomes idle reports to one random node. A node sends a flow to the endpoint that is first in its queue; if there is
// none, to a random one. An endpoint that gets a connection from elsewhere leaves the queue.
type idleQueue struct {
	set       *balance.Set
	in        []uint32
	positions map[netip.AddrPort]uint32
	idle      []uint32
}

func newIdleQueue(c Cluster) newPicker {
	return func(set *balance.Set, before balance.Picker) balance.Picker {
		p := &idleQueue{set: set, in: set.Weighed(), positions: make(map[netip.AddrPort]uint32, len(set.Candidates))}
		for _, i := range p.in {
			p.positions[set.Candidates[i].AddrPort] = i
		}
		p.idle = make([]uint32, 0, len(p.in))
		if b, ok := before.(*idleQueue); ok {
			for _, i := range b.idle {
				p.Idle(b.set.Candidates[i].AddrPort)
			}
		}
		c.Join(set, p)
		return p
	}
}

func (p *idleQueue) Pick(f balance.Flow) decision.Pick {
	if len(p.idle) == 0 {
		return drawn(f.Rand, p.in)
	}
	first := p.idle[0]
	p.idle = slices.Delete(p.idle, 0, 1)
	return decision.Pick{Position: first, Probability: 1, Evidence: decision.Evidence{Kind: decision.Noted, Note: "the first in the queue of idle endpoints"}}
}

// drawn is a candidate drawn with the same probability as all others.
func drawn(r decision.Rand, in []uint32) decision.Pick {
	pick := balance.Drawn(r, len(in))
	pick.Position = in[pick.Position]
	return pick
}

// Idle implements [IdleQueue].
func (p *idleQueue) Idle(endpoint netip.AddrPort) {
	if i, ok := p.positions[endpoint]; ok && !slices.Contains(p.idle, i) {
		p.idle = append(p.idle, i)
	}
}

// Busy implements [IdleQueue].
func (p *idleQueue) Busy(endpoint netip.AddrPort) bool {
	i, known := p.positions[endpoint]
	at := slices.Index(p.idle, i)
	if !known || at < 0 {
		return false
	}
	p.idle = slices.Delete(p.idle, at, at+1)
	return true
}
