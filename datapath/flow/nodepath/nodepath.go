// Package nodepath finds the nodes that the first packet of a connection passes, by their records.
//
// It is a ground package.
package nodepath

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// The reasons why a [Hop] has no record.
const (
	GapUnobserved = "not-observed"
	GapNoRecord   = "no-record"
)

// Hop is a node that the first packet of a connection passes.
type Hop struct {
	Node string
	// Record is the node's decision; nil: it has no known record.
	Record *flow.Record
}

// Outgoing returns the addresses of the packet after the node, which are those that the next node of its path sees.
// known is false if the kernel selects the port of a masqueraded source and has not reported it: then source has the
// port from before the translation, which the kernel keeps if it is free.
func Outgoing(r *flow.Record) (source, destination string, known bool) {
	destination = cmp.Or(r.Endpoint, r.Destination)
	switch {
	case r.Life != nil && r.Life.SeenSource != "":
		return r.Life.SeenSource, destination, true
	case !r.Masquerade:
		return r.Source, destination, true
	}
	address, err1 := netip.ParseAddr(r.MasqueradeAddress)
	from, err2 := netip.ParseAddrPort(r.Source)
	if err1 != nil || err2 != nil { // the kernel selects the address, too
		return r.Source, destination, false
	}
	return netip.AddrPortFrom(address, from.Port()).String(), destination, false
}

// EndsHere reports whether the packet goes no further than this node.
func EndsHere(r *flow.Record) bool {
	return r.Verdict != decision.Accept.String() && r.Verdict != decision.DNAT.String() || r.Conntrack == conntrack.Failed.String()
}

// Decider returns the record of the node that translates the connection's packets: r or one of r.Others. If no node
// does, it is that of the node that rejects or drops the packet, else r.
func Decider(r *flow.Record) *flow.Record {
	best := r
	for _, o := range r.Others {
		if best.Endpoint == "" && (o.Endpoint != "" || EndsHere(o) && !EndsHere(best)) {
			best = o
		}
	}
	return best
}

// Of returns the nodes of r and its Others in the order in which the first packet passes them.
// The addresses give the order, because the clocks of nodes differ. A node that the packet must
// pass, as the source or the endpoint is a pod there, is a hop without a record if it has none.
func Of(r *flow.Record) []Hop {
	middle := Decider(r)
	before := func(o *flow.Record) bool {
		source, destination, known := Outgoing(o)
		return known && !EndsHere(o) && source == middle.Source && destination == middle.Destination
	}
	rank := func(o *flow.Record) int {
		switch {
		case o == middle:
			return 1
		case before(o) && (middle.Endpoint != "" || EndsHere(middle) || earlier(o, middle)):
			return 0
		}
		return 2
	}
	all := append([]*flow.Record{r}, r.Others...)
	slices.SortStableFunc(all, func(a, b *flow.Record) int {
		if c := cmp.Compare(rank(a), rank(b)); c != 0 || a.Time == nil || b.Time == nil {
			return c
		}
		return a.Time.Compare(*b.Time)
	})
	var path []Hop
	first, last := all[0], all[len(all)-1]
	if first.SourcePod != "" && first.SourceNode != "" && first.SourceNode != first.Node && !first.Local {
		path = append(path, Hop{Node: first.SourceNode})
	}
	for _, o := range all {
		path = append(path, Hop{o.Node, o})
	}
	if middle.EndpointNode != "" && middle.EndpointNode != last.Node && !EndsHere(last) {
		path = append(path, Hop{Node: middle.EndpointNode})
	}
	return path
}

func earlier(a, b *flow.Record) bool { return a.Time != nil && b.Time != nil && a.Time.Before(*b.Time) }
