package audit

import (
	"fmt"

	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// checkLost finds rules of kube-proxy that match every packet, where every version of it matches the
// mark or the state. An iptables of another version than kube-proxy's prints or writes them without
// the options of the match (kubernetes#112477).
func (r *reader) checkLost() {
	returns, unmarks := false, false
	for _, rule := range r.nat.rules[kubechains.Postrouting] {
		switch rule.Target.(type) {
		case iptables.Verdict:
			if returns = returns || rule.Target == iptables.Return; returns && bare(rule) {
				r.lost(rule, "returns every packet, so that nothing is masqueraded", "-m mark ! --mark")
			}
		case iptables.SetMark:
			unmarks = true
		case iptables.Masquerade, iptables.SNAT:
			switch {
			case !bare(rule) || returns || !r.nat.isComplete(kubechains.Postrouting):
			case unmarks: // as since 1.19
				r.problem("KUBE-POSTROUTING masquerades every packet: its first rule, which returns packets without the mark, is missing", rule.Line)
			default:
				r.lost(rule, "masquerades every packet", "-m mark --mark")
			}
		}
	}
	for _, rule := range r.filter.rules[kubechains.Forward] {
		switch {
		case !bare(rule):
		case rule.Target == iptables.Accept && rule.comment == "kubernetes forwarding rules":
			r.lost(rule, "accepts every packet", "-m mark --mark")
		case rule.Target == iptables.Accept:
			r.lost(rule, "accepts every packet", "-m conntrack --ctstate")
		case rule.Target == iptables.Drop:
			r.lost(rule, "drops every packet that reaches it", "-m conntrack --ctstate INVALID")
		}
	}
	for _, rule := range r.filter.rules[kubechains.Firewall] {
		if rule.Target == iptables.Drop && bare(rule) {
			r.lost(rule, "drops every packet", "-m mark --mark")
		}
	}
}

func (r *reader) lost(of *rule, effect, match string) {
	r.problem(fmt.Sprintf("%s %s: kube-proxy writes this rule with %s, whose option is missing; an iptables version other than kube-proxy's may lose it, in the kernel or only in its output", of.Chain, effect, match), of.Line)
}

// modules are those of kube-proxy's matches of packets, as they are named where their options are lost.
var modules = map[string]bool{"mark": true, "conntrack": true, "state": true}

// bare reports whether the rule has no conditions but matches whose options are lost.
func bare(r *rule) bool {
	for _, m := range r.Matches {
		if unknown, ok := m.(iptables.UnknownMatch); iptables.ModuleOf(m) != "comment" && (!ok || !modules[unknown.Match] || unsupported(unknown.Match, unknown.Args)) {
			return false
		}
	}
	return true
}
