// Package kubechains simulates kube-proxy's iptables mode: the rules that it writes for a service
// table, and the walk of a packet through them. package kubesave and [Walk] use the same rules, so they
// cannot differ; the tests check that [Walk] and decision.Decide do not differ either.
//
// It is a ground package.
package kubechains

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
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

// Rule is one rule.
type Rule struct {
	Table Table
	Chain string

	matches []match // in the order of iptables-save
	target  target
	// rank is that of the claim to the address or node port that the rule is for, see
	// decision.Table.Rank.
	rank int
	// sentence returns one sentence about the effect of the rule; nil if the rule never appears in a
	// walk.
	sentence func(p *state, matched bool) string
}

// match is one condition.
type match struct {
	words string            // as iptables-save prints it
	place int               // among the conditions of iptables-save, see inOrder
	test  func(*state) bool // nil: every packet
}

// target is what a rule does.
type target struct {
	words string // as iptables-save prints it; empty: it only counts
	kind  targetKind
	chain string         // of a jump
	to    netip.AddrPort // of DNAT
	clear bool           // of a mark: it is taken away
}

type targetKind uint8

const (
	toNothing targetKind = iota
	toJump
	toAccept
	toDrop
	toReturn
	toReject
	toDNAT
	toMark
	toMasquerade
)

var (
	none         = target{}
	accept       = target{words: "-j ACCEPT", kind: toAccept}
	drop         = target{words: "-j DROP", kind: toDrop}
	goBack       = target{words: "-j RETURN", kind: toReturn}
	masquerading = target{words: "-j MASQUERADE --random-fully", kind: toMasquerade}
)

func jumpTo(chain string) target { return target{words: "-j " + chain, kind: toJump, chain: chain} }

func reject(with string) target {
	return target{words: "-j REJECT --reject-with " + with, kind: toReject}
}

func dnat(to netip.AddrPort) target {
	return target{words: "-j DNAT --to-destination " + to.String(), kind: toDNAT, to: to}
}

// setMark sets the masquerade mark, or takes it away.
func setMark(mark uint32, clear bool) target {
	t := target{words: fmt.Sprintf("-j MARK --set-xmark 0x%x/0x%[1]x", mark), kind: toMark, clear: clear}
	if clear {
		t.words = fmt.Sprintf("-j MARK --set-xmark 0x%x/0x0", mark)
	}
	return t
}

// String prints the rule as iptables-save does, without "-A chain".
func (r *Rule) String() string {
	words := make([]string, 0, len(r.matches)+1)
	for _, m := range r.matches {
		words = append(words, m.words)
	}
	if r.target.words != "" {
		words = append(words, r.target.words)
	}
	return strings.Join(words, " ")
}

// Places of conditions in the text of iptables-save; the modules come behind them, in the order of the
// rule.
const (
	sourcePlace = iota
	destinationPlace
	devicePlace
	protocolPlace
	modulePlace
)

func inOrder(matches []match) []match {
	slices.SortStableFunc(matches, func(a, b match) int { return a.place - b.place })
	return matches
}

// not negates a condition of one option, behind the words of its module.
func not(module string, m match) match {
	test := m.test
	m.words, m.test = module+"! "+m.words, func(s *state) bool { return !test(s) }
	return m
}

func source(p netip.Prefix) match {
	return match{words: "-s " + p.String(), place: sourcePlace, test: func(s *state) bool { return p.Contains(s.Source.Addr()) }}
}

func destination(p netip.Prefix) match {
	return match{words: "-d " + p.String(), place: destinationPlace, test: func(s *state) bool { return p.Contains(s.dst.Addr()) }}
}

// host is the destination being one address.
func host(a netip.Addr) match { return destination(hostPrefix(a)) }

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// pod is the local detector's match: the source being a pod, or with negated not one.
func pod(d *decision.Detector, f decision.Family, negated bool) match {
	var m match
	switch {
	case d.Bridge != "":
		m = match{words: "-i " + d.Bridge, place: devicePlace, test: func(s *state) bool { return s.InInterface == d.Bridge }}
	case d.InterfacePrefix != "":
		m = match{words: "-i " + d.InterfacePrefix + "+", place: devicePlace, test: func(s *state) bool { return strings.HasPrefix(s.InInterface, d.InterfacePrefix) }}
	default:
		cidr, _ := d.CIDR(f)
		m = source(cidr)
	}
	if negated {
		m = not("", m)
	}
	return m
}

func protocol(p decision.Protocol) match {
	return match{words: "-p " + p.Lower(), place: protocolPlace, test: func(s *state) bool { return s.Protocol == p }}
}

// comment is text with a space, a colon or a slash in it, which iptables-save puts in quotes.
func comment(text string) match {
	return match{words: fmt.Sprintf("-m comment --comment %q", text), place: modulePlace}
}

// counter counts packets in nfacct, and matches them all. (iptables-save writes two spaces.)
func counter(name string) match {
	return match{words: "-m nfacct --nfacct-name  " + name, place: modulePlace}
}

// port is the destination port, 0: any, of a protocol's match extension.
func port(p decision.Protocol, number uint16) match {
	m := match{words: "-m " + p.Lower(), place: modulePlace}
	if number != 0 {
		m.words += fmt.Sprintf(" --dport %d", number)
		m.test = func(s *state) bool { return s.dst.Port() == number }
	}
	return m
}

// fromNode and toNode are the source and the destination being an address of the node.
var (
	fromNode = match{words: "-m addrtype --src-type LOCAL", place: modulePlace, test: func(s *state) bool { return s.table.IsLocal(s.Source.Addr()) }}
	toNode   = match{words: "-m addrtype --dst-type LOCAL", place: modulePlace, test: func(s *state) bool { return s.table.IsLocal(s.dst.Addr()) }}
)

// statistic is the draw for the endpoint at position i of n: with the probability 1/(n-i), of which kube-proxy writes ten
// digits, and the kernel keeps 31 bits. There is one random number for all rules of a chain: if those before it have
// failed, this one matches iff the number is in [i/n, (i+1)/n).
func statistic(i, n int) match {
	const one = 1 << 31 // libxt_statistic.c
	given := math.Round(1/float64(n-i)*1e10) / 1e10
	words := fmt.Sprintf("-m statistic --mode random --probability %.11f", math.Round(given*one)/one)
	return match{words: words, place: modulePlace, test: func(s *state) bool { return min(int(s.draw*float64(n)), n-1) == i }}
}

// recent is a match of the list of clients that are bound to an endpoint: a lookup, or an addition.
func recent(s *decision.ServicePort, endpoint netip.AddrPort, set bool) match {
	mask := "255.255.255.255"
	if s.Family == decision.IPv6 {
		mask = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	where := fmt.Sprintf(" --name %s --mask %s --rsource", s.EndpointChain(endpoint), mask)
	if set {
		return match{words: "-m recent --set" + where, place: modulePlace}
	}
	words := fmt.Sprintf("-m recent --rcheck --seconds %d --reap%s", s.AffinitySeconds, where)
	return match{words: words, place: modulePlace, test: func(p *state) bool {
		return p.affinity != nil && p.affinity.Bound(s, endpoint, p.Source.Addr())
	}}
}

// inState is a state of the connection, which is new: a packet has that, or the one after its
// translation.
func inState(words string, test func(*state) bool) match {
	return match{words: "-m conntrack " + words, place: modulePlace, test: test}
}

var (
	stateNew     = inState("--ctstate NEW", func(*state) bool { return true })
	stateInvalid = inState("--ctstate INVALID", func(*state) bool { return false })
	stateKnown   = inState("--ctstate RELATED,ESTABLISHED", func(*state) bool { return false })
	stateForeign = inState("! --ctstate RELATED,ESTABLISHED,DNAT", func(s *state) bool { return !s.dnat })
)

// marked is the masquerade mark being set, or with negated not.
func marked(mark uint32, negated bool) match {
	m := match{words: fmt.Sprintf("--mark 0x%x/0x%[1]x", mark), place: modulePlace, test: func(s *state) bool { return s.marked }}
	if negated {
		return not("-m mark ", m)
	}
	m.words = "-m mark " + m.words
	return m
}
