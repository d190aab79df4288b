package journal

import (
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// RuleChange is a change of the rules that another service proxy has for an endpoint.
type RuleChange struct {
	// Chain is the name of the endpoint's chain: its names are unique, also among address families.
	Chain string
	// Filled: it has rules since At; if not, it has none.
	Filled bool
	At     time.Time
}

// proxyRules relates the changes of a proxy's rules to those of the service table. Either comes first.
type proxyRules struct {
	// recent are the last changes by chain, wanted the endpoints of changes whose rules have not been seen.
	recent map[string]RuleChange
	wanted map[string]unjudged
}

// The limits of both maps, and of the time from a change of the rules to that of the table and the other way round: later
// ones have another cause, as a restart of the proxy.
const (
	maxRules  = 8192
	rulesAge  = time.Minute
	rulesWait = 5 * time.Minute
)

// largeCluster is the number of endpoints of a family beyond which kube-proxy in its mode iptables removes chains only from
// time to time (largeClusterEndpointsThreshold). Then their removal does not tell when the endpoint went out of use.
const largeCluster = 1000

func newProxyRules() *proxyRules {
	return &proxyRules{make(map[string]RuleChange), make(map[string]unjudged)}
}

// want looks for the rules of an endpoint that changed at a time, in kube-proxy's modes nftables and iptables.
func (r *proxyRules) want(s *decision.ServicePort, g *followed, at time.Time, c *changes) {
	if !g.begins && !g.unused {
		return // its chain stays
	}
	chains := []string{s.NFTEndpointChain(g.addr)}
	if g.begins || !c.large[s.Family] {
		chains = append(chains, s.EndpointChain(g.addr))
	}
	for _, chain := range chains {
		if seen, ok := r.recent[chain]; ok && seen.Filled == g.begins && at.Sub(seen.At) < rulesAge {
			g.had(seen.At, at, c)
			return
		}
	}
	if len(r.wanted) >= maxRules {
		for chain, w := range r.wanted {
			if at.Sub(w.at) >= rulesWait {
				delete(r.wanted, chain)
			}
		}
		if len(r.wanted) >= maxRules {
			return // too many changes: their times are not known
		}
	}
	for _, chain := range chains {
		r.wanted[chain] = unjudged{g, at}
	}
}

// changed takes over a change of the rules.
func (r *proxyRules) changed(n RuleChange, c *changes) {
	if len(r.recent) >= maxRules {
		for chain, seen := range r.recent {
			if n.At.Sub(seen.At) >= rulesAge {
				delete(r.recent, chain)
			}
		}
		if len(r.recent) >= maxRules {
			clear(r.recent)
		}
	}
	r.recent[n.Chain] = n
	if w, ok := r.wanted[n.Chain]; ok && w.begins == n.Filled {
		delete(r.wanted, n.Chain)
		if !w.settled && n.At.Sub(w.at) < rulesWait {
			w.had(n.At, w.at, c)
		}
	}
}

// had notes when the rules had the change of an endpoint.
func (g *followed) had(rules, change time.Time, c *changes) {
	if g.rules == 0 {
		g.rules = rules.UnixNano()
		c.converged(observe.Rules, rules.Sub(change))
	}
}

// RulesChanged informs the journal of changes of the observed proxy's rules.
func (j *Journal) RulesChanged(list []RuleChange) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changes.rules == nil {
		return
	}
	for _, n := range list {
		j.changes.rules.changed(n, &j.changes)
	}
}

// RulesMissed informs the journal that changes of the rules were missed: when the rules had the changes until now is not
// known.
func (j *Journal) RulesMissed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changes.rules != nil {
		j.changes.rules = newProxyRules()
	}
}
