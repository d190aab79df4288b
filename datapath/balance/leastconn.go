package balance

import "github.com/nfqproxy/nfqproxy/datapath/decision"

// leastConn selects the endpoint with the least load: the schedulers lc, wlc, sed and nq of IPVS. Of
// several the first one is selected, and endpoints of weight 0 only if all have it.
type leastConn struct {
	set  *Set
	load load
	// idle: an endpoint without open connections comes first.
	idle bool
	// weighted: loads are compared in proportion to the weights.
	weighted bool
	kind     decision.EvidenceKind
}

// load is the load of an endpoint.
type load func(e *Endpoint) uint64

// overhead is the load of ip_vs_dest_conn_overhead in ip_vs.h: an open connection counts as 256
// inactive ones.
func overhead(e *Endpoint) uint64 { return uint64(e.Open())<<8 + uint64(e.Inactive()) }

// expected is the load of ip_vs_sed_dest_overhead in ip_vs_sed.c: with the new connection, and without
// inactive ones.
func expected(e *Endpoint) uint64 { return uint64(e.Open()) + 1 }

func (p *leastConn) Pick(Flow) decision.Pick {
	best, bestLoad := -1, uint64(0)
	for i := range p.set.Candidates {
		c := &p.set.Candidates[i]
		if c.Weight == 0 {
			continue
		}
		if p.idle && c.Open() == 0 {
			return decision.Pick{Position: uint32(i), Probability: 1, Evidence: decision.Evidence{Kind: decision.Idle}}
		}
		l := p.load(c.Endpoint)
		// l/weight < bestLoad/bestWeight, without division, as in IPVS
		if best < 0 || l*p.weight(best) < bestLoad*p.weight(i) {
			best, bestLoad = i, l
		}
	}
	best = max(best, 0)
	c := &p.set.Candidates[best]
	e := decision.Evidence{Kind: p.kind, Values: [3]uint32{uint32(c.Open()), uint32(c.Inactive()), uint32(p.weight(best))}}
	return decision.Pick{Position: uint32(best), Probability: 1, Evidence: e}
}

func (p *leastConn) weight(i int) uint64 {
	if !p.weighted {
		return 1
	}
	return uint64(p.set.Candidates[i].Weight)
}
