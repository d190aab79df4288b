package audit

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// follow reads the chains of a service.
func (r *nftReader) follow(s *Service) {
	if s.suffix == "" {
		return
	}
	// Chains that nothing leads to are not the service's own: kube-proxy empties those, and deletes them later.
	var pending unique[string]
	for _, kind := range []nftproxy.Kind{nftproxy.FirewallChain, nftproxy.ExternalChain, nftproxy.ServiceChain, nftproxy.LocalChain} {
		if chain := string(kind) + s.suffix; r.node.chains[chain] == s {
			pending.add(chain)
		}
	}
	for i := 0; i < len(pending.values); i++ {
		chain := r.chains[pending.values[i]]
		if chain == nil {
			continue
		}
		r.checkChainName(chain.Name, chain.Line)
		for _, rule := range chain.rules {
			if name, _ := nftproxy.ParseName(rule.jump); name.Kind != "" && name.Kind != nftproxy.EndpointChain {
				if r.enter(s, rule.jump); r.node.chains[rule.jump] == s {
					pending.add(rule.jump)
				}
			}
		}
		switch name, _ := nftproxy.ParseName(chain.Name); name.Kind {
		case nftproxy.ServiceChain:
			r.balance(s, decision.Cluster, chain)
		case nftproxy.LocalChain:
			r.balance(s, decision.Local, chain)
		case nftproxy.ExternalChain:
			r.externalChain(s, chain)
		case nftproxy.FirewallChain:
			r.firewallChain(s, chain)
		}
	}
	slices.SortStableFunc(s.Endpoints, func(a, b Endpoint) int {
		return cmp.Or(cmp.Compare(a.AddrPort.String(), b.AddrPort.String()), cmp.Compare(a.Chain, b.Chain))
	})
}

// foreign reports a rule in a chain of kube-proxy that it does not write.
func (r *nftReader) foreign(chain *nftChain, rule *nftRule) {
	if pasted.IsMasked(rule.String()) {
		r.gap(fmt.Sprintf("a part of a rule of %s is masked: %s", chain.Name, rule.Rule), rule.Line)
		return
	}
	if r.node.foreign == nil {
		r.node.foreign = make(map[*nftables.Rule]bool)
	}
	r.node.foreign[rule.Rule] = true
	r.problem(fmt.Sprintf("%s has a rule that kube-proxy does not write: %s", chain.Name, rule.Rule), rule.Line)
}

// externalChain reads external-...: what policy Local does not apply to, and what is masqueraded.
func (r *nftReader) externalChain(s *Service, chain *nftChain) {
	masquerades := false
	for _, rule := range chain.rules {
		name, _ := nftproxy.ParseName(rule.jump)
		how, outside, detects := rule.detects()
		marks := rule.masquerade(nftproxy.MarkMasq)
		switch {
		case rule.other:
			r.foreign(chain, rule)
			continue
		case marks && rule.fromNode, name.Kind == nftproxy.LocalChain:
			s.ExternalPolicy = decision.Local
		case name.Kind == nftproxy.ServiceChain && detects && !outside:
			s.ExternalPolicy = decision.Local
			r.detect(rule.Line, how)
		case name.Kind == nftproxy.ServiceChain, marks && rule.unconditional():
		default:
			r.foreign(chain, rule)
			continue
		}
		masquerades = masquerades || marks
	}
	if len(chain.rules) > 0 && !masquerades {
		r.problem(fmt.Sprintf("%s of %s masquerades nothing: replies from endpoints on other nodes do not come back here", chain.Name, s.Title()), chain.Line)
	}
}

// firewallChain reads firewall-...: it drops what comes from outside of the source ranges.
func (r *nftReader) firewallChain(s *Service, chain *nftChain) {
	own := setOf(s.LoadBalancerIPs)
	ranges := &r.index(s).sourceRanges
	found := false
	for _, rule := range chain.rules {
		if rule.sources == nil || !rule.notFrom || rule.verdict != "drop" || rule.other {
			r.foreign(chain, rule)
			continue
		}
		found = true
		// The addresses themselves are there if the node's is within the ranges: all or none.
		itself := make(map[netip.Addr]bool)
		for _, p := range rule.sources {
			if p.IsSingleIP() && own[p.Addr()] {
				itself[p.Addr()] = true
			}
		}
		s.NodeAllowed = len(itself) == len(own) && len(itself) < len(rule.sources)
		for _, p := range rule.sources {
			if !s.NodeAllowed || !itself[p.Addr()] || !p.IsSingleIP() {
				ranges.add(p)
			}
		}
	}
	s.SourceRanges = ranges.values
	if !found {
		r.problem(fmt.Sprintf("%s of %s drops nothing: the load balancer IPs are open to all sources", chain.Name, s.Title()), chain.Line)
	}
}

// balance reads service-... or local-...: session affinity, and the choice of an endpoint.
func (r *nftReader) balance(s *Service, policy decision.Policy, chain *nftChain) {
	b := &balance{chain: chain.Name, line: chain.Line, left: 1, sticky: make(map[string]bool)}
	s.balanced[policy] = b
	places := make(map[string]int) // of the endpoints in the shares
	for _, rule := range chain.rules {
		ep, _ := nftproxy.ParseName(rule.jump)
		switch {
		case rule.other:
			r.foreign(chain, rule)
			b.foreign = true
		case rule.masquerade(nftproxy.MarkMasq):
			r.masqueradeRule(s, rule)
		case rule.affinity != "" && ep.Kind == nftproxy.EndpointChain:
			r.affinity(s, rule)
			b.sticky[rule.jump] = true
		case rule.draw != nil && b.left > 0:
			for _, c := range rule.draw.choices {
				part := b.left * float64(c.count) / float64(rule.draw.mod)
				r.endpointOf(s, c, rule.Line).add(policy, part)
				i, known := places[choiceKey(c)]
				if !known {
					i, places[choiceKey(c)] = len(b.shares), len(b.shares)
					b.shares = append(b.shares, share{chain: c.chain, line: rule.Line})
				}
				b.shares[i].part += part
			}
			drawn := b.left
			for i := range b.shares {
				drawn -= b.shares[i].part
			}
			b.left = max(drawn, 0)
			r.mod1 = r.mod1 || rule.draw.mod == 1 && s.AffinitySeconds == 0
		case rule.to.IsValid() && b.left > 0:
			r.endpointOf(s, choice{to: rule.to}, rule.Line).add(policy, b.left)
			b.shares = append(b.shares, share{part: b.left, line: rule.Line})
			b.left, r.single = 0, true
		default:
			r.foreign(chain, rule)
			b.foreign = true
		}
	}
	for i := range b.shares {
		b.unequal = b.unequal || math.Abs(b.shares[i].part-b.shares[0].part) > rounding
	}
}

// masqueradeRule reads a rule that masquerades flows to the cluster IP, which the chains of services had until 1.35.
func (r *nftReader) masqueradeRule(s *Service, rule *nftRule) {
	to, ok := rule.destination.host()
	if !ok {
		return
	}
	r.masquerades(rule)
	if !s.ClusterIP.IsValid() {
		r.clusterIP(s, to, rule.Line)
		r.port(s, rule.port, rule.Line)
	}
}

// affinity reads a rule for the clients of one endpoint, and the set that has them.
func (r *nftReader) affinity(s *Service, rule *nftRule) {
	set := r.sets[rule.affinity]
	if set == nil {
		r.gap(fmt.Sprintf("set %s is not in the file", rule.affinity), rule.Line)
		return
	}
	s.AffinitySeconds = max(s.AffinitySeconds, uint32(min(max(set.Timeout, 0)/time.Second, 1<<32-1)))
	in, _ := nftproxy.ParseName(rule.affinity)
	to, _ := nftproxy.ParseName(rule.jump)
	if in.Base != to.Base {
		r.problem(fmt.Sprintf("the clients in %s go to %s, which is another endpoint", rule.affinity, rule.jump), rule.Line)
	}
}

// choiceKey identifies the endpoint of a choice.
func choiceKey(c choice) string { return cmp.Or(c.chain, c.to.String()) }

// endpointOf returns the service's endpoint of a choice, and makes it if needed.
func (r *nftReader) endpointOf(s *Service, c choice, line int) *Endpoint {
	index := r.index(s)
	key := choiceKey(c)
	if i, known := index.endpoints[key]; known {
		return &s.Endpoints[i]
	}
	index.endpoints[key] = len(s.Endpoints)
	e := Endpoint{Chain: c.chain, AddrPort: c.to}
	if c.chain != "" {
		e.AddrPort = r.endpointChain(s, c.chain, line)
	}
	if e.AddrPort.IsValid() {
		r.endpoints[hairpin{e.AddrPort, s.Protocol}] = true
	}
	s.Endpoints = append(s.Endpoints, e)
	return &s.Endpoints[len(s.Endpoints)-1]
}

// endpointChain reads endpoint-...: until 1.35 it masquerades the endpoint's packets to itself.
func (r *nftReader) endpointChain(s *Service, name string, line int) (to netip.AddrPort) {
	r.enter(s, name)
	named, known := nftproxy.ParseName(name)
	chain := r.chains[name]
	if chain == nil {
		return named.Endpoint
	}
	r.checkChainName(name, chain.Line)
	var itself netip.Addr
	updates := ""
	for _, rule := range chain.rules {
		source, isHost := rule.source.host()
		switch {
		case rule.other:
			r.foreign(chain, rule)
		case isHost && rule.jump == nftproxy.MarkMasq:
			itself = source
		case rule.updates != "":
			updates = rule.updates
		case rule.to.IsValid() && !to.IsValid():
			to = rule.to
		default:
			r.foreign(chain, rule)
		}
	}
	switch {
	case !to.IsValid():
		r.problem(fmt.Sprintf("%s of %s has no DNAT to one address and port", name, s.Title()), chain.Line, line)
	case known && named.Endpoint != to:
		r.problem(fmt.Sprintf("%s translates to %s", name, to), chain.Line)
	case r.chains[nftproxy.MarkMasq] != nil && itself != to.Addr():
		r.problem(fmt.Sprintf("%s does not masquerade the packets of %s itself, which cannot reach itself through %s", name, to.Addr(), s.Title()), chain.Line)
	}
	if s.AffinitySeconds > 0 && updates != string(nftproxy.AffinitySet)+named.Base {
		r.problem(fmt.Sprintf("%s does not record its clients: %s has no session affinity to %s", name, s.Title(), to), chain.Line)
	}
	return to
}

// checkChainName compares the name of a chain with the hash of its purpose.
func (r *nftReader) checkChainName(chain string, line int) {
	if name, ok := nftproxy.ParseName(chain); ok {
		of := fmt.Sprintf("%s/%s", name.Service, name.Protocol.Lower())
		if name.Endpoint.IsValid() {
			of += fmt.Sprintf(" and %s", name.Endpoint)
		}
		r.compareName(chain, name.Want(), chain, of, line)
	}
}
