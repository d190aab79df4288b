package decision

import (
	"fmt"
	"math"
	"net/netip"
)

// Outcome is what a rule did to the packet.
type Outcome string

// The outcomes of a rule.
const (
	Passed  Outcome = "no-match" // the rule did not match
	Jumped  Outcome = "jump"     // matched: the walk goes on in the rule's target chain
	Marked  Outcome = "mark"     // matched: the packet carries the masquerade mark from here on
	Applied Outcome = "match"    // matched: the rule's target ended the walk through its table
)

// Step is one rule the packet met on the walk that kube-proxy's chains would
// have led it.
type Step struct {
	Table   string  `json:"table"` // nat or filter
	Chain   string  `json:"chain"`
	Rule    string  `json:"rule"` // as iptables-save prints it, without "-A chain"
	Outcome Outcome `json:"outcome"`
	Text    string  `json:"text"` // one plain sentence
}

// Walk tells a decision as the walk of the packet through kube-proxy's chains.
// The rules are those kube-proxy writes (pkg/proxy/iptables) in the spelling of
// iptables-save. Rules of other services, which do not match, are left out. t and
// p have to be those the decision was made from.
func Walk(t *Table, p *Packet, d *Decision) []Step {
	w := walk{t: t, p: p, d: d, s: d.ServicePort}
	switch {
	case w.s == nil:
		w.add("nat", ChainServices, "", Passed, fmt.Sprintf("no service has %s/%s", p.Destination, p.Protocol))
	case d.Verdict == Reject:
		w.reject()
	default:
		w.entry()
		w.balance()
		w.endpoint()
	}
	return w.steps
}

type walk struct {
	t     *Table
	p     *Packet
	d     *Decision
	s     *ServicePort
	steps []Step
}

func (w *walk) add(table, chain, rule string, o Outcome, text string) {
	w.steps = append(w.steps, Step{Table: table, Chain: chain, Rule: rule, Outcome: o, Text: text})
}

// matchOutcome gives o if the rule matched.
func matchOutcome(matched bool, o Outcome) Outcome {
	if matched {
		return o
	}
	return Passed
}

// reject is the rule for a service port without endpoints. kube-proxy keeps these
// in the filter table; the nat table then has no rule for the service port.
func (w *walk) reject() {
	s := w.s
	const target = "-j REJECT --reject-with icmp-port-unreachable"
	comment := quoteComment(s.Name.String() + " has no endpoints")
	text := fmt.Sprintf("%s has no usable endpoint: the packet is refused", s.Name)
	if s.Family == IPv6 {
		// The IPv6 REJECT target names its codes differently.
		const target6 = "-j REJECT --reject-with icmp6-port-unreachable"
		w.rejectWith(target6, comment, text)
		return
	}
	w.rejectWith(target, comment, text)
}

func (w *walk) rejectWith(target, comment, text string) {
	s, proto := w.s, w.s.Protocol.Lower()
	if w.d.Entry == EntryNodePort {
		w.add("filter", "KUBE-EXTERNAL-SERVICES", fmt.Sprintf("-p %s -m comment --comment %s -m addrtype --dst-type LOCAL -m %s --dport %d %s",
			proto, comment, proto, s.NodePort, target), Applied, text)
		return
	}
	w.add("filter", ChainServices, fmt.Sprintf("-d %s -p %s -m comment --comment %s -m %s --dport %d %s",
		hostPrefix(s.ClusterIP), proto, comment, proto, s.Port, target), Applied, text)
}

// entry leads from KUBE-SERVICES to the service's own chain.
func (w *walk) entry() {
	s, proto := w.s, w.s.Protocol.Lower()
	name := quoteComment(s.Name.String())
	svc := s.ServiceChain()
	clusterIP := fmt.Sprintf("-d %s -p %s -m comment --comment %s -m %s --dport %d",
		hostPrefix(s.ClusterIP), proto, quoteComment(s.Name.String()+" cluster IP"), proto, s.Port)

	if w.d.Entry == EntryNodePort {
		ext := s.ExternalChain()
		w.add("nat", ChainServices, `-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j `+ChainNodePorts,
			Jumped, fmt.Sprintf("%s is an address of this node", w.p.Destination.Addr()))
		w.add("nat", ChainNodePorts, fmt.Sprintf("-p %s -m comment --comment %s -m %s --dport %d -j %s", proto, name, proto, s.NodePort, ext),
			Jumped, fmt.Sprintf("%s port %d is the node port of %s", s.Protocol, s.NodePort, s.Name))
		w.add("nat", ext, fmt.Sprintf("-m comment --comment %s -j %s", quoteComment("masquerade traffic for "+s.Name.String()+" external destinations"), ChainMarkMasq),
			Marked, "the reply has to come back through this node: masquerade")
		w.add("nat", ext, "-j "+svc, Jumped, "balance over all endpoints of the cluster")
		if r := w.masqueradeRule(clusterIP); r != "" {
			w.add("nat", svc, r, Passed, "this rule is for packets to the ClusterIP")
		}
		return
	}
	w.add("nat", ChainServices, clusterIP+" -j "+svc, Jumped, fmt.Sprintf("the destination is the ClusterIP of %s", s.Name))
	if r := w.masqueradeRule(clusterIP); r != "" {
		switch {
		case w.d.Mark == MasqueradeAll:
			w.add("nat", svc, r, Marked, "--masquerade-all is set: masquerade")
		case w.d.Mark == MasqueradeOutside:
			w.add("nat", svc, r, Marked, fmt.Sprintf("%s lies outside the cluster CIDR: masquerade", w.p.Source.Addr()))
		default:
			w.add("nat", svc, r, Passed, fmt.Sprintf("%s lies within the cluster CIDR: no masquerade", w.p.Source.Addr()))
		}
	}
}

// masqueradeRule is the rule at the head of KUBE-SVC-*; empty where kube-proxy
// writes none, for want of a local detector.
func (w *walk) masqueradeRule(clusterIP string) string {
	if w.t.node.MasqueradeAll {
		return clusterIP + " -j " + ChainMarkMasq
	}
	for _, c := range w.t.node.ClusterCIDRs {
		if FamilyOf(c.Addr()) == w.s.Family {
			return fmt.Sprintf("! -s %s %s -j %s", c, clusterIP, ChainMarkMasq)
		}
	}
	return ""
}

// balance walks the statistic rules up to the one that matched. There is one
// draw for all of them, so rule i is reached and matches iff the draw lies in
// [i/n, (i+1)/n).
func (w *walk) balance() {
	svc, n := w.s.ServiceChain(), len(w.s.Endpoints)
	for i := 0; i <= w.d.Index; i++ {
		ep := w.s.Endpoints[i].AddrPort
		rule := "-m comment --comment " + quoteComment(fmt.Sprintf("%s -> %s", w.s.Name, ep))
		text := "the last endpoint takes what the others left"
		if n == 1 {
			text = "the only endpoint"
		}
		if left := n - i; left > 1 {
			rule += " -m statistic --mode random --probability " + probability(left)
			text = fmt.Sprintf("draw %.4f, this rule's share is [%.4f, %.4f)", w.d.Draw, float64(i)/float64(n), float64(i+1)/float64(n))
		}
		w.add("nat", svc, rule+" -j "+w.s.EndpointChain(ep), matchOutcome(i == w.d.Index, Jumped), text)
	}
}

// endpoint is KUBE-SEP-* and, for marked packets, KUBE-POSTROUTING.
func (w *walk) endpoint() {
	ep := w.d.Endpoint()
	sep, proto, name := w.s.EndpointChain(ep), w.s.Protocol.Lower(), quoteComment(w.s.Name.String())
	hairpin := ep.Addr() == w.p.Source.Addr()
	text := fmt.Sprintf("the source is not the endpoint %s itself", ep.Addr())
	if hairpin {
		text = fmt.Sprintf("%s reaches itself: masquerade, or it would answer itself directly", ep.Addr())
	}
	w.add("nat", sep, fmt.Sprintf("-s %s -m comment --comment %s -j %s", hostPrefix(ep.Addr()), name, ChainMarkMasq), matchOutcome(hairpin, Marked), text)
	w.add("nat", sep, fmt.Sprintf("-p %s -m comment --comment %s -m %s -j DNAT --to-destination %s", proto, name, proto, ep),
		Applied, fmt.Sprintf("the destination becomes %s", ep))
	const masquerade = `-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`
	switch {
	case w.d.Masquerade:
		w.add("nat", ChainPostrouting, masquerade, Applied, "the source becomes an address of this node")
	case w.d.Mark != NoMasquerade:
		w.add("nat", ChainPostrouting, masquerade, Passed, fmt.Sprintf("%s is this node: the packet is delivered here and does not pass POSTROUTING", ep.Addr()))
	}
}

// hostPrefix writes an address as iptables-save does: 10.96.0.1/32.
func hostPrefix(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// quoteComment quotes a comment as iptables-save does: only where it has to
// (xtables' save_string). Service names hold no quotes or backslashes.
func quoteComment(s string) string {
	for _, r := range s {
		if r == ' ' || r == '>' || r == ';' || r == ':' || r == '/' {
			return `"` + s + `"`
		}
	}
	return s
}

// probability writes the 1/n of a statistic rule as iptables-save prints it: kube-proxy
// gives ten digits, the kernel keeps a 31-bit fraction, and eleven digits come out.
func probability(n int) string {
	given := math.Round(1/float64(n)*1e10) / 1e10
	return fmt.Sprintf("%.11f", math.Round(given*(1<<31))/(1<<31))
}
