package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// balance is a chain that spreads flows over endpoints.
type balance struct {
	chain  string
	line   int
	shares []share
	// left is the share of the flows that reaches the end of the chain.
	left float64
	// unequal is set if the rules do not give each endpoint the same share.
	unequal bool
	sticky  map[string]bool // the chains of endpoints whose clients have a rule
	foreign bool            // it has a rule that kube-proxy does not write, whatever that does
	hidden  bool            // when a rule to an endpoint matches is not known
}

// share is one rule of the chain.
type share struct {
	chain string // KUBE-SEP-...; empty in mode nftables without session affinity
	part  float64
	line  int
	rule  *rule // nil in mode nftables
}

// endpoint is the content of a KUBE-SEP chain.
type endpoint struct {
	present  bool // the file has the chain
	line     int
	addrPort netip.AddrPort // of the DNAT; zero: there is none
	dnatLine int
	dnat     *rule // valid iff addrPort is
	// unread: there is a DNAT, but the print lost where to ("[unsupported revision]").
	unread   bool
	hairpin  netip.Addr // the source whose packets are masqueraded; zero: none
	hairLine int
}

// follow reads the chains of a service.
func (r *reader) follow(s *Service) {
	if s.suffix == "" {
		return
	}
	// Chains that the service does not use are not its own: their problems are reported for
	// themselves.
	var pending unique[string]
	for _, kind := range []string{firewallPrefix, externalPrefix, xlbPrefix, servicePrefix, localPrefix} {
		if chain := kind + s.suffix; r.node.chains[chain] == s {
			pending.add(chain)
		}
	}
	for i := 0; i < len(pending.values); i++ {
		chain := pending.values[i]
		r.checkName(s, chain)
		for _, rule := range r.nat.rules[chain] {
			if _, _, ok := serviceChain(rule.jump); ok {
				if r.enter(s, rule.jump); r.node.chains[rule.jump] == s {
					pending.add(rule.jump)
				}
			}
		}
		switch kind, _, _ := serviceChain(chain); kind {
		case servicePrefix:
			r.masqueradeRules(s, chain)
			r.balance(s, decision.Cluster, chain)
		case localPrefix:
			r.masqueradeRules(s, chain)
			r.balance(s, decision.Local, chain)
		case xlbPrefix:
			s.ExternalPolicy = decision.Local
			r.external(s, chain)
			r.balance(s, decision.Local, chain)
		case externalPrefix:
			r.external(s, chain)
		case firewallPrefix:
			r.firewall(s, chain)
		}
	}
	byText := make(map[string]string, len(s.Endpoints))
	for _, e := range s.Endpoints {
		byText[e.Chain] = e.AddrPort.String()
	}
	slices.SortStableFunc(s.Endpoints, func(a, b Endpoint) int { return cmp.Compare(byText[a.Chain], byText[b.Chain]) })
}

// external reads KUBE-EXT or the head of KUBE-XLB.
func (r *reader) external(s *Service, chain string) {
	masquerades := false
	for _, rule := range r.nat.rules[chain] {
		kind, _, _ := serviceChain(rule.jump)
		switch {
		case rule.jump == kubechains.MarkMasq && rule.fromNode, kind == localPrefix:
			s.ExternalPolicy = decision.Local
		case rule.jump == markDrop:
			s.Dropped = true
			r.markExplained(s, rule)
		case kind == servicePrefix && (rule.source.IsValid() || rule.in != nil) && rule.plain():
			r.detect(rule.Line, rule.detection())
		}
		if rule.jump == kubechains.MarkMasq && (rule.unconditional() || rule.fromNode) || kind != "" {
			r.markExplained(s, rule)
		}
		masquerades = masquerades || rule.jump == kubechains.MarkMasq
	}
	// KUBE-XLB of 1.5 to 1.14 masqueraded nothing, and had no need to: its endpoints are on this node.
	if len(r.nat.rules[chain]) > 0 && !masquerades && r.nat.isComplete(chain) && strings.HasPrefix(chain, externalPrefix) {
		r.problem(fmt.Sprintf("%s of %s masquerades nothing: replies from endpoints on other nodes do not come back here", chain, s.Title()), r.nat.declared[chain])
	}
}

// firewall reads KUBE-FW.
func (r *reader) firewall(s *Service, chain string) {
	open := false
	ranges := &r.index(s).sourceRanges
	defer func() { s.SourceRanges = ranges.values }()
	for _, rule := range r.nat.rules[chain] {
		_, _, through := serviceChain(rule.jump)
		switch {
		case through && rule.source.IsValid() && !rule.source.not && rule.plain():
			ranges.add(rule.source.Prefix)
		case through && rule.unconditional():
			open = true
		case rule.jump == kubechains.MarkMasq, rule.jump == markDrop, rule.Target == nil:
		default:
			continue
		}
		r.markExplained(s, rule)
	}
	if open {
		*ranges = unique[netip.Prefix]{}
		return
	}
	// The addresses themselves come last, all of them or none.
	if n := len(ranges.values) - len(s.LoadBalancerIPs); n > 0 && len(s.LoadBalancerIPs) > 0 {
		s.NodeAllowed = slices.EqualFunc(ranges.values[n:], s.LoadBalancerIPs, func(p netip.Prefix, ip netip.Addr) bool {
			return p == netip.PrefixFrom(ip, ip.BitLen())
		})
		if s.NodeAllowed {
			ranges.truncate(n)
		}
	}
}

// balance reads the rules that choose an endpoint.
func (r *reader) balance(s *Service, policy decision.Policy, chain string) {
	if !r.nat.has(chain) {
		return
	}
	b := &balance{chain: chain, line: r.nat.declared[chain], left: 1, sticky: make(map[string]bool)}
	s.balanced[policy] = b
	for _, rule := range r.nat.rules[chain] {
		if rule.jump == markDrop && policy == decision.Local {
			s.Dropped = true
			r.markExplained(s, rule)
		}
		kind, _, _ := serviceChain(rule.jump)
		toEndpoint := strings.HasPrefix(rule.jump, endpointPrefix)
		if toEndpoint && rule.selects() && !rule.unread || !toEndpoint && kind == "" && rule.jump != markDrop && rule.jump != kubechains.MarkMasq && rule.Target != nil {
			b.foreign = true
			switch {
			case rule.hides: // a note says so
			case pasted.IsMasked(rule.String()):
				r.gap(fmt.Sprintf("a part of a rule of %s is masked: %s", chain, rule), rule.Line)
			default:
				r.problem(fmt.Sprintf("%s has a rule that kube-proxy does not write: %s", chain, rule), rule.Line)
			}
		}
		if !toEndpoint {
			continue
		}
		r.enter(s, rule.jump)
		r.markExplained(s, rule)
		if rule.recent != nil {
			s.AffinitySeconds = max(s.AffinitySeconds, rule.recent.Seconds)
			b.sticky[rule.jump] = true
			continue
		}
		part := b.left * probability(rule.statistic)
		b.left -= part
		b.shares = append(b.shares, share{rule.jump, part, rule.Line, rule})
		b.hidden = b.hidden || rule.unread
		r.endpointOf(s, rule).add(policy, part)
	}
	if b.hidden {
		for _, of := range b.shares {
			r.endpointOf(s, of.rule).ShareUnknown = true
		}
		return
	}
	b.unequal = unequal(b.shares)
}

// add adds to the share of the flows under a policy.
func (e *Endpoint) add(p decision.Policy, part float64) {
	if p == decision.Cluster {
		e.Share += part
	} else {
		e.LocalShare += part
	}
}

// probability is that of a rule to match a packet that reaches it.
func probability(s *iptables.Statistic) float64 {
	p := 1.0
	switch {
	case s == nil:
		return 1
	case s.Nth:
		p = 1 / float64(s.Every)
	default:
		p = float64(s.Probability) / iptables.ProbabilityOne
	}
	if s.Negated {
		return 1 - p
	}
	return p
}

// rounding is how far a probability may be from 1/n: old versions of kube-proxy wrote five digits.
const rounding = 1e-5

// unequal reports whether the rules give some endpoints more than others. Each rule is checked by
// itself, because rounding errors add up along the chain.
func unequal(shares []share) bool {
	for i, s := range shares {
		want := 1 / float64(len(shares)-i)
		if p := probability(s.rule.statistic); p < want-rounding || p > want+rounding {
			return true
		}
	}
	return false
}

// endpointOf returns the service's endpoint that the rule jumps to, and makes it if needed.
func (r *reader) endpointOf(s *Service, rule *rule) *Endpoint {
	index := r.index(s)
	if i, known := index.endpoints[rule.jump]; known {
		return &s.Endpoints[i]
	}
	index.endpoints[rule.jump] = len(s.Endpoints)
	e := Endpoint{Chain: rule.jump}
	read := r.endpoint(s, rule.jump)
	named, _ := arrow(rule.comment)
	switch {
	case read.present && !read.unread:
		e.AddrPort = read.addrPort
		if named.IsValid() && read.addrPort.IsValid() && named != read.addrPort {
			r.problem(fmt.Sprintf("the comment of %s names %s, but %s translates to %s", s.Title(), named, rule.jump, read.addrPort), rule.Line, read.dnatLine)
		}
	default:
		e.AddrPort = named
	}
	s.Endpoints = append(s.Endpoints, e)
	return &s.Endpoints[len(s.Endpoints)-1]
}

// arrow reads the endpoint from "default/web -> 10.244.1.2:80".
func arrow(comment string) (netip.AddrPort, bool) {
	_, text, ok := strings.Cut(comment, " -> ")
	if !ok {
		return netip.AddrPort{}, false
	}
	a, err := netip.ParseAddrPort(strings.TrimSpace(text))
	return a, err == nil
}

// endpoint reads a KUBE-SEP chain.
func (r *reader) endpoint(s *Service, chain string) *endpoint {
	if e := r.endpoints[chain]; e != nil {
		return e
	}
	e := &endpoint{present: r.nat.has(chain), line: r.nat.declared[chain]}
	r.endpoints[chain] = e
	for _, rule := range r.nat.rules[chain] {
		switch t := rule.Target.(type) {
		case iptables.Jump:
			if a, ok := rule.source.host(); ok && rule.jump == kubechains.MarkMasq && rule.plain() {
				e.hairpin, e.hairLine = a, rule.Line
				r.markExplained(s, rule)
			}
		case iptables.SetMark: // 1.1
			if a, ok := rule.source.host(); ok && rule.plain() && t.Mark.Value != 0 {
				e.hairpin, e.hairLine = a, rule.Line
				r.marks = append(r.marks, t)
				r.markExplained(s, rule)
			}
		case iptables.DNAT:
			if t.To.First.IsValid() && t.To.First == t.To.Last && t.To.FirstPort != 0 && t.To.FirstPort == t.To.LastPort && !e.addrPort.IsValid() {
				e.addrPort, e.dnatLine, e.dnat = netip.AddrPortFrom(t.To.First, t.To.FirstPort), rule.Line, rule
				r.markExplained(s, rule)
			}
		case iptables.UnknownTarget:
			if t.Target == iptables.NameOf(iptables.DNAT{}) {
				e.unread = true
				r.markExplained(s, rule)
			}
		}
	}
	if e.present && !e.unread && r.nat.isComplete(chain) {
		r.checkEndpoint(s, chain, e)
	}
	return e
}
