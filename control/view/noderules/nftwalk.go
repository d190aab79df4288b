package noderules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
)

// This file follows a flow through the chains of nftables.

// packetView is a packet as rules of a hook see it.
type packetView struct {
	hook                string
	protocol            decision.Protocol
	source, destination netip.AddrPort
	in, out             string // empty: not known
	reply               bool
}

// natPriority is the priority of the translation of destinations; sources are translated after all filters.
const natPriority = -100

// find follows the first packet of a flow and the reply.
func (n *nftables) find(f *Flow, network *netfilter.Host) (maybe *Dropped) {
	for _, reply := range []bool{false, true} {
		for _, hook := range hooksOf(f, network, reply) {
			for _, c := range n.base {
				if c.Hook != hook || !c.of(f.Destination.Addr()) {
					continue
				}
				v := &nftWalk{nftables: n, base: c, packetView: packetAt(f, hook, c.Prio, reply, network)}
				d := v.chain(c, 0)
				for _, found := range []*Dropped{d, v.maybe} {
					if found != nil {
						found.Reply = reply
					}
				}
				if d != nil {
					return d
				}
				maybe = cmp.Or(maybe, v.maybe)
			}
		}
	}
	return maybe
}

func (c *nftChain) of(a netip.Addr) bool {
	return c.Family == "inet" || a.Is4() && c.Family == "ip" || a.Is6() && c.Family == "ip6"
}

// hooksOf are the hooks that a packet of a flow passes on the host.
func hooksOf(f *Flow, network *netfilter.Host, reply bool) []string {
	from, to := f.Local, network.Has(f.Endpoint.Addr())
	if reply {
		from, to = to, f.Local || network.Has(f.Source.Addr())
	}
	path := []string{"prerouting"}
	if from {
		path = []string{"output"}
	}
	switch {
	case to && from:
		return []string{"output", "postrouting", "prerouting", "input"}
	case to:
		return append(path, "input")
	case !from:
		path = append(path, "forward")
	}
	return append(path, "postrouting")
}

// packetAt is the packet at a priority of a hook.
func packetAt(f *Flow, hook string, priority int, reply bool, network *netfilter.Host) packetView {
	s := packetView{hook: hook, protocol: f.Protocol, source: f.Source, destination: f.Endpoint, reply: reply}
	early := hook == "prerouting" || hook == "output"
	switch {
	case reply:
		s.source, s.destination = f.Endpoint, f.Source
		if early && priority < natPriority {
			s.destination = f.Seen
		}
	case early && priority < natPriority:
		s.destination = f.Destination
	}
	if hook != "output" {
		s.in = device(network, s.source.Addr())
	}
	if hook != "prerouting" && hook != "input" {
		s.out = device(network, s.destination.Addr())
	}
	return s
}

// device is the interface by which the host reaches an address; empty: not known.
func device(network *netfilter.Host, to netip.Addr) string {
	for _, r := range network.Routes {
		if r.Destination.IsSingleIP() && r.Destination.Addr() == to {
			return r.Interface
		}
	}
	return ""
}

// nftWalk is the way of a packet through one base chain.
type nftWalk struct {
	*nftables
	base *nftChain
	packetView
	accepted bool
	doubtful bool     // an earlier rule may accept it
	maybe    *Dropped // by chance
	full     string   // the set without room by which the packet came this far
}

// chain returns the drop of a packet in a chain; nil: there is none, or it is not known.
func (v *nftWalk) chain(c *nftChain, depth int) *Dropped {
	const deepest = 16 // NFT_JUMP_STACK_SIZE
	if c == nil || depth > deepest {
		v.accepted = true // not known
		return nil
	}
	for i := range c.rules {
		r := &c.rules[i]
		verdict, target, how := v.rule(c, r)
		if how == no {
			continue
		}
		switch verdict {
		case "drop", "reject":
			switch d := v.dropped(c, r, verdict == "reject", how == sometimes); {
			case how == unknown || v.doubtful:
			case how == yes:
				return d
			case v.maybe == nil:
				v.maybe = d
			}
			if how == yes {
				v.accepted = true // what follows does not see it
				return nil
			}
		case "accept":
			if how == yes {
				v.accepted = true
				return nil
			}
			v.doubtful = true
		case "jump", "goto":
			if how != yes {
				v.doubtful = true // the chain may accept it
				continue
			}
			if d := v.chain(v.all[c.named(target)], depth+1); d != nil || v.accepted {
				return d
			}
			if verdict == "goto" {
				return v.end(c, depth)
			}
		case "return":
			if how == yes {
				return v.end(c, depth)
			}
			v.doubtful = true
		case "?":
			v.accepted = true // such as a verdict map: what follows is not known
			return nil
		}
	}
	return v.end(c, depth)
}

// end is the policy, at the end of the base chain.
func (v *nftWalk) end(c *nftChain, depth int) *Dropped {
	if depth > 0 || c.Policy != "drop" || v.doubtful {
		return nil
	}
	return &Dropped{Drop: &Drop{Table: c.place(), Chain: c.Name}, Program: "nft", Text: "the policy drop of chain " + c.Name, Uncounted: true, Full: v.full}
}

func (v *nftWalk) dropped(c *nftChain, r *nftRule, rejects, chance bool) *Dropped {
	d := &Dropped{Drop: &Drop{Table: c.place(), Chain: c.Name, Rejected: rejects}, Program: "nft", Sometimes: chance, Uncounted: true, Full: v.full}
	d.Text = "rule " + cmp.Or(v.texts[nftRuleName{c.named(c.Name), strconv.Itoa(r.Handle)}], "with handle "+strconv.Itoa(r.Handle))
	d.Remove = fmt.Sprintf("nft delete rule %s %s handle %d", c.place(), c.Name, r.Handle)
	for _, e := range r.Expr {
		var counter struct{ Packets uint64 }
		if raw, ok := e["counter"]; ok && json.Unmarshal(raw, &counter) == nil {
			d.Uncounted, d.Packets = false, counter.Packets
		}
	}
	return d
}

// rule is the verdict of a rule, and whether the packet gets it; "?": one that cannot be followed.
func (v *nftWalk) rule(c *nftChain, r *nftRule) (verdict, target string, how truth) {
	how = yes
	for _, e := range r.Expr {
		for kind, raw := range e {
			t := yes
			switch kind {
			case "match":
				t = v.match(raw)
			case "set":
				t = v.update(c, raw)
			case "ct count", "limit":
				t = sometimes
			case "counter", "log", "mangle", "notrack", "comment", "last":
			case "accept", "drop", "reject", "return":
				return kind, "", how
			case "jump", "goto":
				var to struct{ Target string }
				if json.Unmarshal(raw, &to) != nil {
					return "?", "", how
				}
				return kind, to.Target, how
			case "vmap", "queue", "xt":
				return "?", "", how
			default:
				t = unknown
			}
			if t == no {
				return "", "", no
			}
			how = max(how, t)
		}
	}
	return "", "", how
}

// update adds the packet to a set, which ends the rule if it has no room.
func (v *nftWalk) update(c *nftChain, raw json.RawMessage) truth {
	var u struct{ Set string }
	if json.Unmarshal(raw, &u) != nil {
		return unknown
	}
	name := strings.TrimPrefix(u.Set, "@")
	s := v.sets[c.named(name)]
	if s == nil || s.Size == 0 || len(s.Elem) < s.Size {
		return yes
	}
	v.full = fmt.Sprintf("set %s has %d of %d elements", name, len(s.Elem), s.Size)
	return no
}

func (v *nftWalk) match(raw json.RawMessage) truth {
	var m struct {
		Op          string
		Left, Right json.RawMessage
	}
	if json.Unmarshal(raw, &m) != nil {
		return unknown
	}
	var left struct {
		Payload *struct{ Protocol, Field string }
		Meta    *struct{ Key string }
		CT      *struct{ Key string }
		Numgen  *struct{ Mode string }
	}
	if json.Unmarshal(m.Left, &left) != nil {
		return unknown
	}
	value := ""
	switch {
	case left.Numgen != nil:
		return sometimes
	case left.CT != nil && left.CT.Key == "state":
		value = "new"
		if v.reply {
			value = "established"
		}
	case left.Meta != nil:
		value = v.meta(left.Meta.Key)
	case left.Payload != nil:
		var other bool
		if value, other = v.payload(left.Payload.Protocol, left.Payload.Field); other {
			return no // the rule is about another protocol
		}
	}
	if value == "" {
		return unknown
	}
	t := contains(m.Right, value)
	if m.Op == "!=" && t != unknown {
		t = yes - t
	} else if m.Op != "==" && m.Op != "in" && m.Op != "!=" {
		return unknown
	}
	return t
}

func (v *nftWalk) meta(key string) string {
	switch key {
	case "l4proto":
		return strings.ToLower(v.protocol.String())
	case "nfproto":
		if v.source.Addr().Is4() {
			return "ipv4"
		}
		return "ipv6"
	case "protocol":
		if v.source.Addr().Is4() {
			return "ip"
		}
		return "ip6"
	case "iifname", "iif":
		return v.in
	case "oifname", "oif":
		return v.out
	}
	return ""
}

// payload is a field of a header; other: the packet has no such header.
func (v *nftWalk) payload(protocol, field string) (value string, other bool) {
	ip := "ip"
	if v.source.Addr().Is6() {
		ip = "ip6"
	}
	switch protocol {
	case "ip", "ip6":
		if protocol != ip {
			return "", true
		}
		switch field {
		case "saddr":
			return v.source.Addr().String(), false
		case "daddr":
			return v.destination.Addr().String(), false
		case "protocol", "nexthdr":
			return strings.ToLower(v.protocol.String()), false
		}
	case "tcp", "udp", "sctp", "th":
		if protocol != "th" && protocol != strings.ToLower(v.protocol.String()) {
			return "", true
		}
		switch field {
		case "sport":
			return strconv.Itoa(int(v.source.Port())), false
		case "dport":
			return strconv.Itoa(int(v.destination.Port())), false
		}
	case "icmp", "icmpv6":
		return "", true
	}
	return "", false
}

// contains reports whether the right side of a match has a value.
func contains(right json.RawMessage, value string) truth {
	var list []json.RawMessage
	if json.Unmarshal(right, &list) == nil {
		found := no
		for _, item := range list {
			switch contains(item, value) {
			case yes:
				return yes
			case unknown:
				found = unknown
			}
		}
		return found
	}
	var o struct {
		Set    []json.RawMessage
		Range  []json.RawMessage
		Prefix *struct {
			Addr string
			Len  int
		}
	}
	if json.Unmarshal(right, &o) == nil {
		switch {
		case o.Set != nil:
			all, _ := json.Marshal(o.Set) //nolint:errchkjson // it was JSON
			return contains(all, value)
		case o.Prefix != nil:
			p, err := netip.ParsePrefix(fmt.Sprintf("%s/%d", o.Prefix.Addr, o.Prefix.Len))
			a, err2 := netip.ParseAddr(value)
			if err != nil || err2 != nil {
				return unknown
			}
			return truthOf(p.Contains(a))
		case len(o.Range) == 2:
			return between(text(o.Range[0]), value, text(o.Range[1]))
		}
		return unknown
	}
	is := text(right)
	if is == "" || strings.HasPrefix(is, "@") {
		return unknown
	}
	if strings.HasSuffix(is, "*") {
		return truthOf(strings.HasPrefix(value, strings.TrimSuffix(is, "*")))
	}
	return truthOf(is == value)
}

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// between compares numbers or addresses.
func between(low, value, high string) truth {
	if v, err := strconv.Atoi(value); err == nil {
		l, err1 := strconv.Atoi(low)
		h, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil {
			return unknown
		}
		return truthOf(l <= v && v <= h)
	}
	v, err := netip.ParseAddr(value)
	l, err1 := netip.ParseAddr(low)
	h, err2 := netip.ParseAddr(high)
	if err != nil || err1 != nil || err2 != nil {
		return unknown
	}
	return truthOf(l.Compare(v) <= 0 && v.Compare(h) <= 0)
}

// text is a string or a number of JSON as text.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}
