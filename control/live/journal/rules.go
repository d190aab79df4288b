package journal

import (
	"cmp"
	"maps"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// link is a way from the chain of a service port to an endpoint, in the rules of another service proxy.
type link struct{ chain, endpoint string }

// linkChange is a change of a link: the chain leads to the endpoint since a time, or not any more.
type linkChange struct {
	leads bool
	at    time.Time
}

// proxyRules relates the changes of a proxy's rules to those of the service table. Either comes first.
type proxyRules struct {
	// recent are the last changes, wanted the endpoints of changes whose rules have not been seen.
	recent map[link]linkChange
	wanted map[link]unjudged
}

// The limits of both maps, and of the time from a change of the rules to that of the table and the other way round: later
// ones have another cause, as a restart of the proxy, and are not measured.
const (
	maxRules  = 8192
	rulesAge  = time.Minute
	rulesWait = 5 * time.Minute
)

// notifying are the proxies of whose rules the kernel notifies: otherproxy names them.
var notifying = []string{"kube-proxy (iptables)", "kube-proxy (nftables)"}

// unknown is in the place of the time when the rules had a change.
const unknown = -1

// largeCluster is the number of endpoints of a family beyond which kube-proxy in its mode iptables removes the chain of a
// service port without endpoints only from time to time (largeClusterEndpointsThreshold): when it does, tells nothing.
const largeCluster = 1000

func newProxyRules() *proxyRules {
	return &proxyRules{make(map[link]linkChange), make(map[link]unjudged)}
}

// want looks for the rules of an endpoint that changed at a time, in kube-proxy's modes iptables and nftables.
func (r *proxyRules) want(s *decision.ServicePort, g *followed, at time.Time, c *changes) {
	p := s.InternalPolicy
	links := []link{{s.PolicyChain(p), s.EndpointChain(g.addr)}, {s.NFTablesChain(p), decision.NFTablesEndpoint(g.addr)}}
	if n := len(s.Usable[p]); c.large[s.Family] && n < 2 { // the chain may stay for the first endpoint that comes again
		links, g.rules = links[1-n:], unknown
	}
	for _, l := range links {
		if seen, ok := r.recent[l]; ok && seen.leads == g.begins && at.Sub(seen.at) < rulesAge {
			g.had(seen.at, at, c)
			return
		}
	}
	if len(r.wanted) >= maxRules {
		maps.DeleteFunc(r.wanted, func(_ link, w unjudged) bool { return at.Sub(w.at) >= rulesWait })
		if len(r.wanted) >= maxRules {
			g.rules = unknown
			return
		}
	}
	for _, l := range links {
		r.wanted[l] = unjudged{g, at}
	}
}

// changed takes over a change of the rules.
func (r *proxyRules) changed(l link, n linkChange, c *changes) {
	if len(r.recent) >= maxRules {
		maps.DeleteFunc(r.recent, func(_ link, seen linkChange) bool { return n.at.Sub(seen.at) >= rulesAge })
		if len(r.recent) >= maxRules {
			clear(r.recent)
		}
	}
	r.recent[l] = n
	if w, ok := r.wanted[l]; ok && w.begins == n.leads {
		delete(r.wanted, l)
		if !w.settled {
			w.had(n.at, w.at, c)
		}
	}
}

// had notes when the rules had the change of an endpoint.
func (g *followed) had(rules, change time.Time, c *changes) {
	if g.rules > 0 {
		return
	}
	if g.rules = rules.UnixNano(); rules.Sub(change) < rulesWait {
		c.converged(observe.Rules, rules.Sub(change))
	}
}

// RuleChanged informs the journal of a change of the observed proxy's rules, as otherproxy.Rules reports it.
func (j *Journal) RuleChanged(chain, endpoint string, leads bool, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changes.rules != nil {
		j.changes.rules.changed(link{chain, endpoint}, linkChange{leads, at}, &j.changes)
	}
}

// RulesMissed informs the journal that changes of the rules were missed: when the rules had the changes until now is not
// known.
func (j *Journal) RulesMissed() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changes.rules != nil {
		for _, w := range j.changes.rules.wanted {
			w.rules = cmp.Or(w.rules, unknown)
		}
		j.changes.rules = newProxyRules()
	}
}
