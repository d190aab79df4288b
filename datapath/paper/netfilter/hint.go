package netfilter

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/parallel"
)

// hint is a rule split into the parts that describe its host. A host may have half a million rules: what few of them have is
// behind pointers.
type hint struct {
	*iptables.Rule
	table     string // of nftables: "nat" or "filter", by the type of the chains that lead to it
	*approach        // shared by the rules of a chain that add nothing to it
	*networks
	*rare
	protocol uint8
}

// networks are those that the packets are from and for; not valid: any.
type networks struct{ source, destination netip.Prefix }

// rare is the part of a hint that most rules do not have.
type rare struct {
	named         iptables.Naming      // what a set of the rule names; nil: it has none
	notIn, notOut string               // the devices that are not input or output of the packets
	devices       []iptables.Interface // all that the rule names
	notSource     netip.Prefix
	ports         []iptables.PortRange // which the rule matches as a destination; none: all
}

var (
	anyApproach = new(approach)
	anyNetworks = new(networks)
	nothingRare = new(rare)
)

// ownNetworks are those of the rule, to be changed.
func (h *hint) ownNetworks() *networks { return own(&h.networks, anyNetworks) }

// own is the rare part, to be changed.
func (h *hint) own() *rare { return own(&h.rare, nothingRare) }

// ownApproach is what the rule itself asks for, to be changed.
func (h *hint) ownApproach() *approach { return own(&h.approach, anyApproach) }

// own is a part of a hint that is not the shared one.
func own[T any](part **T, shared *T) *T {
	if *part == shared {
		*part = new(T)
	}
	return *part
}

// approach is the conditions for reaching a rule: the input and output devices of all its packets,
// as far as they are given in full, and the hooks.
type approach struct {
	in, out string
	here    bool // they are for the host itself: -m addrtype --dst-type LOCAL
	// bounded: a jump on the way names an address, a network or a device.
	bounded bool
	hooks   hooks
	nat     bool // a base chain of nftables of the type nat leads to it
}

// hooks is a set of hooks.
type hooks uint8

func only(h Hook) hooks         { return 1 << h }
func (s hooks) has(h Hook) bool { return s&only(h) != 0 }

// and returns the common conditions of two approaches.
func (a approach) and(b approach) approach {
	if a.hooks == 0 {
		return b
	}
	if a.in != b.in {
		a.in = ""
	}
	if a.out != b.out {
		a.out = ""
	}
	a.here = a.here && b.here
	a.nat = a.nat || b.nat
	a.bounded = a.bounded || b.bounded
	a.hooks |= b.hooks
	return a
}

// chainHints is what is known of a chain.
type chainHints struct {
	approach
	found bool // the approach is
	jumps []jumpHint
}

// jumpHint is a rule that leads to a chain, and the chain that it stands in.
type jumpHint struct {
	rule int
	from *chainHints
}

// hintsOf splits all rules.
func hintsOf(dumps []*iptables.Dump) []hint {
	rules := 0
	for _, d := range dumps {
		for _, t := range d.Tables {
			rules += len(t.Rules)
		}
	}
	hints := make([]hint, rules)
	left := hints
	for _, d := range dumps {
		for _, t := range d.Tables {
			of := left[:len(t.Rules)]
			left = left[len(t.Rules):]
			parallel.Chunks(len(of), func(from, to int) (nothing struct{}) {
				for i := from; i < to; i++ {
					of[i] = hintOf(t.Name, t.Rules[i])
				}
				return nothing
			})
			approachRules(t, of)
		}
	}
	return hints
}

// approachRules finds how packets come to the rules of a table.
func approachRules(t *iptables.Table, hints []hint) {
	all := make([]chainHints, 0, len(t.Chains)+len(hookNames)) // few chains are not declared
	chains := make(map[string]*chainHints, cap(all))
	of := func(name string) *chainHints {
		c := chains[name]
		if c == nil {
			if len(all) == cap(all) {
				all = make([]chainHints, 0, len(hookNames))
			}
			all = append(all, chainHints{})
			c = &all[len(all)-1]
			chains[name] = c
		}
		return c
	}
	in := make([]*chainHints, len(hints)) // the chain of each rule
	for i := range hints {
		h := &hints[i]
		if i > 0 && hints[i-1].Chain == h.Chain {
			in[i] = in[i-1]
		} else {
			in[i] = of(h.Chain)
		}
		lead := func(name string) {
			to := of(name)
			to.jumps = append(to.jumps, jumpHint{i, in[i]})
		}
		if name := h.Rule.JumpsTo(); name != "" {
			lead(name)
		} else if lookup, ok := h.Target.(iptables.NativeTarget); ok {
			for _, name := range lookup.Chains() {
				lead(name)
			}
		}
	}
	native := len(t.Rules) > 0 && t.Rules[0].Native
	if native {
		for _, c := range t.Chains {
			if c.Base != nil {
				to := of(c.Name)
				to.approach, to.found = approach{hooks: only(hookNamed(c.Base.Hook)), nat: c.Base.Type == "nat"}, true
			}
		}
	} else {
		for _, h := range []Hook{Prerouting, Input, Forward, Output, Postrouting} {
			to := of(h.String())
			to.approach, to.found = approach{hooks: only(h)}, true
		}
	}
	var to func(c *chainHints, depth int) approach
	to = func(c *chainHints, depth int) approach {
		if c.found {
			return c.approach
		}
		if depth > maxDepth {
			return approach{} // New refuses such rules
		}
		c.found = true // for chains in a loop
		var all approach
		for _, jump := range c.jumps {
			h := &hints[jump.rule]
			if a := h.within(to(jump.from, depth+1)); a.hooks != 0 {
				a.bounded = a.bounded || h.bounds()
				all = all.and(a)
			}
		}
		c.approach = all
		return all
	}
	for i := range hints {
		to(in[i], 0)
	}
	for i := range hints {
		h := &hints[i]
		if h.approach == anyApproach {
			h.approach = &in[i].approach
		} else {
			a := h.within(in[i].approach)
			h.approach = &a
		}
		switch {
		case !native:
		case h.nat:
			h.table = nat.String()
		default:
			h.table = filter.String()
		}
	}
}

// within returns the rule's approach in a chain with this approach.
func (h *hint) within(chain approach) approach {
	if h.in != "" {
		chain.in = h.in
	}
	if h.out != "" {
		chain.out = h.out
	}
	chain.here = chain.here || h.here
	return chain
}

// bounds reports whether the rule names an address, a network or a device.
func (h *hint) bounds() bool {
	return h.source.IsValid() || h.destination.IsValid() || h.notSource.IsValid() || len(h.devices) > 0
}

func hintOf(table string, r *iptables.Rule) hint {
	h := hint{Rule: r, table: table, approach: anyApproach, networks: anyNetworks, rare: nothingRare}
	name := func(n iptables.Naming) {
		if n != nil {
			rare := h.own()
			rare.named, rare.devices = n, append(rare.devices, n.Devices()...)
		}
	}
	name(iptables.Names(r.Target))
	for _, m := range r.Matches {
		switch m := m.(type) {
		case iptables.NativeMatch:
			name(iptables.Names(m))
		case iptables.Source:
			p, _ := m.Network.Prefix()
			if m.Negated {
				h.own().notSource = p
			} else {
				h.ownNetworks().source = p
			}
		case iptables.Destination:
			if p, ok := m.Network.Prefix(); ok && !m.Negated {
				h.ownNetworks().destination = p
			}
		case iptables.InInterface:
			if rare := h.own(); m.Negated {
				rare.notIn = exact(m.Interface)
			} else {
				h.ownApproach().in = exact(m.Interface)
			}
			h.devices = append(h.devices, m.Interface)
		case iptables.OutInterface:
			if rare := h.own(); m.Negated {
				rare.notOut = exact(m.Interface)
			} else {
				h.ownApproach().out = exact(m.Interface)
			}
			h.devices = append(h.devices, m.Interface)
		case iptables.Addrtype:
			if c := m.Destination; c.Given && !c.Negated && c.Value == iptables.AddrLocal {
				h.ownApproach().here = true
			}
		case iptables.Protocol:
			if !m.Negated {
				h.protocol = m.Number
			}
		case iptables.TCP:
			h.limitPorts(m.Destination)
		case iptables.UDP:
			h.limitPorts(m.Destination)
		case iptables.SCTP:
			h.limitPorts(m.Destination)
		case iptables.Multiport:
			if !m.Negated && m.Side == iptables.DestinationPorts {
				h.own().ports = m.Ports
			}
		}
	}
	return h
}

// limitPorts records ports unless they are all ports.
func (h *hint) limitPorts(p iptables.Ports) {
	if !p.Negated && (p.Range.First > 0 || p.Range.Last < 65535) {
		h.own().ports = []iptables.PortRange{p.Range}
	}
}

// serves reports whether the rule matches just this port of the host itself.
func (h *hint) serves(p *iptables.Packet) bool {
	return h.here && h.table == "nat" && h.protocol == p.Protocol && !h.destination.IsValid() &&
		slices.ContainsFunc(h.ports, func(r iptables.PortRange) bool { return r.Contains(p.Destination.Port()) })
}

// exact is the name of a device; empty if it is a wildcard.
func exact(i iptables.Interface) string {
	if i.Wildcard {
		return ""
	}
	return i.Name
}

// arrives reports whether the rule is for packets that arrive on the device, or on others of its
// kind, rather than on all.
func (h *hint) arrives(on string) bool {
	for _, m := range h.Matches {
		if m, ok := m.(iptables.InInterface); ok && !m.Negated && m.Interface.Matches(on) {
			return true
		}
	}
	return false
}

// targets reports whether the rule has a target of that name.
func (h *hint) targets(name string) bool {
	if t, ok := h.Target.(iptables.NativeTarget); ok {
		return name == "DNAT" && t.Translates()
	}
	return h.Target != nil && iptables.NameOf(h.Target) == name
}

// refuses reports whether the rule drops or rejects packets.
func (h *hint) refuses() bool { return h.Target == iptables.Drop || h.targets("REJECT") }

// wanted returns the single host address that the rule matches as a destination.
func (h *hint) wanted() (a netip.Addr, ok bool) {
	if !h.destination.IsValid() || !h.destination.IsSingleIP() {
		return a, false
	}
	a = h.destination.Addr()
	return a, !a.IsMulticast() && !a.IsUnspecified() && (!a.Is4() || a.As4()[3] != 255) // a broadcast
}

// behind returns the device that leads to a network according to the rule; empty: none. A rule
// that drops packets suggests the contrary: the network is not behind the device.
func (h *hint) behind() (device string, network netip.Prefix) {
	switch {
	case h.in != "" && ours(h.source) && !h.refuses():
		return h.in, h.source
	case h.out != "" && ours(h.destination) && !h.refuses():
		return h.out, h.destination
	case h.notOut != "" && h.source.IsValid() && h.targets("MASQUERADE"):
		return h.notOut, h.source
	case h.notIn != "" && h.source.IsValid() && h.refuses():
		return h.notIn, h.source
	}
	return "", netip.Prefix{}
}

// hidesBehind returns the device at which the rule hides other hosts behind the host's address,
// for all their destinations; empty: none.
func (h *hint) hidesBehind() string {
	if h.table != "nat" || h.destination.IsValid() || h.notSource.IsValid() || h.source.Addr().IsLoopback() ||
		!h.targets("MASQUERADE") && !h.targets("SNAT") && !h.targets("NETMAP") {
		return ""
	}
	for _, m := range h.Matches {
		if !slices.Contains([]string{"", "comment", "tcp", "udp", "policy"}, iptables.ModuleOf(m)) {
			return ""
		}
	}
	return h.out
}

// hides returns the address behind which the rule hides others at a device, or at all devices; not
// valid: it does not.
func (h *hint) hides(device string) netip.Addr {
	t, ok := h.Target.(iptables.SNAT)
	if !ok || h.destination.IsValid() || h.source.Addr() == dockerDNS || t.To.First != t.To.Last && t.To.Last.IsValid() || h.out != "" && h.out != device {
		return netip.Addr{}
	}
	return t.To.First
}

// intercepts reports whether the rule, of DNAT, takes packets for another host: those that a container sends to Docker's name server,
// and link-local ones, which are those for a cloud's metadata.
func (h *hint) intercepts(to netip.Addr) bool {
	t, ok := h.Target.(iptables.DNAT)
	return ok && t.To.First == dockerDNS || to.IsLinkLocalUnicast()
}

// dockerDNS is the address of Docker's name server in each container.
var dockerDNS = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// private reports whether the address is of those that are not routed in the internet (RFC 1918,
// 4193, 6598).
func private(a netip.Addr) bool {
	return a.IsPrivate() || netip.MustParsePrefix("100.64.0.0/10").Contains(a)
}

// nodePorts are the addresses of the host that a set of kube-proxy's mode nftables has (nodeport-ips).
func (h *hint) nodePorts() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		if h.named == nil || h.table != nat.String() || !forNodePorts(h.Rule) {
			return
		}
		for _, p := range h.named.Destinations() {
			if p.IsSingleIP() && !p.Addr().IsLoopback() && !yield(p.Addr()) {
				return
			}
		}
	}
}

// ruleAt is where the text has a rule: its line or, greater than all lines, the handle of a rule of JSON. 0: nowhere.
type ruleAt int64

const behindLines ruleAt = 1 << 40 // and the handle

func (p ruleAt) String() string {
	switch {
	case p == behindLines:
		return "a rule without a handle"
	case p > behindLines:
		return fmt.Sprintf("the rule with handle %d", int64(p-behindLines))
	}
	return fmt.Sprintf("line %d", int64(p))
}

func (h *hint) at() ruleAt {
	if h.Line == 0 {
		return behindLines + ruleAt(h.Handle)
	}
	return ruleAt(h.Line)
}
