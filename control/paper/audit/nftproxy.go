package audit

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// proxy reads what is not about a service.
func (r *nftReader) proxy() {
	p := &r.node.Proxy
	p.mode = proxymode.ModeNFTables
	p.Version = r.version()
	p.balances = r.balances()
	// Node ports are never open on loopback addresses, apart from 1.37's own proxy for them, of which there is no rule. For
	// IPv6 no mode has them.
	p.LocalhostNodePorts = r.node.Family == decision.IPv6
	p.MasqueradeAll = len(r.masqueraded) > 0
	r.settleDetection()
	r.mark()
	if open, restricted := r.addresses(nftproxy.NodePortIPs); restricted {
		p.NodePortAddresses = slices.SortedFunc(maps.Keys(open), netip.Addr.Compare)
	}
	if chain := r.chains[nftproxy.ClusterIPsCheck]; chain != nil {
		for _, rule := range chain.rules {
			if rule.verdict == nftables.Drop && !rule.other {
				p.ServiceCIDRs = append(p.ServiceCIDRs, r.destinations(rule)...)
			}
		}
	}
}

// destinations are the prefixes of the destination that a rule matches.
func (r *nftReader) destinations(rule *nftRule) []netip.Prefix {
	for _, s := range rule.Statements {
		m, ok := s.(nftables.Match)
		if field, isField := m.Left.(nftables.Payload); ok && isField && field.Field == "daddr" {
			all, _ := prefixesOf(m.Right)
			return all
		}
	}
	return nil
}

// masqueradeClusterIPs reads the rule of chain services that masquerades flows to cluster IPs, which it has since 1.36.
func (r *nftReader) masqueradeClusterIPs() {
	chain := r.chains[nftproxy.Services]
	if chain == nil {
		return
	}
	for _, rule := range chain.rules {
		if rule.toSet == nftproxy.ClusterIPs && rule.masquerade(nftproxy.MarkMasq) && !rule.other {
			r.masquerades(rule)
		}
	}
}

// masquerades reads a rule that masquerades flows to cluster IPs: all, or those that are not of pods.
func (r *nftReader) masquerades(rule *nftRule) {
	if how, outside, detects := rule.detects(); !detects {
		r.masqueraded = append(r.masqueraded, rule.Line)
	} else if outside {
		r.detect(rule.Line, how)
	}
}

// mark reads the bit that has packets masqueraded, and checks that all rules agree.
func (r *nftReader) mark() {
	p := &r.node.Proxy
	chain := r.chains[nftproxy.Masquerading]
	if chain == nil {
		return
	}
	masquerades := false
	for _, rule := range chain.rules {
		masquerades = masquerades || rule.masquerades && rule.hairpin == ""
		if rule.marked != 0 {
			p.MasqueradeMark = rule.marked
		}
	}
	if !masquerades && !r.bare() {
		r.problem("masquerading has no rule that masquerades marked packets: flows that should be masqueraded get no replies", chain.Line)
	}
	for _, c := range r.table.Chains {
		for _, rule := range r.chains[c.Name].rules {
			if p.MasqueradeMark != 0 && rule.sets != 0 && rule.sets != p.MasqueradeMark {
				r.problem(fmt.Sprintf("masquerading matches the mark %#x, but %s sets %#x", p.MasqueradeMark, c.Name, rule.sets), rule.Line)
			}
		}
	}
}

// hairpins reads hairpin-connections, which has the endpoints on this node, since 1.36.
func (r *nftReader) hairpins() {
	s := r.sets[nftproxy.HairpinConnections]
	if s == nil {
		return
	}
	complete := r.isComplete() && !r.lacksChains()
	here := make(map[hairpin]bool, len(s.Elements))
	for i := range s.Elements {
		at, ok := hairpinOf(s.Elements[i].Key)
		here[at] = ok
		if ok && !r.endpoints[at] && complete {
			r.problem(fmt.Sprintf("%s has %s (%s), which is not an endpoint of any service", s.Name, at.to, at.protocol), r.lineOf(s, i))
		}
	}
	for _, s := range r.node.Services {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			switch {
			case !e.AddrPort.IsValid():
			case here[hairpin{e.AddrPort, s.Protocol}]:
				e.Locality = OnThisNode
			default:
				e.Locality = OnAnotherNode
			}
		}
	}
}

// oneVersion reports whether two tables may be of one version of kube-proxy: since 1.36, only services with a single
// endpoint show which one it is.
func oneVersion(a, b *Proxy) bool {
	return a.mode == proxymode.ModeNFTables && b.mode == proxymode.ModeNFTables && (a.Version == since136 || b.Version == since136) && min(a.Version, b.Version) >= "1.36"
}

const since136 = "1.36 or later"

// version is that of kube-proxy according to its chains and sets (pkg/proxy/nftables/proxier.go of each version): 1.30 has
// cluster-ips, 1.33 other base chains, 1.36 hairpin-connections in place of a chain that marks, and since 1.37 there is no map for a
// single endpoint.
func (r *nftReader) version() string {
	switch {
	case r.sets[nftproxy.FirewallAllow] != nil, r.chains[nftproxy.EndpointsCheck] != nil:
		return "1.29"
	case r.chains["filter-prerouting"] != nil:
		return "1.30 to 1.32"
	case r.chains[nftproxy.MarkMasq] != nil && r.chains["filter-prerouting-pre-dnat"] != nil:
		return "1.33 to 1.35"
	case r.sets[nftproxy.HairpinConnections] == nil:
		return ""
	case r.single && !r.mod1, r.sets["localhost-nodeport-reject-ports"] != nil:
		return "1.37 or later"
	case r.mod1:
		return "1.36"
	}
	return since136
}
