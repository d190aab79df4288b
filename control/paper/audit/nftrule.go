package audit

import (
	"math"
	"net/netip"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/nftables"
)

// nftRule is a rule of nftables split into the parts of kube-proxy's rules.
type nftRule struct {
	*nftables.Rule
	source, destination network
	// sources are those of a set; notFrom: the rule matches all others.
	sources          []netip.Prefix
	notFrom          bool
	affinity         string            // the set that has the source; empty: none
	toSet            string            // the set that has the destination
	device           string            // of the input; empty: any
	notDevice        bool              // the input is another device
	protocol         decision.Protocol // 0: any
	port             uint16            // of the destination; 0: any
	fromNode, toNode bool              // fib type local
	connection       bool              // a state or status of the connection
	hairpin          string            // the set that has both addresses, the protocol and the port
	marked           uint32            // a bit of the mark that is tested
	unmarked         bool              // it has to be 0
	sets             uint32            // bits of the mark
	jump             string            // a chain, of jump or goto
	vmap             string            // the map that has the verdict
	verdict          nftables.VerdictKind
	draw             *draw
	to               netip.AddrPort // of the DNAT
	masquerades      bool
	updates          string // the set that gets the source
	// other is set if there is anything else.
	other bool
}

// draw is a random choice.
type draw struct {
	mod     uint64
	choices []choice
}

// choice is one outcome of a draw: a chain, or an endpoint.
type choice struct {
	count uint64 // of the numbers that lead to it
	chain string
	to    netip.AddrPort
}

func newNFTRule(of *nftables.Rule) *nftRule {
	r := &nftRule{Rule: of}
	for _, s := range of.Statements {
		r.add(s)
	}
	return r
}

// unconditional reports whether the rule matches every packet that reaches it.
func (r *nftRule) unconditional() bool {
	return !r.source.IsValid() && !r.destination.IsValid() && r.sources == nil && r.affinity == "" && r.toSet == "" && r.device == "" && r.protocol == 0 &&
		r.port == 0 && !r.fromNode && !r.toNode && !r.connection && r.marked == 0 && !r.other
}

// masquerade reports whether the rule has packets masqueraded: it sets the mark, or jumps to the chain that does.
func (r *nftRule) masquerade(markChain string) bool { return r.sets != 0 || r.jump == markChain }

// detects reports whether the rule tests whether the packet comes from a pod, and how.
func (r *nftRule) detects() (how detection, outside, ok bool) {
	switch {
	case r.device != "":
		name, prefix := strings.CutSuffix(r.device, "*")
		return detection{how: "iifname " + r.device, device: name, prefix: prefix}, r.notDevice, true
	case r.source.IsValid():
		return detection{how: "saddr " + r.source.Prefix.String(), podCIDR: r.source.Prefix}, r.source.not, true
	}
	return detection{}, false, false
}

func (r *nftRule) add(s nftables.Statement) {
	switch s := s.(type) {
	case nftables.Match:
		r.match(s)
	case nftables.Verdict:
		r.verdict, r.jump = s.Kind, s.Chain
		r.other = r.other || s.Rules != nil
	case nftables.VerdictMap:
		r.vmapOf(s)
	case nftables.Mangle:
		r.mangle(s)
	case nftables.NAT:
		r.nat(s)
	case nftables.SetStatement:
		if f, ok := s.Element.Key.(nftables.Payload); ok && s.Op == "update" && f.Field == "saddr" {
			r.updates = s.Set
			return
		}
		r.other = true
	case nftables.Reject, nftables.Counter: // somebody may have added a counter
	default:
		r.other = true
	}
}

func (r *nftRule) match(m nftables.Match) {
	not := m.Op == "!="
	switch left := m.Left.(type) {
	case nftables.Payload:
		r.field(left, m.Right, not)
	case nftables.Meta:
		switch value, isText := literal(m.Right); {
		case left.Key == "l4proto" && isText && !not:
			r.protocol = protocolOf(m.Right)
			r.other = r.other || r.protocol == 0
		case left.Key == "iifname" && isText:
			r.device, r.notDevice = value, not
		case left.Key == "mark":
			// nft takes the highest bits for a prefix: "meta mark != 0x00000000/1".
			p, _ := m.Right.(nftables.Prefix)
			zero, ok := numberOf(p.Address)
			r.marked, r.unmarked = ^uint32(0)<<(32-max(min(p.Length, 32), 0)), m.Op == "=="
			r.other = r.other || !ok || zero != 0
		default:
			r.other = true
		}
	case nftables.Fib:
		value, _ := literal(m.Right)
		isLocal := value == "local" || value == "2" // as nft -n prints it
		if left.Result != "type" || !isLocal || not || len(left.Flags) != 1 {
			r.other = true
			return
		}
		r.fromNode, r.toNode = r.fromNode || left.Flags[0] == "saddr", r.toNode || left.Flags[0] == "daddr"
	case nftables.CT:
		r.connection = true
		r.other = r.other || left.Key != "state" && left.Key != "status"
	case nftables.Binary:
		r.testMark(left, m)
	case nftables.Concat:
		set, ok := m.Right.(nftables.SetRef)
		r.hairpin = string(set)
		r.other = r.other || !ok
	default:
		r.other = true
	}
}

// field reads a match of a header's field.
func (r *nftRule) field(f nftables.Payload, right nftables.Expr, not bool) {
	isIP := f.Protocol == "ip" || f.Protocol == "ip6"
	set, isSet := right.(nftables.SetRef)
	prefixes, known := prefixesOf(right)
	switch {
	case isIP && f.Field == "saddr" && isSet && !not:
		r.affinity = string(set)
	case isIP && f.Field == "daddr" && isSet && !not:
		r.toSet = string(set)
	case isIP && f.Field == "saddr" && known:
		r.sources, r.notFrom = prefixes, not
		if len(prefixes) == 1 {
			r.source = network{prefixes[0], not}
		}
	case isIP && f.Field == "daddr" && known && len(prefixes) == 1:
		r.destination = network{prefixes[0], not}
	case f.Field == "dport" && !not:
		p, err := decision.ParseProtocol(f.Protocol)
		r.port = portOf(right)
		if r.port == 0 || err != nil && f.Protocol != "th" {
			r.other = true
			return
		}
		r.protocol = max(r.protocol, p)
	default:
		r.other = true
	}
}

// testMark reads "meta mark & 0x4000 != 0".
func (r *nftRule) testMark(left nftables.Binary, m nftables.Match) {
	bits, ok := numberOf(left.Right)
	value, ok2 := numberOf(m.Right)
	if !isMark(left.Left) || left.Op != "&" || !ok || !ok2 || value != 0 || m.Op != "==" && m.Op != "!=" {
		r.other = true
		return
	}
	r.marked, r.unmarked = uint32(bits), m.Op == "=="
}

// mangle reads "meta mark set meta mark | 0x4000".
func (r *nftRule) mangle(m nftables.Mangle) {
	value, isBinary := m.Value.(nftables.Binary)
	bits, ok := numberOf(value.Right)
	switch {
	case !isMark(m.Key) || !isBinary || !ok || !isMark(value.Left):
		r.other = true
	case value.Op == "|":
		r.sets = uint32(bits)
	default:
		r.other = r.other || value.Op != "^" // which clears them
	}
}

func (r *nftRule) nat(n nftables.NAT) {
	switch n.Kind {
	case "masquerade":
		r.masquerades = true
		return
	case "dnat":
		if m, ok := n.Address.(nftables.Map); ok {
			r.choose(m.Key, m.Data, func(v nftables.Expr) (c choice, ok bool) {
				c.to, ok = addrPortOf(v)
				return c, ok
			})
			return
		}
		if a, ok := addrOf(n.Address); ok && portOf(n.Port) != 0 {
			r.to = netip.AddrPortFrom(a, portOf(n.Port))
			return
		}
	}
	r.other = true
}

func (r *nftRule) vmapOf(s nftables.VerdictMap) {
	if set, ok := s.Data.(nftables.SetRef); ok {
		r.vmap = string(set)
		return
	}
	r.choose(s.Key, s.Data, func(v nftables.Expr) (choice, bool) {
		to, ok := leadsTo(v)
		return choice{chain: to}, ok
	})
}

// choose reads a random choice.
func (r *nftRule) choose(key, data nftables.Expr, outcome func(nftables.Expr) (choice, bool)) {
	n, random := key.(nftables.Numgen)
	set, ok := data.(nftables.AnonymousSet)
	if !random || !ok || n.Mode != "random" || n.Mod == 0 {
		r.other = true
		return
	}
	d := &draw{mod: n.Mod}
	for _, e := range set.Elements {
		c, ok := outcome(e.Value)
		low, high, isNumber := numbersOf(e.Key)
		if !ok || !isNumber {
			r.other = true
			return
		}
		low, end := max(low, n.Offset), min(high, math.MaxInt64)+1
		if end = min(end, n.Offset+n.Mod); low < end {
			c.count = end - low
			d.choices = append(d.choices, c)
		}
	}
	r.draw = d
}

// leadsTo is the chain of a jump or goto.
func leadsTo(v nftables.Expr) (string, bool) {
	to, ok := v.(nftables.Verdict)
	return to.Chain, ok && to.Chain != ""
}
