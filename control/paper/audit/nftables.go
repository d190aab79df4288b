package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
	"github.com/nfqproxy/nfqproxy/datapath/pasted"
)

// ReadNFTables reads the services from the tables of kube-proxy's nftables mode, of versions 1.29 to 1.37: a Node for each
// family that has one, IPv4 first; without such a table, a Node of IPv4 with a gap. It never fails: rules that it does not understand are among the problems or
// gaps.
//
// kube-proxy's maps do not tell load balancer IPs from external IPs, unless they are restricted to source ranges: then they are among the LoadBalancerIPs.
func ReadNFTables(ruleset *nftables.Ruleset) []*Node {
	var nodes []*Node
	for _, f := range []nftables.Family{nftables.FamilyIP, nftables.FamilyIP6} {
		for _, t := range ruleset.Tables {
			if t.Family == f && proxymode.KubeProxyTable(t) {
				nodes = append(nodes, readNFTable(t))
			}
		}
	}
	if len(nodes) == 0 {
		return []*Node{withoutNFTable(ruleset)}
	}
	return nodes
}

// withoutNFTable is the content of a ruleset without kube-proxy's tables.
func withoutNFTable(ruleset *nftables.Ruleset) *Node {
	r := newGathered(decision.IPv4, string(nftproxy.ServiceChain))
	r.node.Proxy.LocalhostNodePorts = true // as where no rule shows it
	for _, t := range ruleset.Tables {
		for _, c := range t.Chains {
			if mode, _ := proxymode.OfChain(t.Name, c.Name); mode == proxymode.ModeIPTables {
				r.gap(fmt.Sprintf("table %s %s has chains of kube-proxy in iptables mode, which nft does not print in full: give the output of iptables-save, and for IPv6 of ip6tables-save", t.Family, t.Name), c.Line)
				return r.node
			}
		}
	}
	if t := proxymode.DaemonTable(ruleset); t != nil {
		r.gap(fmt.Sprintf("table %s %s is nfqproxy's: its daemon selects the endpoints, and rules do not show the Services", t.Family, t.Name), t.Line)
		return r.node
	}
	r.gap("the ruleset has no table ip kube-proxy or ip6 kube-proxy: kube-proxy did not write rules in nftables mode on this node, or the file does not have them")
	return r.node
}

// nftReader is the state of readNFTable.
type nftReader struct {
	gathered
	table  *nftables.Table
	chains map[string]*nftChain
	sets   map[string]*nftables.Set
	// claims are the services that the maps lead to, and to which chains.
	claims map[claim]nftClaim
	// refused are the addresses at which no-endpoint-services rejects packets, by service.
	refused map[*Service][]refusedAt
	// leads are the lines of the rules and elements that lead to each chain; masqueraded those that masquerade all flows to
	// ClusterIPs.
	leads       map[string][]int
	masqueraded []int
	// endpoints are the addresses that the chains translate to, and single is set if one is the only one without a map.
	endpoints map[hairpin]bool
	single    bool
	mod1      bool
}

// nftChain is a chain and its rules.
type nftChain struct {
	*nftables.Chain
	rules []*nftRule
}

// nftClaim is what an element of service-ips or service-nodeports leads to.
type nftClaim struct {
	service *Service
	kind    nftproxy.Kind
	line    int
}

type refusedAt struct {
	addr netip.Addr
	line int
}

// hairpin is an endpoint with its protocol, as hairpin-connections has it.
type hairpin struct {
	to       netip.AddrPort
	protocol decision.Protocol
}

func readNFTable(t *nftables.Table) *Node {
	r := newNFTReader(t)
	r.node.Mode, r.node.Proof = proxymode.OfRuleset(&nftables.Ruleset{Tables: []*nftables.Table{t}})
	if line := r.masked(); line > 0 {
		r.gap(fmt.Sprintf("addresses in table %s %s are masked: what it does for Services is not known", t.Family, t.Name), line)
		return r.node
	}
	r.firewallIPs()
	r.serviceIPs()
	r.serviceNodePorts()
	r.noEndpoints(nftproxy.NoEndpointServices)
	r.noEndpoints(nftproxy.NoEndpointNodePorts)
	r.masqueradeClusterIPs()
	for i := 0; i < len(r.node.Services); i++ {
		r.follow(r.node.Services[i])
	}
	r.settleRefused()
	r.proxy()
	r.hairpins()
	r.settleLocality()
	r.settleLoadBalancerIPs()
	r.check()
	slices.SortStableFunc(r.node.Services, compareServices)
	return r.node
}

// mask is what people write in place of an address, or of a part of it.
var mask = regexp.MustCompile(`(?i)<\w|\*\*|\b(x{1,4}\.)+x|\.x{1,4}\b|x{6}|redacted`)

// masked is the line of an element or of a chain whose address somebody masked; 0: there is none.
func (r *nftReader) masked() int {
	for _, s := range r.table.Sets {
		for i := range s.Elements {
			if mask.MatchString(nftables.Text(s.Elements[i].Key)) {
				return r.lineOf(s, i)
			}
		}
	}
	for _, c := range r.table.Chains {
		if _, endpoint, ok := strings.Cut(c.Name, "__"); ok && mask.MatchString(endpoint) {
			return c.Line
		}
	}
	return 0
}

func newNFTReader(t *nftables.Table) *nftReader {
	family := decision.IPv4
	if t.Family == nftables.FamilyIP6 {
		family = decision.IPv6
	}
	r := &nftReader{
		gathered: newGathered(family, string(nftproxy.ServiceChain)), table: t,
		chains: make(map[string]*nftChain, len(t.Chains)), sets: make(map[string]*nftables.Set, len(t.Sets)),
		claims: make(map[claim]nftClaim), refused: make(map[*Service][]refusedAt), leads: make(map[string][]int), endpoints: make(map[hairpin]bool),
	}
	for _, s := range t.Sets {
		r.sets[s.Name] = s
	}
	for _, c := range t.Chains {
		chain := &nftChain{Chain: c}
		for _, rule := range c.Rules {
			split := newNFTRule(rule)
			chain.rules = append(chain.rules, split)
			r.lead(split.jump, split.Line)
			if split.draw != nil {
				for _, o := range split.draw.choices {
					r.lead(o.chain, split.Line)
				}
			}
		}
		r.chains[c.Name] = chain
	}
	for _, s := range t.Sets {
		for i := range s.Elements {
			if to, ok := leadsTo(s.Elements[i].Value); ok {
				r.lead(to, r.lineOf(s, i))
			}
		}
	}
	return r
}

func (r *nftReader) lead(to string, line int) {
	if to != "" {
		r.leads[to] = append(r.leads[to], line)
	}
}

// lineOf is the line of an element of a set, or that of the set.
func (r *nftReader) lineOf(s *nftables.Set, i int) int { return cmp.Or(s.Elements[i].Line, s.Line) }

// elements calls one with each element of a map of destinations: its key, and the chain that it leads to if it leads to one.
func (r *nftReader) elements(name string, one func(at claim, e *nftables.Element, to string, line int)) {
	s := r.sets[name]
	if s == nil {
		return
	}
	for i := range s.Elements {
		e := &s.Elements[i]
		at, ok := destinationOf(e.Key)
		if !ok && pasted.IsMasked(fmt.Sprint(e.Key)) {
			r.gap(fmt.Sprintf("an address or port of a service is masked in %s", name), r.lineOf(s, i))
			continue
		}
		if !ok || at.addr.IsValid() && decision.FamilyOf(at.addr) != r.node.Family {
			r.problem(fmt.Sprintf("%s has an element that kube-proxy does not write: its key is not the destination of a service", name), r.lineOf(s, i))
			continue
		}
		to, _ := leadsTo(e.Value)
		one(at, e, to, r.lineOf(s, i))
	}
}

// owner returns the service whose chain this is; nil: it is no chain of a service.
func (r *nftReader) owner(chain string, p decision.Protocol, line int) (*Service, nftproxy.Kind) {
	name, ok := nftproxy.ParseName(chain)
	switch {
	case name.Kind == "" || name.Kind == nftproxy.EndpointChain || name.Kind == nftproxy.AffinitySet:
		return nil, ""
	case ok && name.Protocol != p:
		r.problem(fmt.Sprintf("packets of %s go to %s, which is for %s", p, chain, name.Protocol), line)
		p = name.Protocol
	}
	text := ""
	if ok {
		text = name.Service.String()
	}
	s := r.service(text, name.Base, p)
	r.enter(s, chain)
	return s, name.Kind
}

// serviceIPs reads the map of the addresses of services: cluster IPs lead to the chain of the internal policy, all others to
// external-... (syncProxyRules).
func (r *nftReader) serviceIPs() {
	r.elements(nftproxy.ServiceIPs, func(at claim, _ *nftables.Element, to string, line int) {
		s, kind := r.owner(to, at.protocol, line)
		if s == nil || kind == nftproxy.FirewallChain {
			r.problem(fmt.Sprintf("%s does not lead %s to the chain of a service", nftproxy.ServiceIPs, at), line)
			return
		}
		r.claims[at] = nftClaim{s, kind, line}
		switch kind {
		case nftproxy.ServiceChain, nftproxy.LocalChain:
			r.clusterIP(s, at.addr, line)
			if kind == nftproxy.LocalChain {
				s.InternalPolicy = decision.Local
			}
		default:
			r.external(s, at.addr)
		}
		r.port(s, at.port, line)
	})
}

// external records an address for flows from outside, which is a load balancer's if firewall-ips has it.
func (r *nftReader) external(s *Service, a netip.Addr) {
	if !r.index(s).loadBalancerIPs.seen[a] {
		r.externalIP(s, a)
	}
}

// serviceNodePorts reads the map of node ports.
func (r *nftReader) serviceNodePorts() {
	r.elements(nftproxy.ServiceNodePorts, func(at claim, _ *nftables.Element, to string, line int) {
		s, kind := r.owner(to, at.protocol, line)
		if s == nil || kind != nftproxy.ExternalChain {
			r.problem(fmt.Sprintf("%s does not lead %s to the chain of a service for flows from outside", nftproxy.ServiceNodePorts, at), line)
			return
		}
		r.claims[at] = nftClaim{s, kind, line}
		r.nodePort(s, at.port, line)
	})
}

// firewallIPs reads the load balancer IPs with source ranges: since 1.30 a map to chains with the ranges, in 1.29 a set of the
// addresses and a set of what they allow.
func (r *nftReader) firewallIPs() {
	r.elements(nftproxy.FirewallIPs, func(at claim, _ *nftables.Element, to string, line int) {
		s, kind := r.owner(to, at.protocol, line)
		if s == nil || kind != nftproxy.FirewallChain {
			r.problem(fmt.Sprintf("%s does not lead %s to a chain with source ranges", nftproxy.FirewallIPs, at), line)
			return
		}
		r.loadBalancerIP(s, at.addr)
		r.port(s, at.port, line)
	})
	restricted := make(map[claim]*Service)
	r.elements(nftproxy.FirewallSet, func(at claim, e *nftables.Element, _ string, line int) {
		s := r.service(e.Comment, "", at.protocol)
		restricted[at] = s
		r.loadBalancerIP(s, at.addr)
		r.port(s, at.port, line)
	})
	allow := r.sets[nftproxy.FirewallAllow]
	if allow == nil {
		return
	}
	for i := range allow.Elements {
		e := &allow.Elements[i]
		key, _ := e.Key.(nftables.Concat)
		if len(key) != 4 {
			continue
		}
		at, ok := destinationOf(key[:3])
		sources, known := prefixesOf(key[3])
		s := restricted[at]
		switch {
		case !ok || !known || s == nil:
			continue
		case e.Comment == "": // the address itself, for the node
			s.NodeAllowed = true
			continue
		}
		ranges := &r.index(s).sourceRanges
		ranges.add(sources...)
		s.SourceRanges = ranges.values
	}
}

// commentMax is how much of a comment kube-proxy writes since 1.37 (truncateNFTablesComment); a longer one was an error.
const commentMax = 128

// noEndpoints reads a map of the destinations without endpoints: packets are rejected if there is none at all, and dropped if
// the policy is Local and there is none here.
func (r *nftReader) noEndpoints(name string) {
	r.elements(name, func(at claim, e *nftables.Element, to string, line int) {
		verdict, _ := e.Value.(nftables.Verdict)
		claimed, served := r.claims[at]
		s := claimed.service
		if _, named := parseName(e.Comment); named || s == nil {
			s = r.service(e.Comment, "", at.protocol)
		}
		if len(e.Comment) >= commentMax {
			r.gap(fmt.Sprintf("the name of a service may be truncated: %s", e.Comment), line)
		}
		switch {
		case to == nftproxy.RejectChain:
			s.Refused = true
		case verdict.Kind == nftables.Drop && served && claimed.kind == nftproxy.ExternalChain:
			s.Dropped, s.ExternalPolicy = true, decision.Local // the map of services has short cuts for pods and the node
		case verdict.Kind == nftables.Drop:
			s.Dropped, s.InternalPolicy = true, decision.Local
		default:
			r.problem(fmt.Sprintf("%s neither rejects nor drops packets to %s", name, at), line)
			return
		}
		switch {
		case !at.addr.IsValid():
			r.nodePort(s, at.port, line)
			return
		case s.Refused:
			r.refused[s] = append(r.refused[s], refusedAt{at.addr, line})
		case !served:
			r.clusterIP(s, at.addr, line)
		}
		r.port(s, at.port, line)
	})
}

// settleRefused finds the cluster IPs of services without endpoints: cluster-ips has them, since 1.30.
func (r *nftReader) settleRefused() {
	clusterIPs, listed := r.addresses(nftproxy.ClusterIPs)
	for _, s := range r.node.Services {
		refused := r.refused[s]
		if !listed && len(refused) == 1 && !s.ClusterIP.IsValid() {
			r.clusterIP(s, refused[0].addr, refused[0].line)
			continue
		}
		for _, at := range refused {
			if clusterIPs[at.addr] > 0 {
				r.clusterIP(s, at.addr, at.line)
			} else {
				r.external(s, at.addr)
			}
		}
		if !listed && len(refused) > 1 && !s.ClusterIP.IsValid() {
			r.gap(fmt.Sprintf("which address of %s is its cluster IP is not known", s.Title()), refused[0].line)
		}
	}
}

// addresses are the elements of a set of addresses, with their lines, and whether the file has the set.
func (r *nftReader) addresses(name string) (map[netip.Addr]int, bool) {
	s := r.sets[name]
	if s == nil {
		return nil, false
	}
	all := make(map[netip.Addr]int, len(s.Elements))
	for i := range s.Elements {
		if a, ok := addrOf(s.Elements[i].Key); ok {
			all[a] = max(r.lineOf(s, i), 1)
		}
	}
	return all, true
}

// String is how a destination is named in messages.
func (c claim) String() string {
	if !c.addr.IsValid() {
		return fmt.Sprintf("node port %d (%s)", c.port, c.protocol)
	}
	return fmt.Sprintf("%s port %d (%s)", c.addr, c.port, c.protocol)
}
