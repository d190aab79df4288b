package audit

import (
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// rule is a rule split into the parts of kube-proxy's rules.
type rule struct {
	*iptables.Rule
	source, destination network
	in                  *iptables.InInterface // nil: any
	protocol            decision.Protocol     // 0: any
	port                uint16                // of the destination; 0: any
	comment             string
	statistic           *iptables.Statistic
	recent              *iptables.Recent
	counter             string // in nfacct; empty: none
	fromNode, toNode    bool   // addrtype LOCAL
	invalid             bool   // conntrack state INVALID
	// other is set if there are further matches, and unread if some are masked or lost.
	other, unread bool
	// hides: its target cannot be read.
	hides bool
	// unported: kube-proxy writes the rule with a port, which iptables did not print.
	unported bool
	jump     string // a chain; empty: the target is another one
	// entry is the kind of address that the rule is for; valid iff it is among the claims.
	entry decision.Entry
}

// network is a match of an address; the zero value is none.
type network struct {
	netip.Prefix
	not bool
}

// host returns the matched address, if it is a single one.
func (n network) host() (netip.Addr, bool) {
	return n.Addr(), n.IsValid() && n.IsSingleIP() && !n.not
}

// unconditional reports whether the rule matches every packet that reaches it.
func (r *rule) unconditional() bool {
	return !r.source.IsValid() && !r.destination.IsValid() && r.in == nil && r.protocol == 0 && r.port == 0 &&
		r.statistic == nil && r.recent == nil && !r.fromNode && !r.toNode && !r.other
}

// plain reports whether the rule has only conditions on addresses, protocol, port and device.
func (r *rule) plain() bool {
	return r.statistic == nil && r.recent == nil && !r.fromNode && !r.toNode && !r.other
}

// conditional reports whether the rule has a condition besides the protocol. A rule that adds to a list of -m recent has none
// by that.
func (r *rule) conditional() bool {
	sets := r.recent != nil && r.recent.Mode == iptables.RecentSet
	return r.source.IsValid() || r.destination.IsValid() || r.in != nil || r.port != 0 || r.statistic != nil ||
		r.recent != nil && !sets || r.fromNode || r.toNode || r.other
}

// selects reports whether the rule has a condition other than those by which a service selects an endpoint.
func (r *rule) selects() bool {
	of := *r
	of.statistic, of.recent = nil, nil
	return of.conditional()
}

func newRule(of *iptables.Rule) *rule {
	r := &rule{Rule: of, jump: of.JumpsTo()}
	for _, m := range of.Matches {
		r.add(m)
	}
	if target, unknown := of.Target.(iptables.UnknownTarget); unknown {
		r.unread, r.hides = true, target.Target == iptables.Unreadable
	}
	return r
}

// unsupported reports whether iptables printed "[unsupported revision]" for a match or target.
func unsupported(name string, args []iptables.Token) bool {
	for _, t := range args {
		name += t.Text
	}
	return strings.Contains(name, "[unsupported")
}

func (r *rule) add(m iptables.Match) {
	switch m := m.(type) {
	case iptables.Source:
		r.network(&r.source, m.Network, m.Negated)
	case iptables.Destination:
		r.network(&r.destination, m.Network, m.Negated)
	case iptables.InInterface:
		r.in = &m
	case iptables.Protocol:
		r.protocol = decision.Protocol(m.Number)
		r.other = r.other || m.Negated
	case iptables.TCP:
		r.ports(m.Source, m.Destination, m.Option.Given || m.Flags.Given)
	case iptables.UDP:
		r.ports(m.Source, m.Destination, false)
	case iptables.SCTP:
		r.ports(m.Source, m.Destination, m.Chunks.Given)
	case iptables.Comment:
		r.comment = m.Text
	case iptables.Statistic:
		r.statistic = &m
	case iptables.Recent:
		r.recent = &m
	case iptables.Addrtype:
		r.addrtype(m)
	case iptables.Conntrack:
		r.invalid = m.State.Given && !m.State.Negated && m.State.Value == iptables.StateInvalid
		r.other = true
	case iptables.Accounting:
		r.counter = m.Counter
	case iptables.UnknownMatch:
		_, err := decision.ParseProtocol(strings.ToUpper(m.Match))
		r.unported = err == nil
		r.other, r.unread = true, true
	default:
		r.other = true
	}
}

func (r *rule) network(to *network, n iptables.Network, not bool) {
	p, ok := n.Prefix()
	*to = network{p, not}
	r.other = r.other || !ok
}

func (r *rule) ports(source, destination iptables.Ports, more bool) {
	all := iptables.PortRange{First: 0, Last: 65535}
	if source.Range != all || source.Negated || destination.Negated || more {
		r.other = true
	}
	switch d := destination.Range; {
	case d.First == d.Last:
		r.port = d.First
	case d != all:
		r.other = true
	}
}

func (r *rule) addrtype(m iptables.Addrtype) {
	local := func(c iptables.Condition[iptables.AddrTypes]) bool {
		return c.Given && !c.Negated && c.Value == iptables.AddrLocal
	}
	r.fromNode, r.toNode = local(m.Source), local(m.Destination)
	r.other = r.other || m.LimitIn || m.LimitOut || m.Source.Given != r.fromNode || m.Destination.Given != r.toNode
}

// The kinds of chains that are a service port's own.
const (
	servicePrefix  = "KUBE-SVC-" // balances over all endpoints
	localPrefix    = "KUBE-SVL-" // balances over the node's own
	externalPrefix = "KUBE-EXT-" // for flows from outside; since 1.24
	xlbPrefix      = "KUBE-XLB-" // EXT and SVL of policy Local; until 1.23
	firewallPrefix = "KUBE-FW-"  // for load balancer IPs
	endpointPrefix = "KUBE-SEP-" // one endpoint
)

// serviceChain parses the name of a service port's chain, except those of endpoints.
func serviceChain(chain string) (kind, suffix string, ok bool) {
	for _, kind := range []string{servicePrefix, localPrefix, externalPrefix, xlbPrefix, firewallPrefix} {
		if suffix, ok := strings.CutPrefix(chain, kind); ok {
			return kind, suffix, true
		}
	}
	return "", "", false
}

// parseName reads "namespace/name:port". Before 1.14 or so a service port without a name
// had the colon, too.
func parseName(text string) (decision.ServicePortName, bool) {
	namespace, rest, ok := strings.Cut(text, "/")
	name, port, _ := strings.Cut(rest, ":")
	word := func(s string) bool {
		return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
	}
	if !ok || !word(namespace) || !word(name) || port != "" && !word(port) {
		return decision.ServicePortName{}, false
	}
	return decision.ServicePortName{Namespace: namespace, Name: name, Port: port}, true
}
