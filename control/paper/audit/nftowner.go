package audit

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftproxy"
	"github.com/nfqproxy/nfqproxy/datapath/paper/proxymode"
)

// readNative reads the services from the rules of a family that were made from a ruleset of nftables.
func readNative(d *iptables.Dump) *Node {
	family, table := cmp.Or(d.Family, decision.IPv4), "ip "+nftproxy.Table
	if family == decision.IPv6 {
		table = "ip6 " + nftproxy.Table
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
	if t := d.Table(table); t != nil {
		foreign := n.foreignPlaces(d.Ruleset, table)
		at := make(map[string]int)
		for _, r := range t.Rules {
			if !foreign[nftPlace{r.Chain, at[r.Chain]}] {
				n.owners[r] = ruleOwner{}
			}
			at[r.Chain]++
		}
	}
	return n
}

// nftPlace is the place of a rule in its chain.
type nftPlace struct {
	chain string
	at    int
}

// foreignPlaces are the places of the rules in a table that kube-proxy does not write.
func (n *Node) foreignPlaces(ruleset *nftables.Ruleset, table string) map[nftPlace]bool {
	places := make(map[nftPlace]bool)
	for _, t := range ruleset.Tables {
		if string(t.Family)+" "+t.Name != table {
			continue
		}
		for _, c := range t.Chains {
			for i, r := range c.Rules {
				if n.foreign[r] {
					places[nftPlace{c.Name, i}] = true
				}
			}
		}
	}
	return places
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

// nftRefusals is Refusals in nftables mode: the rules are those that look up the maps of destinations without endpoints, and
// the one that rejects.
func (n *Node) nftRefusals() map[Destination]*iptables.Rule {
	var services, nodePorts, reject *iptables.Rule
	for r := range n.owners {
		_, rejects := r.Target.(iptables.Reject)
		switch {
		case rejects && r.Chain == nftproxy.RejectChain:
			reject = r
		case strings.Contains(r.Text, "@"+nftproxy.NoEndpointServices):
			services = r
		case strings.Contains(r.Text, "@"+nftproxy.NoEndpointNodePorts):
			nodePorts = r
		}
	}
	rules := make(map[Destination]*iptables.Rule)
	for _, s := range n.Services {
		add := func(a netip.Addr, port uint16, drops *iptables.Rule, dropped bool) {
			r := drops
			if s.Refused {
				r, dropped = reject, true
			}
			if dropped && r != nil && port != 0 {
				rules[Destination{a, port, s.Protocol}] = r
			}
		}
		external := s.Dropped && s.ExternalPolicy == decision.Local
		if s.ClusterIP.IsValid() {
			add(s.ClusterIP, s.Port, services, s.Dropped && s.InternalPolicy == decision.Local)
		}
		for _, a := range s.addresses() {
			add(a, s.Port, services, external)
		}
		add(netip.Addr{}, s.NodePort, nodePorts, external)
	}
	return rules
}
