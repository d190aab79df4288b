package audit

import (
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// readNative reads the services from the rules of a family that were made from a ruleset of nftables.
func readNative(d *iptables.Dump) *Node {
	family, prefix := decision.IPv4, "ip "
	if d.Family == iptables.IPv6 {
		family, prefix = decision.IPv6, "ip6 "
	}
	nodes := ReadNFTables(d.Ruleset)
	n := nodeOf(nodes, family)
	switch {
	case n == nil && nodes[0].Mode == proxymode.ModeNFTables: // the other family has all
		return &Node{Family: family}
	case n == nil:
		n = withoutNFTable(d.Ruleset)
		n.Family = family
	}
	if t := d.Table(prefix + "kube-proxy"); t != nil {
		for _, r := range t.Rules {
			n.owners[r] = ruleOwner{}
		}
	}
	return n
}

// nftPurpose is why kube-proxy wrote a rule in nftables mode that drops or rejects a packet (pkg/proxy/nftables/proxier.go).
func nftPurpose(r *iptables.Rule) Purpose {
	_, rejects := r.Target.(iptables.Reject)
	switch {
	case rejects:
		return NoEndpoints
	case strings.HasPrefix(r.Chain, "firewall-"):
		return OtherSource
	case strings.Contains(r.Text, "@no-endpoint-"):
		return NoneHere
	}
	return Protection
}
