package kubechains

import (
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// jumps are the rules in the built-in chains, in an order that has the same effect
// as kube-proxy's (iptablesJumpChains; each is inserted at the head of its chain).
func jumps(f decision.Family) []Rule {
	rule := func(table Table, chain, to, text string, m ...match) Rule {
		if text != "" {
			m = append(m, comment(text))
		}
		return Rule{Table: table, Chain: chain, matches: m, target: jumpTo(to)}
	}
	const portals, external, firewall = "kubernetes service portals", "kubernetes externally-visible service portals", "kubernetes load balancer firewall"
	rules := []Rule{
		rule(Filter, "INPUT", ProxyFirewall, firewall, stateNew),
		rule(Filter, "INPUT", NodePorts, "kubernetes health check service ports"),
		rule(Filter, "INPUT", ExternalServices, external, stateNew),
		rule(Filter, "FORWARD", ProxyFirewall, firewall, stateNew),
		rule(Filter, "FORWARD", Forward, "kubernetes forwarding rules"),
		rule(Filter, "FORWARD", Services, portals, stateNew),
		rule(Filter, "FORWARD", ExternalServices, external, stateNew),
		rule(Filter, "OUTPUT", ProxyFirewall, firewall, stateNew),
		rule(Filter, "OUTPUT", Services, portals, stateNew),
		rule(NAT, "PREROUTING", Services, portals),
		rule(NAT, "OUTPUT", Services, portals),
		rule(NAT, "POSTROUTING", Postrouting, "kubernetes postrouting rules"),
	}
	// For IPv4 the kubelet makes these jumps before kube-proxy inserts its own in front of them;
	// for IPv6 kube-proxy makes them, last of all.
	firewalls := []Rule{rule(Filter, "INPUT", Firewall, ""), rule(Filter, "OUTPUT", Firewall, "")}
	if f == decision.IPv6 {
		return append(firewalls, rules...)
	}
	return append(rules, firewalls...)
}

// common are the rules that do not depend on services.
func common(t *decision.Table, f decision.Family, k Kernel) []Rule {
	w := &writer{t: t}
	mark := t.Node().Mark()
	if !k.TCPLiberal {
		invalid := []match{stateInvalid}
		if k.NFAcct {
			invalid = append(invalid, counter(InvalidDropped))
		}
		w.add(Filter, Forward, drop, nil, invalid...)
	}
	w.add(Filter, Forward, accept, describe("marked packets are accepted for forwarding"),
		comment("kubernetes forwarding rules"), marked(mark, false))
	w.add(Filter, Forward, accept, nil, comment("kubernetes forwarding conntrack rule"), stateKnown)
	if f == decision.IPv4 && t.Node().LocalhostNodePorts {
		w.add(Filter, Firewall, drop, describe("only loopback addresses may send to loopback addresses: dropped"),
			not("", source(localnet)), destination(localnet), comment("block incoming localnet connections"), stateForeign)
	}
	w.add(NAT, MarkMasq, setMark(mark, false), nil)
	w.add(NAT, Postrouting, goBack, nil, marked(mark, true))
	w.add(NAT, Postrouting, setMark(mark, true), nil)
	w.add(NAT, Postrouting, masquerading, describe("the source becomes an address of this node"), comment("kubernetes service traffic requiring SNAT"))
	w.nodePortJumps(f)
	return w.rules
}

// nodePortJumps are the last rules of KUBE-SERVICES.
func (w *writer) nodePortJumps(f decision.Family) {
	c := comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
	if !w.t.AllNodePortAddresses(f) {
		sentence := func(s *state, matched bool) string {
			if matched {
				return fmt.Sprintf("%s is an address of this node with open node ports", s.dst.Addr())
			}
			return fmt.Sprintf("%s is not the address of this rule", s.dst.Addr())
		}
		for _, a := range append([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, w.t.NodePortAddresses()...) {
			if decision.FamilyOf(a) == f && w.t.OpensNodePorts(a) {
				w.add(NAT, Services, jumpTo(NodePorts), sentence, host(a), c)
			}
		}
		return
	}
	sentence := func(s *state, matched bool) string {
		if matched {
			return fmt.Sprintf("%s is an address of this node: check whether the port is a node port", s.dst.Addr())
		}
		return fmt.Sprintf("%s is not an address of this node with open node ports", s.dst.Addr())
	}
	m := []match{c, toNode}
	switch {
	case f == decision.IPv6:
		m = append(m, not("", destination(netip.MustParsePrefix("::1/128"))))
	case !w.t.Node().LocalhostNodePorts:
		m = append(m, not("", destination(localnet)))
	}
	w.add(NAT, Services, jumpTo(NodePorts), sentence, m...)
}

// FixedChains are the chains that are independent of services.
var FixedChains = map[Table][]string{
	Mangle: {Canary},
	Filter: {ExternalServices, Firewall, Forward, NodePorts, Canary, ProxyFirewall, Services},
	NAT:    {MarkMasq, NodePorts, Postrouting, Canary, Services},
}
