package netfilter

import (
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
)

// SourceNAT computes the effect of a machine's rules of nat POSTROUTING on the first packets of
// connections whose destinations another program has translated. It keeps no state, makes no
// random choices, and knows only the fields of [Translated]: rules that depend on more, or on the
// sockets of the host, have an unknown result. It allocates nothing, and is not safe for
// concurrent use. The zero value is valid.
type SourceNAT struct {
	walk   walk
	result Result
	entry  Entry
	state  State
	work   Work
}

// Translated is the first packet of such a connection, as it reaches POSTROUTING. Its length, TCP
// options, chunks, frame and bridge ports are ignored.
type Translated struct {
	iptables.Packet // with the translated destination
	// Original is the original destination.
	Original netip.AddrPort
	// Out is the output device.
	Out string
}

// SourceResult is the result of a SourceNAT.
type SourceResult struct {
	// Rule is the rule that translates the source, or the one with an unknown result; nil: the
	// source is unchanged.
	Rule *iptables.Rule
	// Unknown: the result of Rule is unknown. With neither this nor a translation, Rule drops or
	// rejects the packet.
	Unknown bool
	// Masquerade: the source becomes an address of Out, as MASQUERADE selects it; else, with a
	// Rule, it becomes Source.
	Masquerade bool
	Source     netip.Addr
	// Ports is the range for the source port; 0 to 0: any.
	Ports iptables.PortRange
}

// Evaluate evaluates one machine.
func (j *SourceNAT) Evaluate(m *Machine, p *Translated) SourceResult {
	for _, b := range m.hooks.nat[Postrouting] {
		if b.chain == nil || len(b.chain.rules) == 0 {
			continue
		}
		if r := j.evaluate(m, b.chain, p); r != (SourceResult{}) {
			return r
		}
	}
	return SourceResult{}
}

// evaluate evaluates the POSTROUTING chain of one back end.
func (j *SourceNAT) evaluate(m *Machine, c *chain, p *Translated) SourceResult {
	j.entry = Entry{
		Connection: iptables.Connection{Original: p.Packet.Tuple(), DNAT: p.Original != p.Destination, DestinationDone: true},
	}
	j.entry.Reply = inverse(j.entry.Original)
	j.entry.Original.Destination = p.Original
	j.result, j.work = Result{}, Work{Visits: sourceVisits, Steps: 1}
	passed := j.walk.passed[:0]
	j.walk = walk{
		machine: m, state: &j.state, result: &j.result, work: &j.work, Context: iptables.Context{Packet: p.Packet, In: p.InInterface, Out: p.Out, Host: &j.walk}, hook: Postrouting,
		connection: connection{entry: &j.entry}, tracking: TrackingNew, tracked: true, passed: passed,
		quiet: true, sourceOnly: true,
	}
	w := &j.walk
	if w.chain(c, 0) == ended {
		return SourceResult{Rule: j.result.By, Unknown: j.result.Verdict == Stopped}
	}
	r := w.sourceRule
	if r == nil {
		return SourceResult{}
	}
	return w.sourceResult(r)
}

// Translates reports whether a chain of the nat table that the hook leads to has a rule that
// translates, or may do so.
func (m *Machine) Translates(h Hook) bool {
	return slices.ContainsFunc(m.hooks.nat[h], func(b base) bool {
		return b.chain != nil && translates(b.chain, make(map[*chain]bool))
	})
}

func translates(c *chain, seen map[*chain]bool) bool {
	seen[c] = true
	for _, r := range c.rules {
		switch r.Target.(type) {
		case iptables.SNAT, iptables.DNAT, iptables.Masquerade, iptables.Redirect, iptables.Netmap, iptables.UnknownTarget:
			return true
		}
		if r.jump != nil && !seen[r.jump] && translates(r.jump, seen) {
			return true
		}
	}
	return false
}

// sourceResult returns the source as translated by the rule.
func (w *walk) sourceResult(r *iptables.Rule) SourceResult {
	j := SourceResult{Rule: r}
	switch t := r.Target.(type) {
	case iptables.Masquerade:
		j.Masquerade = true
		j.Ports = iptables.PortRange{First: t.To.FirstPort, Last: t.To.LastPort}
	case iptables.SNAT:
		j.Source = w.Packet.Source.Addr()
		// A source that is within the range stays (get_unique_tuple).
		if t.To.First.IsValid() && (t.To.RandomFully || !within(w.Packet.Source, t.To, t.To.First, t.To.Last)) {
			j.Source = w.choose(sourceSide, inverse(w.entry.Reply), t.To, t.To.First, t.To.Last)
		}
		j.Ports = iptables.PortRange{First: t.To.FirstPort, Last: t.To.LastPort}
	case iptables.Netmap:
		j.Source = netmap(t.To, w.Packet.Source.Addr())
	default:
		j.Unknown = true
	}
	return j
}

// needsMore reports whether a match depends on facts that a SourceNAT does not have. What sent a
// packet is known of one that was forwarded, and its frame and bridge ports of a local one: there
// are none.
func (w *walk) needsMore(m iptables.Match) bool {
	known := iptables.FactSender | iptables.FactOwner
	if w.Packet.Local {
		known = iptables.FactMAC | iptables.FactBridge
	}
	return iptables.Reads(m)&^known != 0
}
