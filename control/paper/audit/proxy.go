package audit

import (
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// detection is how the rule detects pods, by their address or interface.
func (r *rule) detection() detection {
	if r.in != nil {
		return detection{how: "-i " + r.in.Interface.String(), device: r.in.Interface.Name, prefix: r.in.Interface.Wildcard}
	}
	return detection{how: "-s " + r.source.Prefix.String(), podCIDR: r.source.Prefix}
}

// masqueradeRules reads the rules of KUBE-SVC or KUBE-SVL that masquerade.
func (r *reader) masqueradeRules(s *Service, chain string) {
	for _, rule := range r.nat.rules[chain] {
		if rule.jump == kubechains.MarkMasq {
			r.withinService = true
			r.masqueradeRule(s, rule)
		}
	}
}

func (r *reader) masqueradeRule(s *Service, rule *rule) {
	if !rule.plain() {
		return
	}
	ip, ok := rule.destination.host()
	outside := rule.source.not || rule.in != nil && rule.in.Negated
	switch {
	case ok && ip == s.ClusterIP && outside:
		r.detect(rule.Line, rule.detection())
		r.node.owners[rule.Rule] = ruleOwner{service: s, masquerade: true}
	case ok && ip == s.ClusterIP && !rule.source.IsValid() && rule.in == nil:
		r.masqueraded = append(r.masqueraded, rule)
		r.node.owners[rule.Rule] = ruleOwner{service: s, masquerade: true}
	case ok || !rule.destination.IsValid() && rule.port == s.NodePort:
		r.markExplained(s, rule) // of an external IP or a node port, until 1.23
	}
}

// proxy reads the rules that are not about a service.
func (r *reader) proxy() {
	old := r.oldMasquerade()
	p := &r.node.Proxy
	p.Version = r.version(old)
	p.balances = r.balances()
	p.MasqueradeAll = len(r.masqueraded) > 0
	r.settleDetection()
	for _, rule := range r.nat.rules[kubechains.MarkMasq] {
		if m, ok := rule.Target.(iptables.SetMark); ok {
			p.MasqueradeMark = m.Mark.Value
		}
	}
	if len(r.marks) > 0 && !r.nat.has(kubechains.MarkMasq) {
		p.MasqueradeMark = r.marks[0].Mark.Value
	}
	r.nodePortAddresses()
	r.nodePodCIDR()
	r.invalid()
}

// invalid reads the rule that drops INVALID packets.
func (r *reader) invalid() {
	p := &r.node.Proxy
	p.PassesInvalid = len(r.filter.rules[kubechains.Forward]) > 0
	for _, rule := range r.filter.rules[kubechains.Forward] {
		if rule.Target != iptables.Drop || !rule.invalid && !rule.unread {
			continue
		}
		p.PassesInvalid = false
		p.NFAcct = p.NFAcct || rule.counter == kubechains.InvalidDropped
		r.node.owners[rule.Rule] = ruleOwner{counts: true}
	}
}

// oldMasquerade reads the masquerade rules that were among the portals until 1.20, and reports
// whether there are any.
func (r *reader) oldMasquerade() bool {
	found := false
	for _, rule := range r.nat.rules[kubechains.Services] {
		ip, ok := rule.destination.host()
		if !ok || rule.jump != kubechains.MarkMasq {
			continue
		}
		found = true
		if same := r.claims[claim{ip, rule.port, rule.protocol}]; len(same) > 0 {
			r.masqueradeRule(r.node.owners[same[0].Rule].service, rule)
		}
	}
	for _, rule := range r.nat.rules[kubechains.NodePorts] {
		if same := r.claims[claim{netip.Addr{}, rule.port, rule.protocol}]; rule.jump == kubechains.MarkMasq && len(same) > 0 {
			r.markExplained(r.node.owners[same[0].Rule].service, rule)
		}
	}
	return found
}

// version returns the version of kube-proxy according to the chains: it moved the masquerade rules
// out of KUBE-SERVICES in 1.21 (kubernetes#96959), replaced KUBE-XLB by KUBE-EXT in 1.24
// (kubernetes#109060), and has dropped in KUBE-PROXY-FIREWALL since 1.25 (kubernetes#110289).
// Comments of 1.22 do not name the endpoint yet. 1.1 had no chain that marks, 1.5 introduced KUBE-XLB. Rules that a part of
// a dump does not show are no evidence.
func (r *reader) version(oldMasquerade bool) string {
	external, xlb, arrows, balanced := false, false, false, false
	for chain := range r.nat.declared {
		external = external || strings.HasPrefix(chain, externalPrefix)
		xlb = xlb || strings.HasPrefix(chain, xlbPrefix)
	}
	for _, s := range r.node.Services {
		for _, b := range s.balanced {
			if b != nil && len(b.shares) > 0 {
				first := b.shares[0].rule
				_, ok := arrow(first.comment)
				arrows = arrows || ok
				balanced = balanced || first.comment != "" && !first.unread
			}
		}
	}
	firewall := r.filter.has(kubechains.ProxyFirewall)
	for _, rule := range r.filter.rules["FORWARD"] {
		firewall = firewall || rule.jump == kubechains.ProxyFirewall
	}
	switch {
	case firewall:
		return "1.25 or later"
	case len(r.marks) > 0 && !r.nat.has(kubechains.MarkMasq):
		return "1.1"
	case oldMasquerade:
		return "1.20 or earlier"
	case external && r.filter.has(kubechains.Services) && r.filter.isComplete("FORWARD"):
		return "1.24"
	case external:
		return "1.24 or later"
	case xlb && r.withinService, balanced && !arrows && r.withinService:
		return "1.21 to 1.23"
	case xlb:
		return "1.5 to 1.23"
	case arrows:
		return "1.23 or later"
	}
	return ""
}

// nodePortAddresses reads the jumps to KUBE-NODEPORTS at the end of KUBE-SERVICES.
func (r *reader) nodePortAddresses() {
	p := &r.node.Proxy
	p.LocalhostNodePorts = true
	jumps, loopback := 0, false
	for _, rule := range r.nat.rules[kubechains.Services] {
		if rule.jump != kubechains.NodePorts {
			continue
		}
		jumps++
		a, restricted := rule.destination.host()
		switch {
		case restricted:
			p.NodePortAddresses = append(p.NodePortAddresses, a)
			loopback = loopback || a.IsLoopback()
		case r.node.Family == decision.IPv4 && rule.destination.not && rule.destination.Addr().IsLoopback():
			p.LocalhostNodePorts = false
		}
	}
	if jumps > 0 && len(p.NodePortAddresses) > 0 && r.node.Family == decision.IPv4 {
		p.LocalhostNodePorts = loopback
	}
}

// nodePodCIDR reads the prefix of the node's pods from flannel's rules.
func (r *reader) nodePodCIDR() {
	for _, chain := range r.nat.order {
		for _, rule := range r.nat.rules[chain] {
			to := rule.destination
			if rule.comment == "flanneld masq" && rule.source.not && to.IsValid() && !to.not && rule.Target == iptables.Return &&
				rule.source.Contains(to.Addr()) && to.Bits() > rule.source.Bits() {
				r.node.Proxy.NodePodCIDR = to.Prefix
			}
		}
	}
}
