package netfilter

import (
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// RoutingRule is a rule of ip rule: the packets that it selects are routed by a table.
type RoutingRule struct {
	Not      bool                 // it selects all other packets
	From, To netip.Prefix         // not valid: any
	In       string               // the input device, lo for packets of the host itself; empty: any
	Mark     iptables.MaskedValue // the mask 0: any
	Table    string               // "main", "local", or one of [Host.Tables]; empty: there is one route, of Type
	MinBits  int                  // of routes that count (suppress_prefixlength, plus 1)
	Type     RouteType
	Priority int // without a Table: names the rule; 0: not known
}

const mainTable, localTable = "main", "local"

// TableName is the name of a routing table for what ip prints of it; empty: main.
func TableName(text string) string {
	if name, ok := map[string]string{"": mainTable, "253": "default", "254": mainTable, "255": localTable}[text]; ok {
		return name
	}
	return text
}

// flowKey is what routes are looked up by (struct flowi4).
type flowKey struct {
	from, to netip.Addr // from may be missing
	in       string
	mark     uint32
}

// selects is fib_rule_match (net/core/fib_rules.c).
func (r *RoutingRule) selects(k *flowKey) bool {
	return r.Not != ((!r.From.IsValid() || r.From.Contains(k.from)) && (!r.To.IsValid() || r.To.Contains(k.to)) &&
		(r.In == "" || r.In == k.in) && r.Mark.Equals(k.mark))
}

// lookup is fib_lookup: the route of the first rule that has one.
func (n *network) lookup(k flowKey) Route {
	for i := range n.rules {
		if r := &n.rules[i]; r.selects(&k) {
			if found := n.routeIn(r, k.to); found.Type != NoRoute && found.Destination.Bits() >= r.MinBits {
				return found
			}
		}
	}
	return Route{Destination: alone(k.to), Type: NoRoute}
}

// routeIn is the route of a rule to an address, which may be of type NoRoute.
func (n *network) routeIn(r *RoutingRule, to netip.Addr) Route {
	found := Route{Destination: alone(to), Type: NoRoute, Interface: loopbackName}
	switch {
	case r.Table == "":
		found.Type, found.Rule = r.Type, r.Priority
	case r.Table != localTable:
		for _, route := range n.tables[r.Table] {
			if !route.Destination.Contains(to) {
				continue
			}
			if r.Table != mainTable {
				route.Table = r.Table
			}
			return route
		}
	case n.isLocal(to):
		found.Type = Local
	case n.isBroadcast(to):
		found.Type, found.Interface = Broadcast, n.broadcast[to]
	}
	return found
}

// routeOf is the route of the packet.
func (w *walk) routeOf() Route {
	p, in := &w.Packet, w.In
	if in == "" {
		in = loopbackName
	}
	return w.machine.network.lookup(flowKey{p.Source.Addr(), p.Destination.Addr(), in, p.Mark})
}

// back is the route to the packet's source, as a reverse path filter looks it up; out is the device that the packet leaves by,
// empty: none.
func (w *walk) back(out string) Route {
	mark := uint32(0)
	if w.machine.network.SourceMarks {
		mark = w.Packet.Mark
	}
	return w.machine.network.back(w.Packet.Source.Addr(), w.Packet.Destination.Addr(), out, mark)
}

// back is the route to the source of packets (__fib_validate_source).
func (n *network) back(from, to netip.Addr, out string, mark uint32) Route {
	if out == "" {
		out = loopbackName
	}
	return n.lookup(flowKey{to, from, out, mark})
}
