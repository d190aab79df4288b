// Package kubechains simulates kube-proxy's iptables mode: the rules that it writes for a service
// table, and the walk of a packet through them. [Render] and [Walk] use the same rules, so they
// cannot differ; the tests check that [Walk] and decision.Decide do not differ either.
package kubechains

import (
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// Table is an iptables table.
type Table string

// The tables that kube-proxy writes to.
const (
	Mangle Table = "mangle"
	Filter Table = "filter"
	NAT    Table = "nat"
)

// The fixed chains (pkg/proxy/iptables/proxier.go).
const (
	Services         = "KUBE-SERVICES"
	ExternalServices = "KUBE-EXTERNAL-SERVICES"
	NodePorts        = "KUBE-NODEPORTS"
	ProxyFirewall    = "KUBE-PROXY-FIREWALL"
	Forward          = "KUBE-FORWARD"
	Firewall         = "KUBE-FIREWALL" // the kubelet's, which kube-proxy also makes
	MarkMasq         = "KUBE-MARK-MASQ"
	MarkDrop         = "KUBE-MARK-DROP" // until 1.27; the kubelet's
	Postrouting      = "KUBE-POSTROUTING"
	Canary           = "KUBE-PROXY-CANARY" // empty; by its absence kube-proxy notices that its rules were flushed
)

// Kernel is the properties of the node's kernel that kube-proxy's rules depend on; it checks them
// when it starts.
type Kernel struct {
	// NFAcct: the kernel has named counters (CONFIG_NETFILTER_NETLINK_ACCT). Rules with them
	// can be loaded once the counters [InvalidDropped] and [LocalhostAccepted] are there.
	NFAcct bool
	// TCPLiberal: net.netfilter.nf_conntrack_tcp_be_liberal is not 0. Out-of-window packets are
	// not INVALID then, and kube-proxy does not drop INVALID packets.
	TCPLiberal bool
}

// The counters of the rules that nfacct counts (pkg/proxy/metrics: ...NFAcctCounter).
const (
	InvalidDropped    = "ct_state_invalid_dropped_pkts" // packets dropped in KUBE-FORWARD
	LocalhostAccepted = "localhost_nps_accepted_pkts"   // first packets to node ports on 127.0.0.0/8
)

// localnet are the IPv4 loopback addresses.
var localnet = netip.MustParsePrefix("127.0.0.0/8")

// Rule is one rule. Its matches are in the order of iptables-save.
type Rule struct {
	Table   Table
	Chain   string
	Matches []iptables.Match
	Target  iptables.Target // nil: it only counts

	// rank is that of the claim to the address or node port that the rule is for, see
	// decision.Table.Rank.
	rank int
	// share is the part of the flows that its statistic match takes.
	share share
	// sentence returns one sentence about the effect of the rule; nil if the rule never appears in a
	// walk.
	sentence func(p *state, matched bool) string
}

// share is the part of the endpoint at position i of n. There is one random number for all rules of
// a chain: if those before it have failed, this one matches iff the number is in [i/n, (i+1)/n).
type share struct{ i, n int }

func (s share) has(draw float64) bool { return min(int(draw*float64(s.n)), s.n-1) == s.i }

// String prints the rule as iptables-save does, without "-A chain".
func (r *Rule) String() string {
	return strings.TrimPrefix(strings.TrimPrefix(r.line(), "-A "+r.Chain), " ")
}

func (r *Rule) line() string {
	return (&iptables.Rule{Chain: r.Chain, Args: iptables.Tokens(r.Matches, r.Target)}).String()
}

// inOrder sorts matches as iptables-save prints them: the source, the destination, devices, the
// protocol, and then extensions in the order of the rule.
func inOrder(matches []iptables.Match) []iptables.Match {
	place := func(m iptables.Match) int {
		switch m.(type) {
		case iptables.Source:
			return 0
		case iptables.Destination:
			return 1
		case iptables.InInterface:
			return 2
		case iptables.Protocol:
			return 3
		}
		return 4
	}
	slices.SortStableFunc(matches, func(a, b iptables.Match) int { return place(a) - place(b) })
	return matches
}

func source(p netip.Prefix) iptables.Match {
	return iptables.Source{Network: iptables.NetworkOf(p)}
}

func destination(p netip.Prefix) iptables.Match {
	return iptables.Destination{Network: iptables.NetworkOf(p)}
}

// host is the destination being one address.
func host(a netip.Addr) iptables.Match { return destination(hostPrefix(a)) }

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// pod is the local detector's match: the source being a pod, or with negated not one.
func pod(d *decision.Detector, f decision.Family, negated bool) iptables.Match {
	switch {
	case d.Bridge != "":
		return iptables.InInterface{Interface: iptables.Interface{Name: d.Bridge}, Negated: negated}
	case d.InterfacePrefix != "":
		return iptables.InInterface{Interface: iptables.Interface{Name: d.InterfacePrefix, Wildcard: true}, Negated: negated}
	}
	cidr, _ := d.CIDR(f)
	return iptables.Source{Network: iptables.NetworkOf(cidr), Negated: negated}
}

func protocol(p decision.Protocol) iptables.Match { return iptables.Protocol{Number: uint8(p)} }

func comment(text string) iptables.Match { return iptables.Comment{Text: text} }

// counter counts packets in nfacct, and matches them all.
func counter(name string) iptables.Match { return iptables.Accounting{Counter: name} }

// port is the destination port, 0: any, of a protocol's match extension.
func port(p decision.Protocol, number uint16) iptables.Match {
	all := iptables.Ports{Range: iptables.PortRange{First: 0, Last: 65535}}
	to := all
	if number != 0 {
		to.Range = iptables.PortRange{First: number, Last: number}
	}
	switch p {
	case decision.UDP:
		return iptables.UDP{Source: all, Destination: to}
	case decision.SCTP:
		return iptables.SCTP{Source: all, Destination: to}
	}
	return iptables.TCP{Source: all, Destination: to}
}

var local = iptables.Condition[iptables.AddrTypes]{Given: true, Value: iptables.AddrLocal}

// fromNode and toNode are the source and the destination being an address of the node.
func fromNode() iptables.Match { return iptables.Addrtype{Source: local} }
func toNode() iptables.Match   { return iptables.Addrtype{Destination: local} }

// statistic is the draw for a share: with the probability 1/(n-i), of which kube-proxy writes ten
// digits, and the kernel keeps 31 bits.
func statistic(s share) iptables.Match {
	given := math.Round(1/float64(s.n-s.i)*1e10) / 1e10
	return iptables.Statistic{Probability: uint32(math.Round(given * iptables.ProbabilityOne))}
}

// recent is a match of the list of clients that are bound to an endpoint: a lookup, or an addition.
func recent(s *decision.ServicePort, endpoint netip.AddrPort, set bool) iptables.Match {
	r := iptables.Recent{Mode: iptables.RecentSet, Name: s.EndpointChain(endpoint), Mask: allOnes(s.Family)}
	if !set {
		r.Mode, r.Seconds, r.Reap = iptables.RecentCheck, uint32(s.AffinitySeconds), true
	}
	return r
}

func allOnes(f decision.Family) netip.Addr {
	if f == decision.IPv6 {
		return netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	}
	return netip.MustParseAddr("255.255.255.255")
}

func inState(s iptables.States, negated bool) iptables.Match {
	return iptables.Conntrack{State: iptables.Condition[iptables.States]{Given: true, Negated: negated, Value: s}}
}

var (
	stateNew     = inState(iptables.StateNew, false)
	stateInvalid = inState(iptables.StateInvalid, false)
	stateKnown   = inState(iptables.StateRelated|iptables.StateEstablished, false)
	stateForeign = inState(iptables.StateRelated|iptables.StateEstablished|iptables.StateDNAT, true)
)

// marked is the masquerade mark being set, or with negated not.
func marked(mark uint32, negated bool) iptables.Match {
	return iptables.Mark{Mark: iptables.MaskedValue{Value: mark, Mask: mark}, Negated: negated}
}

func dnat(to netip.AddrPort) iptables.Target {
	return iptables.DNAT{To: iptables.NATRange{First: to.Addr(), Last: to.Addr(), FirstPort: to.Port(), LastPort: to.Port()}}
}

func jumpTo(chain string) iptables.Target { return iptables.Jump{Chain: chain} }
