package journal

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
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
			// No flow to it is the first since an earlier change.
			h.settle(g.addr, p.Generation, t)
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
	if h.awaited == 0 && m.generation >= h.changes[len(h.changes)-1].Generation {
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

// settle ends the observation of an endpoint: a table of the generation gives it new flows again, or none any more, or its
// counts are removed.
func (h *history) settle(addr netip.AddrPort, generation uint64, t *tally) {
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
	// replaced are the chains of which it was not known where they led before.
	replaced map[chainOf]replacement
}

// chainOf is the chain of a service port in one address family.
type chainOf struct {
	chain  string
	family decision.Family
}

// replacement is where a chain leads since a time.
type replacement struct {
	endpoints []string
	at        time.Time
}

// The limits of these maps, and of the time from a change of the rules to that of the table and the other way round:
// later ones have another cause, such as a restart of the proxy, and are not measured.
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
	return &proxyRules{make(map[link]linkChange), make(map[link]unjudged), make(map[chainOf]replacement)}
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
		if seen, ok := r.replaced[chainOf{l.chain, s.Family}]; ok && slices.Contains(seen.endpoints, l.endpoint) == g.begins && at.Sub(seen.at) < rulesAge {
			g.had(seen.at, at, c)
			return
		}
	}
	if full(r.wanted, func(w unjudged) bool { return at.Sub(w.at) >= rulesWait }) {
		g.rules = unknown
		return
	}
	for _, l := range links {
		r.wanted[l] = unjudged{g, at}
	}
}

// full reports whether a map has reached its limit without its old values, which it deletes.
func full[K comparable, V any](m map[K]V, old func(V) bool) bool {
	if len(m) >= maxRules {
		maps.DeleteFunc(m, func(_ K, v V) bool { return old(v) })
	}
	return len(m) >= maxRules
}

// changed takes over a change of the rules.
func (r *proxyRules) changed(l link, n linkChange, c *changes) {
	if full(r.recent, func(seen linkChange) bool { return n.at.Sub(seen.at) >= rulesAge }) {
		clear(r.recent)
	}
	r.recent[l] = n
	if w, ok := r.wanted[l]; ok && w.begins == n.leads {
		r.found(l, w, n.at, c)
	}
}

// replace takes over that a chain leads to other endpoints, wherever it led before.
func (r *proxyRules) replace(of chainOf, n replacement, c *changes) {
	if full(r.replaced, func(seen replacement) bool { return n.at.Sub(seen.at) >= rulesAge }) {
		clear(r.replaced)
	}
	r.replaced[of] = n
	for l, w := range r.wanted {
		if l.chain == of.chain && decision.FamilyOf(w.addr.Addr()) == of.family && w.begins == slices.Contains(n.endpoints, l.endpoint) {
			r.found(l, w, n.at, c)
		}
	}
}

// found notes when the rules had a change that is wanted.
func (r *proxyRules) found(l link, w unjudged, at time.Time, c *changes) {
	delete(r.wanted, l)
	if !w.settled {
		w.had(at, w.at, c)
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

// RulesReplaced informs the journal that a chain of the observed proxy's rules leads to these endpoints.
func (j *Journal) RulesReplaced(chain string, f decision.Family, endpoints []string, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changes.rules != nil {
		j.changes.rules.replace(chainOf{chain, f}, replacement{endpoints, at}, &j.changes)
	}
}

// RulesMissed informs the journal that changes of the rules were missed: it is unknown when the rules had the changes
// until now.
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
