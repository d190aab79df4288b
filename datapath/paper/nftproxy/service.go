package nftproxy

import (
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// affinitySize is how many clients a set of session affinity has room for: nft's default for sets that rules fill.
const affinitySize = 65535

// service writes all that is for one service port, as kube-proxy's syncProxyRules does.
func (w *writer) service(s *decision.ServicePort) {
	base := Base(s.Name, s.Protocol)
	reachable := w.reachable(s)
	for _, e := range reachable {
		if e.Local {
			a := e.AddrPort.Addr()
			w.put(HairpinConnections, keyOf(s.Protocol, e.AddrPort.Port(), a, a), nil, "", 0)
		}
	}
	w.destinations(s, base)
	w.affinitySets(s, reachable)
	if s.AffinitySeconds > 0 {
		w.endpointChains(s, reachable)
	}
	cluster, local := string(ServiceChain)+base, string(LocalChain)+base
	for _, p := range []struct {
		chain  string
		policy decision.Policy
		uses   bool
	}{{cluster, decision.Cluster, s.UsesCluster()}, {local, decision.Local, s.UsesLocal()}} {
		if usable := s.UsableEndpoints(p.policy); len(usable) > 0 && p.uses {
			w.balance(s, w.chain(p.chain), usable)
		}
	}
	if s.HasEndpoints && s.External() {
		w.external(s, base)
	}
	if restricted(s) {
		w.firewall(s, w.chain(string(FirewallChain)+base))
	}
}

// reachable are the endpoints that either policy uses (CategorizeEndpoints).
func (w *writer) reachable(s *decision.ServicePort) (all []decision.Endpoint) {
	used := make([]bool, len(s.Endpoints))
	for _, policy := range s.Usable {
		for _, i := range policy {
			used[i] = true
		}
	}
	for i, e := range s.Endpoints {
		if used[i] {
			all = append(all, e)
		}
	}
	return all
}

// restricted reports whether flows to the load balancer IPs have to come from the source ranges. Unlike in iptables mode, that is
// also so without endpoints.
func restricted(s *decision.ServicePort) bool {
	return len(s.LoadBalancerIPs) > 0 && len(s.SourceRanges) > 0
}

// lacks reports whether flows under a policy have no endpoint.
func lacks(s *decision.ServicePort, p decision.Policy) bool {
	return !s.HasEndpoints || p == decision.Local && len(s.Usable[decision.Local]) == 0
}

// destinations adds the addresses and the node port to the maps.
func (w *writer) destinations(s *decision.ServicePort, base string) {
	internal := string(ServiceChain) + base
	if s.InternalPolicy == decision.Local {
		internal = string(LocalChain) + base
	}
	external := string(ExternalChain) + base
	w.put(ClusterIPs, single(s.ClusterIP), nil, "", 0)
	if lacks(s, s.InternalPolicy) {
		w.refuse(s, decision.EntryClusterIP, s.ClusterIP)
	} else {
		w.lead(ServiceIPs, s, decision.EntryClusterIP, s.ClusterIP, internal)
	}
	outside := func(e decision.Entry, a netip.Addr) {
		if s.HasEndpoints {
			to := ServiceIPs
			if !a.IsValid() {
				to = ServiceNodePorts
			}
			w.lead(to, s, e, a, external)
		}
		if lacks(s, s.ExternalPolicy) {
			w.refuse(s, e, a)
		}
	}
	for _, a := range s.ExternalIPs {
		outside(decision.EntryExternalIP, a)
	}
	for _, a := range s.LoadBalancerIPs {
		outside(decision.EntryLoadBalancer, a)
		if restricted(s) {
			w.lead(FirewallIPs, s, decision.EntryLoadBalancer, a, string(FirewallChain)+base)
		}
	}
	if s.NodePort != 0 {
		outside(decision.EntryNodePort, netip.Addr{})
	}
}

// destination is the key for an address of a service port, or for its node port.
func destination(s *decision.ServicePort, a netip.Addr) key {
	if !a.IsValid() {
		return keyOf(s.Protocol, s.NodePort)
	}
	return keyOf(s.Protocol, s.Port, a)
}

// lead adds an element that leads to a chain.
func (w *writer) lead(in string, s *decision.ServicePort, e decision.Entry, a netip.Addr, chain string) {
	w.put(in, destination(s, a), goTo(chain), "", w.t.Rank(s, e, a))
}

// refuse adds an element that rejects packets, or drops them if only this node has no endpoint.
func (w *writer) refuse(s *decision.ServicePort, e decision.Entry, a netip.Addr) {
	verdict := drop
	if !s.HasEndpoints {
		verdict = goTo(RejectChain)
	}
	in := NoEndpointServices
	if !a.IsValid() {
		in = NoEndpointNodePorts
	}
	w.put(in, destination(s, a), verdict, s.Name.String(), w.t.Rank(s, e, a))
}

// external writes the chain for flows from outside.
func (w *writer) external(s *decision.ServicePort, base string) {
	c := w.chain(string(ExternalChain) + base)
	cluster, to := string(ServiceChain)+base, string(ServiceChain)+base
	if s.ExternalPolicy == decision.Cluster {
		rule(c, w.setMark()).Comment = "masquerade"
	} else {
		to = string(LocalChain) + base
		if w.node.Detector.Implemented(w.family) {
			rule(c, w.pod(false), goTo(cluster)).Comment = "short-circuit pod traffic"
		}
		rule(c, fromNode, w.setMark()).Comment = "masquerade local traffic"
		rule(c, fromNode, goTo(cluster)).Comment = "short-circuit local traffic"
	}
	if !lacks(s, s.ExternalPolicy) {
		rule(c, goTo(to))
	}
}

// firewall writes the chain that drops what comes from outside of the source ranges.
func (w *writer) firewall(s *decision.ServicePort, c *nftables.Chain) {
	sources := append([]netip.Prefix(nil), s.SourceRanges...)
	if s.Allows(w.node.IP(w.family)) {
		for _, a := range s.LoadBalancerIPs {
			sources = append(sources, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	rule(c, not(w.saddr(), networks(sources)), drop)
}

// affinitySets adds a set of clients for each endpoint.
func (w *writer) affinitySets(s *decision.ServicePort, reachable []decision.Endpoint) {
	if s.AffinitySeconds == 0 {
		return
	}
	for _, e := range reachable {
		w.table.Sets = append(w.table.Sets, &nftables.Set{
			Name: string(AffinitySet) + EndpointBase(s.Name, s.Protocol, e.AddrPort), Key: nftables.Type{Names: []string{w.addr()}},
			Size: affinitySize, Flags: []string{"dynamic", "timeout"}, Timeout: time.Duration(s.AffinitySeconds) * time.Second,
		})
	}
}

// endpointChains writes the chains of endpoints, which only session affinity needs.
func (w *writer) endpointChains(s *decision.ServicePort, reachable []decision.Endpoint) {
	for _, e := range reachable {
		base := EndpointBase(s.Name, s.Protocol, e.AddrPort)
		c := w.chain(string(EndpointChain) + base)
		rule(c, nftables.SetStatement{Op: "update", Set: string(AffinitySet) + base, Element: nftables.Element{Key: w.saddr()}})
		rule(c, is(proto, word(s.Protocol.Lower())), nftables.NAT{Kind: "dnat", Address: word(e.AddrPort.Addr().String()), Port: number(e.AddrPort.Port())})
	}
}

// balance writes the rules that choose an endpoint: by the client's address if it was there before, else at random.
func (w *writer) balance(s *decision.ServicePort, c *nftables.Chain, usable []decision.Endpoint) {
	draw := nftables.Numgen{Mode: "random", Mod: uint64(len(usable))}
	var elements []nftables.Element
	for i, e := range usable {
		choice := nftables.Element{Key: number(i)}
		if s.AffinitySeconds > 0 {
			base := EndpointBase(s.Name, s.Protocol, e.AddrPort)
			rule(c, is(w.saddr(), nftables.SetRef(string(AffinitySet)+base)), goTo(string(EndpointChain)+base))
			choice.Value = goTo(string(EndpointChain) + base)
		} else {
			choice.Value = nftables.Concat{word(e.AddrPort.Addr().String()), number(e.AddrPort.Port())}
		}
		elements = append(elements, choice)
	}
	data := nftables.AnonymousSet{Elements: elements}
	if s.AffinitySeconds > 0 {
		rule(c, nftables.VerdictMap{Key: draw, Data: data})
		return
	}
	// nft prints "dnat ip to" for what kube-proxy writes as "dnat ip addr . port to".
	rule(c, is(proto, word(s.Protocol.Lower())), nftables.NAT{Kind: "dnat", Family: w.ip(), Address: nftables.Map{Key: draw, Data: data}})
}
