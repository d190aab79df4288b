// Package kubechains simulates kube-proxy's iptables mode: the rules that it writes for a service
// table, and the walk of a packet through them. [Render] and [Walk] use the same rules, so they
// cannot differ; the tests check that [Walk] and decision.Decide do not differ either.
package kubechains

import (
	"fmt"
	"math"
	"net/netip"
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

// Rule is one rule: its matches and its target. String prints it as iptables-save does, without
// "-A chain".
type Rule struct {
	Table Table
	Chain string

	matches []match
	target  target
	// rank is that of the claim to the address or node port that the rule is for, see
	// decision.Table.Rank.
	rank int
	// say returns one sentence about the effect of the rule; nil if the rule never appears in a
	// walk.
	say func(p *state, matched bool) string
}

// String prints matches and target in the order of iptables-save: see place.
func (r *Rule) String() string {
	var words []string
	say := func(s string) {
		if s != "" {
			words = append(words, s)
		}
	}
	for p := sourcePlace; p <= extensionPlace; p++ {
		for _, m := range r.matches {
			if m.place() == p {
				say(m.String())
			}
		}
	}
	say(r.target.String())
	return strings.Join(words, " ")
}

// match is one condition of a rule.
type match interface {
	String() string
	place() place
	matches(*state) bool
}

// place is the position of a match in the output of iptables-save, independent of its order in the
// rule. Matches of extensions come last, in their order.
type place uint8

const (
	sourcePlace place = iota
	destinationPlace
	interfacePlace
	protocolPlace
	extensionPlace
)

// state is a packet on its walk.
type state struct {
	*decision.Packet
	table  *decision.Table
	dst    netip.AddrPort // changed by DNAT
	marked bool
	dnat   bool
	d      *decision.Decision
	a      decision.Affinity
}

// not is the sign of an inverted match.
func not(inverted bool) string {
	if inverted {
		return "! "
	}
	return ""
}

type source struct {
	prefix   netip.Prefix
	inverted bool
}

func (m source) place() place { return sourcePlace }
func (m source) String() string {
	if m.prefix.Bits() == 0 && !m.inverted {
		return "" // iptables-save leaves out a match of any address
	}
	return fmt.Sprintf("%s-s %s", not(m.inverted), m.prefix)
}
func (m source) matches(s *state) bool { return m.prefix.Contains(s.Source.Addr()) != m.inverted }

type destination struct {
	prefix   netip.Prefix
	inverted bool
}

func (m destination) place() place          { return destinationPlace }
func (m destination) String() string        { return fmt.Sprintf("%s-d %s", not(m.inverted), m.prefix) }
func (m destination) matches(s *state) bool { return m.prefix.Contains(s.dst.Addr()) != m.inverted }

// host is the destination being one address.
func host(a netip.Addr) destination { return destination{prefix: hostPrefix(a)} }

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// pod is the local detector's match: the source being a pod, or not one.
type pod struct {
	detector *decision.Detector
	family   decision.Family
	inverted bool
}

func (m pod) place() place {
	if m.detector.Bridge != "" || m.detector.InterfacePrefix != "" {
		return interfacePlace
	}
	return sourcePlace
}

func (m pod) String() string        { return m.detector.Match(m.family, m.inverted) }
func (m pod) matches(s *state) bool { return m.detector.IsLocal(s.Packet) != m.inverted }

type protocol decision.Protocol

func (m protocol) place() place          { return protocolPlace }
func (m protocol) String() string        { return "-p " + decision.Protocol(m).Lower() }
func (m protocol) matches(s *state) bool { return s.Protocol == decision.Protocol(m) }

type comment string

func (m comment) place() place        { return extensionPlace }
func (m comment) String() string      { return "-m comment --comment " + quote(string(m)) }
func (m comment) matches(*state) bool { return true }

// quote quotes as iptables-save does (xtables' save_string): only what has other
// characters than letters, digits and these.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// port is the destination port, 0: any, of a protocol's match extension.
type port struct {
	protocol decision.Protocol
	number   uint16
}

func (m port) place() place { return extensionPlace }
func (m port) String() string {
	if m.number == 0 {
		return "-m " + m.protocol.Lower()
	}
	return fmt.Sprintf("-m %s --dport %d", m.protocol.Lower(), m.number)
}
func (m port) matches(s *state) bool {
	return s.Protocol == m.protocol && (m.number == 0 || s.dst.Port() == m.number)
}

// addrtype is the source or destination being an address of the node.
type addrtype struct{ source bool }

func (m addrtype) place() place { return extensionPlace }
func (m addrtype) String() string {
	if m.source {
		return "-m addrtype --src-type LOCAL"
	}
	return "-m addrtype --dst-type LOCAL"
}
func (m addrtype) matches(s *state) bool {
	if m.source {
		return s.table.IsLocal(s.Source.Addr())
	}
	return s.table.IsLocal(s.dst.Addr())
}

// statistic is the draw for the endpoint at position i of n. There is one random number for all
// rules of a chain: if those before it have failed, this one matches iff the number is in [i/n,
// (i+1)/n).
type statistic struct{ i, n int }

func (m statistic) place() place { return extensionPlace }

// String prints the probability 1/(n-i): kube-proxy writes ten digits, the kernel keeps a 31-bit
// fraction, and iptables-save prints eleven digits of it.
func (m statistic) String() string {
	given := math.Round(1/float64(m.n-m.i)*1e10) / 1e10
	return fmt.Sprintf("-m statistic --mode random --probability %.11f", math.Round(given*(1<<31))/(1<<31))
}

func (m statistic) matches(s *state) bool { return min(int(s.d.Draw*float64(m.n)), m.n-1) == m.i }

// recent is a match of the list of clients bound to an endpoint: a lookup, or an addition.
type recent struct {
	service  *decision.ServicePort
	endpoint netip.AddrPort
	set      bool
}

func (m recent) place() place { return extensionPlace }
func (m recent) String() string {
	mask := "255.255.255.255"
	if m.service.Family == decision.IPv6 {
		mask = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	list := fmt.Sprintf("--name %s --mask %s --rsource", m.service.EndpointChain(m.endpoint), mask)
	if m.set {
		return "-m recent --set " + list
	}
	return fmt.Sprintf("-m recent --rcheck --seconds %d --reap %s", m.service.AffinitySeconds, list)
}

func (m recent) matches(s *state) bool {
	return m.set || s.a != nil && s.a.Bound(m.service, m.endpoint, s.Source.Addr())
}

// fixed is a match that always has the same result, because a walk is that of the first packet of
// a new flow.
type fixed struct {
	text    string
	outcome func(*state) bool
}

func (m fixed) place() place          { return extensionPlace }
func (m fixed) String() string        { return m.text }
func (m fixed) matches(s *state) bool { return m.outcome(s) }

func always(*state) bool { return true }
func never(*state) bool  { return false }

var (
	stateNew     = fixed{"-m conntrack --ctstate NEW", always}
	stateInvalid = fixed{"-m conntrack --ctstate INVALID", never}
	stateKnown   = fixed{"-m conntrack --ctstate RELATED,ESTABLISHED", never}
	stateForeign = fixed{"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT", func(s *state) bool { return !s.dnat }}
)

// counter counts packets in nfacct, and matches them all. The second space is
// iptables-save's (nfacct_print_name, libxt_nfacct.c).
func counter(name string) match { return fixed{"-m nfacct --nfacct-name  " + name, always} }

// marked is the masquerade mark being set, or not.
func marked(mark uint32, inverted bool) match {
	return fixed{fmt.Sprintf("-m mark %s--mark %#x/%#x", not(inverted), mark, mark), func(s *state) bool { return s.marked != inverted }}
}

// target is the target of a rule.
type target struct {
	kind targetKind
	arg  string // a chain, or the target's options
	to   netip.AddrPort
}

type targetKind uint8

const (
	none       targetKind = iota // count only
	jump                         // continue in a chain, and return at its end
	verdict                      // ACCEPT, DROP, REJECT: the end
	ret                          // RETURN: back to the rule after the jump
	setMark                      // set the masquerade mark
	clearMark                    // clear it
	dnat                         // change the destination; the end of the table
	masquerade                   // change the source; the end of the table
)

func (t target) String() string {
	switch t.kind {
	case none:
		return ""
	case jump, verdict:
		return "-j " + t.arg
	case ret:
		return "-j RETURN"
	case setMark, clearMark:
		return "-j MARK " + t.arg
	case dnat:
		return "-j DNAT --to-destination " + t.to.String()
	}
	return "-j MASQUERADE --random-fully"
}

func jumpTo(chain string) target { return target{kind: jump, arg: chain} }
