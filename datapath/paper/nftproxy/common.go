package nftproxy

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// The base chains: "${type}-${hook}".
const (
	filterPreroutingPreDNAT = "filter-prerouting-pre-dnat"
	filterOutputPreDNAT     = "filter-output-pre-dnat"
	filterInput             = "filter-input"
	filterForward           = "filter-forward"
	filterOutput            = "filter-output"
	natPrerouting           = "nat-prerouting"
	natOutput               = "nat-output"
	natPostrouting          = "nat-postrouting"
)

// baseChains are those that the kernel's hooks begin with (nftablesBaseChains).
var baseChains = []struct {
	name, kind, hook string
	priority         int32
}{
	{filterPreroutingPreDNAT, "filter", "prerouting", -110},
	{filterOutputPreDNAT, "filter", "output", -110},
	{filterInput, "filter", "input", 0},
	{filterForward, "filter", "forward", 0},
	{filterOutput, "filter", "output", 0},
	{natPrerouting, "nat", "prerouting", -100},
	{natOutput, "nat", "output", -100},
	{natPostrouting, "nat", "postrouting", 100},
}

// jumpChains are the chains that base chains jump to, for new connections or for all packets (nftablesJumpChains).
var jumpChains = []struct {
	to, from string
	isNew    bool
}{
	{NodePortEndpoints, filterInput, true},
	{ServiceEndpoints, filterInput, true},
	{ServiceEndpoints, filterForward, true},
	{ServiceEndpoints, filterOutput, true},
	{FirewallCheck, filterPreroutingPreDNAT, true},
	{FirewallCheck, filterOutputPreDNAT, true},
	{Services, natOutput, false},
	{Services, natPrerouting, false},
	{Masquerading, natPostrouting, false},
	{ClusterIPsCheck, filterForward, true},
	{ClusterIPsCheck, filterOutput, true},
}

// sets adds the sets and maps that do not depend on services.
func (w *writer) sets() {
	addr := w.addr()
	w.set(HairpinConnections, "service hairpin connections", "", addr, addr, "inet_proto", "inet_service")
	w.set(ClusterIPs, "Active ClusterIPs", "", addr)
	if !w.t.AllNodePortAddresses(w.family) {
		w.set(NodePortIPs, "IPs that accept NodePort traffic", "", addr)
	}
	w.set(NoEndpointServices, "vmap to drop or reject packets to services with no endpoints", "verdict", addr, "inet_proto", "inet_service")
	w.set(NoEndpointNodePorts, "vmap to drop or reject packets to service nodeports with no endpoints", "verdict", "inet_proto", "inet_service")
	w.set(FirewallIPs, "destinations that are subject to LoadBalancerSourceRanges", "verdict", addr, "inet_proto", "inet_service")
	w.set(ServiceIPs, "ClusterIP, ExternalIP and LoadBalancer IP traffic", "verdict", addr, "inet_proto", "inet_service")
	w.set(ServiceNodePorts, "NodePort traffic", "verdict", "inet_proto", "inet_service")
}

// common writes what does not depend on services (setupNFTables).
func (w *writer) common(o Options) {
	w.sets()
	byName := make(map[string]*nftables.Chain)
	for _, b := range baseChains {
		c := w.chain(b.name)
		c.Base = &nftables.Base{Type: b.kind, Hook: b.hook, Priority: b.priority, Policy: "accept"}
		byName[b.name] = c
	}
	for _, j := range jumpChains {
		if byName[j.to] == nil {
			byName[j.to] = w.chain(j.to)
		}
		if j.isNew {
			rule(byName[j.from], stateNew, jump(j.to))
		} else {
			rule(byName[j.from], jump(j.to))
		}
	}
	w.masquerading(byName[Masquerading])
	w.clusterIPsCheck(byName[ClusterIPsCheck], o.ServiceCIDRs)
	reject := w.chain(RejectChain)
	reject.Comment = "helper for @no-endpoint-services / @no-endpoint-nodeports"
	rule(reject, nftables.Reject{})

	destination := nftables.Concat{w.daddr(), proto, dport}
	rule(byName[ServiceEndpoints], nftables.VerdictMap{Key: destination, Data: nftables.SetRef(NoEndpointServices)})
	rule(byName[FirewallCheck], nftables.VerdictMap{Key: destination, Data: nftables.SetRef(FirewallIPs)})
	rule(byName[NodePortEndpoints], w.onNodePorts(false, NoEndpointNodePorts)...)
	services := byName[Services]
	switch d := &w.node.Detector; {
	case w.node.MasqueradeAll:
		rule(services, is(w.daddr(), nftables.SetRef(ClusterIPs)), w.setMark()).Comment = "masquerade all clusterIP traffic"
	case d.Implemented(w.family):
		rule(services, is(w.daddr(), nftables.SetRef(ClusterIPs)), w.pod(true), w.setMark()).Comment = "masquerade clusterIP traffic from outside cluster"
	}
	rule(services, nftables.VerdictMap{Key: destination, Data: nftables.SetRef(ServiceIPs)})
	rule(services, w.onNodePorts(true, ServiceNodePorts)...)
	if !w.t.AllNodePortAddresses(w.family) {
		for _, a := range w.t.NodePortAddresses() {
			if decision.FamilyOf(a) == w.family && !a.IsLoopback() {
				w.put(NodePortIPs, single(a), nil, "", 0)
			}
		}
	}
}

// onNodePorts looks packets to the node's addresses with node ports up in a map. If those are all, local asks the routing table for
// them.
func (w *writer) onNodePorts(local bool, in string) (s []nftables.Statement) {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	if w.family == decision.IPv6 {
		loopback = netip.MustParsePrefix("::1/128")
	}
	switch {
	case !w.t.AllNodePortAddresses(w.family):
		s = append(s, is(w.daddr(), nftables.SetRef(NodePortIPs)))
	case local:
		s = append(s, toNode, not(w.daddr(), network(loopback)))
	default:
		s = append(s, not(w.daddr(), network(loopback)))
	}
	return append(s, nftables.VerdictMap{Key: nftables.Concat{proto, dport}, Data: nftables.SetRef(in)})
}

// masquerading writes the chain that translates the source: of marked packets, and of those of an endpoint to itself.
func (w *writer) masquerading(c *nftables.Chain) {
	rule(c, w.marked(), nftables.Mangle{Key: mark, Value: nftables.Binary{Op: "^", Left: mark, Right: w.bit()}}, masquerade)
	if w.node.NoHairpinMasquerade {
		return
	}
	translated := nftables.Match{Op: "in", Left: nftables.CT{Key: "status"}, Right: word("dnat")}
	rule(c, translated, is(nftables.Concat{w.saddr(), w.daddr(), proto, dport}, nftables.SetRef(HairpinConnections)), masquerade)
}

// clusterIPsCheck writes the chain for packets to other ports of cluster IPs, and to addresses without a service.
func (w *writer) clusterIPsCheck(c *nftables.Chain, cidrs []netip.Prefix) {
	rule(c, is(w.daddr(), nftables.SetRef(ClusterIPs)), nftables.Reject{}).Comment = "Reject traffic to invalid ports of ClusterIPs"
	var own []netip.Prefix
	for _, p := range cidrs {
		if decision.FamilyOf(p.Addr()) == w.family {
			own = append(own, p)
		}
	}
	if len(own) > 0 {
		rule(c, is(w.daddr(), networks(own)), drop).Comment = "Drop traffic to unallocated ClusterIPs"
	}
}
