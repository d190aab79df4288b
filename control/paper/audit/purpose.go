package audit

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/kubechains"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// Purpose is the reason for which kube-proxy, of any version, wrote a rule that drops or rejects packets.
type Purpose uint8

// The purposes.
const (
	NotKubeProxy  Purpose = iota // it writes no such rule
	NoEndpoints                  // the service port has no endpoint: its packets are rejected
	NoneHere                     // its policy is Local, and this node has no endpoint
	OtherSource                  // the source is outside of the load balancer's source ranges
	Protection                   // packets that are invalid, or from outside to loopback addresses
	DropsForOther                // the mark with which kube-proxy and the kubelet have packets dropped, set by another rule
)

// markDrop is the chain that has packets dropped: until 1.24 kube-proxy jumped to it, until 1.27 the kubelet made it.
const markDrop = "KUBE-MARK-DROP"

// Purpose returns why kube-proxy wrote the rule, which drops or rejects a packet, and the service that
// it is about; nil: none. path are the rules that the packet matched before, in order. The shape of
// the rule decides, not the name of its chain.
func (n *Node) Purpose(r *iptables.Rule, path []*iptables.Rule) (Purpose, *Service) {
	of, owned := n.owners[r]
	_, rejects := r.Target.(iptables.Reject)
	switch {
	case owned && n.Mode == proxymode.ModeNFTables:
		return nftPurpose(r), nil
	case owned && of.service == nil:
		return Protection, nil
	case owned && rejects:
		return NoEndpoints, of.service
	case owned && r.Chain == kubechains.ProxyFirewall:
		return OtherSource, of.service
	case owned && r.Target == iptables.Drop:
		return NoneHere, of.service
	case r.Chain == kubechains.Firewall && r.Target == iptables.Drop:
		return n.firewall(r, path)
	}
	return NotKubeProxy, nil
}

// firewall is the purpose of a rule of KUBE-FIREWALL, which drops packets with a mark, and those from
// outside to loopback addresses.
func (n *Node) firewall(r *iptables.Rule, path []*iptables.Rule) (Purpose, *Service) {
	split := newRule(r)
	if to := split.destination; to.IsValid() && !to.not && to.Addr().IsLoopback() && split.source.not {
		return Protection, nil
	}
	if !matchesMark(r) {
		return NotKubeProxy, nil
	}
	if purpose, s, _ := n.MarksDrop(path); purpose != NotKubeProxy {
		return purpose, s
	}
	return DropsForOther, nil
}

// MarksDrop returns the reason for which kube-proxy, until 1.24, marked a packet with this path to be dropped, the service, and
// the rule; NotKubeProxy: it did not.
func (n *Node) MarksDrop(path []*iptables.Rule) (Purpose, *Service, *iptables.Rule) {
	for _, r := range path {
		if to, ok := r.Target.(iptables.Jump); !ok || to.Chain != markDrop {
			continue
		}
		s := n.chains[r.Chain]
		switch {
		case s == nil:
			return NotKubeProxy, nil, nil
		case strings.HasPrefix(r.Chain, firewallPrefix):
			return OtherSource, s, r
		}
		return NoneHere, s, r
	}
	return NotKubeProxy, nil, nil
}

// Destination is an address and port of a service; a node port has no address.
type Destination struct {
	Addr     netip.Addr
	Port     uint16
	Protocol decision.Protocol
}

// Refusals are kube-proxy's rules about destinations without an endpoint, whose packets it rejects, or under policy Local
// drops; and those that drop packets from outside of a load balancer's source ranges.
func (n *Node) Refusals() map[Destination]*iptables.Rule {
	if n.Mode == proxymode.ModeNFTables {
		return n.nftRefusals()
	}
	rules := make(map[Destination]*iptables.Rule)
	for r := range n.owners {
		if _, rejects := r.Target.(iptables.Reject); !rejects && r.Target != iptables.Drop {
			continue
		}
		if purpose, s := n.Purpose(r, nil); s == nil || purpose != NoEndpoints && purpose != NoneHere && purpose != OtherSource {
			continue
		}
		split := newRule(r)
		ip, _ := split.destination.host()
		rules[Destination{ip, split.port, split.protocol}] = r
	}
	return rules
}

// matchesMark reports whether a rule matches packets with a bit of the mark, and nothing else.
func matchesMark(r *iptables.Rule) bool {
	found := false
	for _, m := range r.Matches {
		switch m := m.(type) {
		case iptables.Comment:
		case iptables.Mark:
			found = !m.Negated && m.Mark.Value != 0 && m.Mark.Value == m.Mark.Mask
		default:
			return false
		}
	}
	return found
}

// IsEndpointRule reports whether the rule is one of kube-proxy's that chooses an endpoint or translates to it.
func (n *Node) IsEndpointRule(r *iptables.Rule) bool {
	_, owned := n.owners[r]
	return owned
}

// WithoutEndpoints says which services kube-proxy rejects or drops packets to, one sentence each.
func (n *Node) WithoutEndpoints() (issues []Issue) {
	for _, s := range n.Services {
		switch {
		case s.Refused:
			issues = append(issues, Issue{Text: fmt.Sprintf("%s has no endpoints: connections to %s are rejected", s.Title(), s.destinations(false))})
		case s.Dropped:
			issues = append(issues, Issue{Text: fmt.Sprintf("%s has traffic policy Local and no endpoint on this node: connections to %s are dropped here", s.Title(), s.destinations(true))})
		}
	}
	return issues
}

// destinations are the addresses and the node port of a service port; under policy Local only those with
// this policy.
func (s *Service) destinations(local bool) string {
	var to []string
	add := func(is bool, format string, args ...any) {
		if is {
			to = append(to, fmt.Sprintf(format, args...))
		}
	}
	add(s.ClusterIP.IsValid() && (!local || s.InternalPolicy == decision.Local), "%s", netip.AddrPortFrom(s.ClusterIP, s.Port))
	if !local || s.ExternalPolicy == decision.Local {
		add(s.NodePort != 0, "node port %d", s.NodePort)
		for _, a := range s.addresses() {
			add(true, "%s", netip.AddrPortFrom(a, s.Port))
		}
	}
	if len(to) == 0 {
		return "it"
	}
	return strings.Join(to, ", ")
}
