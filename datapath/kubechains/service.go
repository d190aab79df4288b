package kubechains

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// writer collects the rules of service ports, as kube-proxy's syncProxyRules
// writes them.
type writer struct {
	t      *decision.Table
	kernel Kernel
	rules  []Rule
	// large leaves out the comments of the rules about endpoints, as kube-proxy
	// does in large clusters to save space.
	large bool
}

// largeCluster is how many endpoints of a family kube-proxy takes for a large
// cluster if there are more (largeClusterEndpointsThreshold).
const largeCluster = 1000

func newWriter(t *decision.Table, f decision.Family, k Kernel) *writer {
	return &writer{t: t, kernel: k, large: t.Counts(f).Endpoints > largeCluster}
}

// endpointComment returns the comment of a rule about an endpoint, if it has one.
func (w *writer) endpointComment(text string) []match {
	if w.large {
		return nil
	}
	return []match{comment(text)}
}

func (w *writer) add(table Table, chain string, t target, sentence func(*state, bool) string, m ...match) {
	w.rules = append(w.rules, Rule{Table: table, Chain: chain, matches: inOrder(m), target: t, sentence: sentence})
}

// describe returns the same sentence for a match and for no match.
func describe(format string, args ...any) func(*state, bool) string {
	return func(*state, bool) string { return fmt.Sprintf(format, args...) }
}

// either returns one of two sentences; %s in them is the packet's source.
func either(yes, no string) func(*state, bool) string {
	return func(s *state, matched bool) string {
		text := no
		if matched {
			text = yes
		}
		return fmt.Sprintf(text, s.Source.Addr())
	}
}

// services writes the rules of service ports. If several claim the same address or node port, each
// has its rules, in the order of the claims. A packet that could be refused both for its address
// and for a node port is refused for its address, as in nat. (kube-proxy ranges over a map: its
// order is random in both cases.)
func (w *writer) services(services []*decision.ServicePort) {
	for _, s := range services {
		w.service(s)
	}
	slices.SortStableFunc(w.rules, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.refusesNodePort(), b.refusesNodePort()), cmp.Compare(a.rank, b.rank))
	})
}

// refusesNodePort is 1 for a rule that refuses flows to a node port on any address of the node,
// else 0.
func (r *Rule) refusesNodePort() int {
	isDestination := func(m match) bool { return m.place == destinationPlace }
	if r.Table == Filter && r.Chain == ExternalServices && !slices.ContainsFunc(r.matches, isDestination) {
		return 1
	}
	return 0
}

// address adds a rule for an address of the service port, or for its node port.
func (w *writer) address(s *decision.ServicePort, e decision.Entry, a netip.Addr, table Table, chain string, t target, sentence func(*state, bool) string, m ...match) {
	w.add(table, chain, t, sentence, m...)
	w.rules[len(w.rules)-1].rank = w.t.Rank(s, e, a)
}

// service writes all rules of one service port.
func (w *writer) service(s *decision.ServicePort) {
	w.clusterIP(s)
	w.externalIPs(s)
	w.loadBalancerIPs(s)
	w.nodePort(s)
	if s.HealthCheckNodePort != 0 {
		w.add(Filter, NodePorts, accept, describe("the health check port of %s", s.Name),
			protocol(decision.TCP), comment(s.Name.String()+" health check node port"), port(decision.TCP, s.HealthCheckNodePort))
	}
	if !s.HasEndpoints {
		return
	}
	if s.External() {
		w.external(s)
	}
	if s.Restricted() {
		w.firewall(s)
	}
	reachable := make(map[uint32]bool)
	for _, p := range []decision.Policy{decision.Cluster, decision.Local} {
		if usable := s.Usable[p]; len(usable) > 0 {
			w.balance(s, p)
			for _, i := range usable {
				reachable[i] = true
			}
		}
	}
	for i := range s.Endpoints {
		if reachable[uint32(i)] {
			w.endpoint(s, s.Endpoints[i].AddrPort)
		}
	}
}

// refusal is the target for packets to a service port that has no usable endpoints:
// REJECT if there are none in the cluster, DROP if only none here.
func refusal(s *decision.ServicePort) (target, match, func(*state, bool) string) {
	if s.HasEndpoints {
		return drop, comment(s.Name.String() + " has no local endpoints"),
			describe("the traffic policy is Local, and %s has no usable endpoint on this node: the packet is dropped", s.Name)
	}
	code := "icmp-port-unreachable"
	if s.Family == decision.IPv6 {
		code = "icmp6-port-unreachable"
	}
	return reject(code), comment(s.Name.String() + " has no endpoints"),
		describe("%s has no usable endpoint: the packet is refused", s.Name)
}

// at matches an address and the port of the service port.
func at(s *decision.ServicePort, a netip.Addr, c match) []match {
	return []match{host(a), protocol(s.Protocol), c, port(s.Protocol, s.Port)}
}

func (w *writer) clusterIP(s *decision.ServicePort) {
	chain := s.PolicyChain(s.InternalPolicy)
	c := comment(s.Name.String() + " cluster IP")
	if len(s.Usable[s.InternalPolicy]) == 0 || !s.HasEndpoints {
		t, c, sentence := refusal(s)
		w.address(s, decision.EntryClusterIP, s.ClusterIP, Filter, Services, t, sentence, at(s, s.ClusterIP, c)...)
		return
	}
	w.address(s, decision.EntryClusterIP, s.ClusterIP, NAT, Services, jumpTo(chain), describe("the destination is the ClusterIP of %s", s.Name), at(s, s.ClusterIP, c)...)
	switch node := w.t.Node(); {
	case node.MasqueradeAll:
		w.add(NAT, chain, jumpTo(MarkMasq), either("--masquerade-all is set: %s is masqueraded", "this rule matches packets to the ClusterIP only, not this one from %s"), at(s, s.ClusterIP, c)...)
	case node.Detector.Implemented(s.Family):
		sentence := func(p *state, matched bool) string {
			src := p.Source.Addr()
			switch {
			case matched:
				return fmt.Sprintf("%s is not a pod of this cluster: masquerade, so that the reply returns here", src)
			case node.Detector.IsLocal(p.Packet):
				return fmt.Sprintf("%s is a pod: no masquerade", src)
			}
			return "this rule matches packets to the ClusterIP only"
		}
		m := append([]match{pod(&node.Detector, s.Family, true)}, at(s, s.ClusterIP, c)...)
		w.add(NAT, chain, jumpTo(MarkMasq), sentence, m...)
	}
}

func (w *writer) externalIPs(s *decision.ServicePort) {
	for _, ip := range s.ExternalIPs {
		if s.HasEndpoints {
			w.address(s, decision.EntryExternalIP, ip, NAT, Services, jumpTo(s.ExternalChain()), describe("the destination is an external IP of %s", s.Name),
				at(s, ip, comment(s.Name.String()+" external IP"))...)
		}
		w.refuseExternal(s, decision.EntryExternalIP, ip)
	}
}

// refuseExternal is the filter rule for an external destination without usable
// endpoints.
func (w *writer) refuseExternal(s *decision.ServicePort, e decision.Entry, ip netip.Addr) {
	if s.ExternalRefusal() != 0 {
		t, c, sentence := refusal(s)
		w.address(s, e, ip, Filter, ExternalServices, t, sentence, at(s, ip, c)...)
	}
}

func (w *writer) loadBalancerIPs(s *decision.ServicePort) {
	for _, ip := range s.LoadBalancerIPs {
		if s.HasEndpoints {
			chain := s.ExternalChain()
			if s.Restricted() {
				chain = s.FirewallChain()
			}
			w.address(s, decision.EntryLoadBalancer, ip, NAT, Services, jumpTo(chain), describe("the destination is a load balancer IP of %s", s.Name),
				at(s, ip, comment(s.Name.String()+" loadbalancer IP"))...)
		}
		if s.Restricted() {
			c := comment(fmt.Sprintf("%s traffic not accepted by %s", s.Name, s.FirewallChain()))
			w.address(s, decision.EntryLoadBalancer, ip, Filter, ProxyFirewall, drop, describe("the firewall chain did not accept this packet, so it was not translated: dropped"), at(s, ip, c)...)
		}
	}
	for _, ip := range s.LoadBalancerIPs {
		w.refuseExternal(s, decision.EntryLoadBalancer, ip)
	}
}

func (w *writer) nodePort(s *decision.ServicePort) {
	if s.NodePort == 0 {
		return
	}
	rule := func(table Table, chain string, t target, sentence func(*state, bool) string, m ...match) {
		w.address(s, decision.EntryNodePort, netip.Addr{}, table, chain, t, sentence, m...)
	}
	if s.HasEndpoints {
		sentence := describe("%s port %d is the node port of %s", s.Protocol, s.NodePort, s.Name)
		m := []match{protocol(s.Protocol), comment(s.Name.String()), port(s.Protocol, s.NodePort)}
		if w.kernel.NFAcct && s.Family == decision.IPv4 && w.t.Node().LocalhostNodePorts {
			rule(NAT, NodePorts, jumpTo(s.ExternalChain()), sentence, append(slices.Clone(m), destination(localnet), counter(LocalhostAccepted))...)
		}
		rule(NAT, NodePorts, jumpTo(s.ExternalChain()), sentence, m...)
	}
	if s.ExternalRefusal() != 0 {
		t, c, sentence := refusal(s)
		rule(Filter, ExternalServices, t, sentence, protocol(s.Protocol), c, toNode, port(s.Protocol, s.NodePort))
	}
}

// external writes KUBE-EXT.
func (w *writer) external(s *decision.ServicePort) {
	chain, name := s.ExternalChain(), s.Name.String()
	if s.ExternalPolicy == decision.Cluster {
		w.add(NAT, chain, jumpTo(MarkMasq), describe("the endpoint may be on another node: masquerade, so that the reply returns here"),
			comment("masquerade traffic for "+name+" external destinations"))
	} else {
		if d := &w.t.Node().Detector; d.Implemented(s.Family) {
			w.add(NAT, chain, jumpTo(s.ServiceChain()), either("%s is a pod: the external policy does not apply", "%s is not a pod"),
				pod(d, s.Family, false), comment("pod traffic for "+name+" external destinations"))
		}
		w.add(NAT, chain, jumpTo(MarkMasq), either("%s is this node itself: masquerade", "%s is not this node: no masquerade"),
			comment("masquerade LOCAL traffic for "+name+" external destinations"), fromNode)
		w.add(NAT, chain, jumpTo(s.ServiceChain()), either("%s is this node itself: the external policy does not apply", "%s is not this node: the external policy applies"),
			comment("route LOCAL traffic for "+name+" external destinations"), fromNode)
	}
	if s.ExternalRefusal() == 0 {
		sentence := describe("balance over all endpoints of the cluster")
		if s.ExternalPolicy == decision.Local {
			sentence = describe("the external traffic policy is Local: balance over this node's endpoints only, and keep the client's address")
		}
		w.add(NAT, chain, jumpTo(s.PolicyChain(s.ExternalPolicy)), sentence)
	}
}

// firewall writes KUBE-FW.
func (w *writer) firewall(s *decision.ServicePort) {
	chain, c := s.FirewallChain(), comment(s.Name.String()+" loadbalancer IP")
	through := func(p netip.Prefix) {
		m := []match{c}
		if p.Bits() > 0 { // iptables-save leaves out a match of any address
			m = append(m, source(p))
		}
		w.add(NAT, chain, jumpTo(s.ExternalChain()), either("%s is within "+p.String()+", one of the allowed ranges", "%s is not within "+p.String()), m...)
	}
	for _, r := range s.SourceRanges {
		through(r)
	}
	if s.Allows(w.t.Node().IP(s.Family)) {
		for _, ip := range s.LoadBalancerIPs {
			through(hostPrefix(ip))
		}
	}
	w.add(NAT, chain, none, describe("the source is in no allowed range, or no endpoint gets the packet: KUBE-PROXY-FIREWALL drops it"),
		comment("other traffic to "+s.Name.String()+" will be dropped by "+ProxyFirewall))
}

// balance writes KUBE-SVC or KUBE-SVL.
func (w *writer) balance(s *decision.ServicePort, policy decision.Policy) {
	chain, usable := s.PolicyChain(policy), s.Usable[policy]
	n := len(usable)
	arrow := func(i uint32) []match {
		return w.endpointComment(fmt.Sprintf("%s -> %s", s.Name, s.Endpoints[i].AddrPort))
	}
	if s.AffinitySeconds > 0 {
		for _, i := range usable {
			ep := s.Endpoints[i].AddrPort
			yes := fmt.Sprintf("%%s went to %s less than %d s ago: session affinity keeps it there", ep, s.AffinitySeconds)
			w.add(NAT, chain, jumpTo(s.EndpointChain(ep)), either(yes, "%s is not bound to "+ep.String()), append(arrow(i), recent(s, ep, false))...)
		}
	}
	for k, i := range usable {
		m := arrow(i)
		sentence := describe("the only endpoint")
		if n > 1 {
			sentence = describe("the last endpoint takes the remaining flows")
		}
		if k < n-1 {
			m = append(m, statistic(k, n))
			from, to := float64(k)/float64(n), float64(k+1)/float64(n)
			sentence = func(p *state, matched bool) string {
				switch {
				case p.d.Reason == decision.ByProxy && matched:
					return "the draw of this rule has selected its endpoint"
				case p.d.Reason == decision.ByProxy:
					return "the draw of this rule has not selected its endpoint"
				}
				return fmt.Sprintf("random draw %.4f, this rule's share is [%.4f, %.4f)", p.d.Draw, from, to)
			}
		}
		if s.Balance != "" {
			sentence = selected(sentence)
		}
		w.add(NAT, chain, jumpTo(s.EndpointChain(s.Endpoints[i].AddrPort)), sentence, m...)
	}
}

// selected is the sentence of a rule for an endpoint where an algorithm of the service port selects, and
// not kube-proxy's draw.
func selected(draw func(*state, bool) string) func(*state, bool) string {
	return func(p *state, matched bool) string {
		switch {
		case !picked(p.d):
			return draw(p, matched)
		case matched:
			return fmt.Sprintf("%s selects this endpoint instead of kube-proxy's draw: %s", p.d.ServicePort.Balance, balance.Text(p.d))
		}
		return p.d.ServicePort.Balance + " selects another endpoint"
	}
}

// endpoint writes KUBE-SEP.
func (w *writer) endpoint(s *decision.ServicePort, ep netip.AddrPort) {
	chain, c := s.EndpointChain(ep), w.endpointComment(s.Name.String())
	if !w.t.Node().NoHairpinMasquerade {
		w.add(NAT, chain, jumpTo(MarkMasq), either("%s connects to itself: masquerade, or it would reply to itself directly", "%s is not the endpoint "+ep.Addr().String()+" itself"),
			append([]match{source(hostPrefix(ep.Addr()))}, c...)...)
	}
	m := append([]match{protocol(s.Protocol)}, c...)
	if s.AffinitySeconds > 0 {
		m = append(m, recent(s, ep, true))
	}
	m = append(m, port(s.Protocol, 0))
	w.add(NAT, chain, dnat(ep), describe("the destination becomes %s", ep), m...)
}

// Rules returns all rules for the table in one address family, in kube-proxy's order: within a
// chain, the order of evaluation.
func Rules(t *decision.Table, f decision.Family, k Kernel) []Rule {
	w := newWriter(t, f, k)
	w.rules = jumps(f)
	w.services(slices.DeleteFunc(slices.Clone(t.Services()), func(s *decision.ServicePort) bool { return s.Family != f }))
	return append(w.rules, common(t, f, k)...)
}

// ServiceRules are the rules of one service port alone.
func ServiceRules(t *decision.Table, s *decision.ServicePort, k Kernel) []Rule {
	w := newWriter(t, s.Family, k)
	w.service(s)
	return w.rules
}
