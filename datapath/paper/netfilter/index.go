package netfilter

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// index finds the rules of a long chain that a packet may match, by the address or port that they
// name: chains of thousands of services have a rule for each. Only walks without steps use it, which
// need not know the rules that do not match.
type index struct {
	destination, source map[netip.Addr][]int32
	port                map[destinationPort][]int32
	others              []int32 // the rules that name none
}

type destinationPort struct {
	protocol uint8
	port     uint16
}

// indexed is the number of rules from which on a chain has an index.
const indexed = 24

// newIndex makes the index of a chain; nil: it is short.
func newIndex(rules []rule) *index {
	if len(rules) < indexed {
		return nil
	}
	x := &index{destination: make(map[netip.Addr][]int32), source: make(map[netip.Addr][]int32), port: make(map[destinationPort][]int32)}
	for i := range rules {
		x.add(int32(i), rules[i].matches())
	}
	return x
}

// add files a rule under the first of destination, source and port that it names. Generic matches are
// evaluated before all others, so that a packet with another address changes nothing at the rule; a
// port counts only where no match before it remembers packets.
func (x *index) add(i int32, matches []iptables.Match) {
	var source netip.Addr
	var protocol uint8
	for _, m := range matches {
		if isEffect(m) {
			break // what comes before it counts
		}
		switch m := m.(type) {
		case iptables.Destination:
			if a, ok := single(m.Network, m.Negated); ok {
				x.destination[a] = append(x.destination[a], i)
				return
			}
		case iptables.Source:
			source, _ = single(m.Network, m.Negated)
		case iptables.Protocol:
			if !m.Negated {
				protocol = m.Number
			}
		}
	}
	if source.IsValid() {
		x.source[source] = append(x.source[source], i)
		return
	}
	if port, ok := namedPort(matches); ok && protocol != 0 {
		at := destinationPort{protocol, port}
		x.port[at] = append(x.port[at], i)
		return
	}
	x.others = append(x.others, i)
}

// single is the one address that a match names.
func single(n iptables.Network, negated bool) (netip.Addr, bool) {
	p, ok := n.Prefix()
	if !ok || negated || !p.IsSingleIP() {
		return netip.Addr{}, false
	}
	return p.Addr(), true
}

// namedPort is the one destination port that matches name.
func namedPort(matches []iptables.Match) (port uint16, ok bool) {
	for _, m := range matches {
		ports := iptables.Ports{Negated: true}
		switch m := m.(type) {
		case iptables.TCP:
			ports = m.Destination
		case iptables.UDP:
			ports = m.Destination
		case iptables.SCTP:
			ports = m.Destination
		}
		if !ports.Negated && ports.Range.First == ports.Range.Last {
			return ports.Range.First, true
		}
		if iptables.Reads(m) != 0 {
			return 0, false
		}
	}
	return 0, false
}

// cursor goes through the rules of a chain that a packet may match, in their order.
type cursor struct {
	lists [4][]int32
	next  int // without an index
	end   int
}

// candidates are the rules of a chain that may match.
func (w *walk) candidates(c *chain) cursor {
	if !w.quiet || c.index == nil {
		return cursor{end: len(c.rules)}
	}
	p, x := &w.Packet, c.index
	return cursor{lists: [4][]int32{
		x.destination[p.Destination.Addr()], x.source[p.Source.Addr()],
		x.port[destinationPort{p.Protocol, p.Destination.Port()}], x.others,
	}}
}

// step is the position of the next rule; false: there is none.
func (c *cursor) step() (int, bool) {
	if c.end > 0 {
		c.next++
		return c.next - 1, c.next <= c.end
	}
	first, from := int32(-1), 0
	for i, list := range c.lists {
		if len(list) > 0 && (first < 0 || list[0] < first) {
			first, from = list[0], i
		}
	}
	if first < 0 {
		return 0, false
	}
	c.lists[from] = c.lists[from][1:]
	return int(first), true
}
