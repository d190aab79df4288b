package hostnat

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/rules"
)

// Result is the effect of the rules.
type Result struct {
	// Rule is the rule that translates the source, or the one with an unknown effect, and Table
	// its table; nil: the source is unchanged.
	Rule  *rules.Rule
	Table string
	// Unknown is the reason why the effect on the source is unknown; empty: it is known.
	Unknown string
	// Masquerade: the source becomes an address of the output device; else, with a Rule, it
	// becomes Source.
	Masquerade bool
	Source     netip.Addr
	// FirstPort and LastPort bound the source port; 0 and 0: any.
	FirstPort, LastPort uint16
}

// Evaluator evaluates rules. It is not safe for concurrent use; the zero value is valid. It
// allocates nothing, unless the result is Unknown.
type Evaluator struct{ walk walk }

// maxRules bounds a walk: the kernel allows no loops, but chains may be reached many times.
const maxRules = 100_000

// walk is the way of one packet through the rules.
type walk struct {
	packet         Packet
	host           *Host
	mark, connmark rules.Bits
	// The packet's headers.
	network, transport header

	// doubt: it is not known whether the packet reaches this rule of the chain; ended: whether it
	// has left the table.
	doubt, ended bool
	visits       int
	result       Result // valid iff an exit is stopped
}

// exit is how the walk through a chain ended.
type exit uint8

const (
	returned exit = iota // also at the chain's end
	accepted
	stopped // with a result
)

// Evaluate returns the effect of the rules on the packet. r may be nil.
func (e *Evaluator) Evaluate(r *Ruleset, p Packet) Result {
	if r == nil {
		return Result{}
	}
	w := &e.walk
	*w = walk{packet: p, host: r.Host, mark: rules.Number(p.Mark), connmark: rules.Number(0)}
	w.writeHeaders()
	for _, t := range r.Tables[decision.FamilyOf(p.Endpoint.Addr())] {
		w.doubt, w.ended = false, false
		x := w.chain(t.Base)
		if x == returned && t.Base.Drops {
			x = w.stop(nil, "it drops the packet by its policy, which is not applied here")
		}
		if x == stopped {
			if w.result.Rule == nil && w.result.Unknown == "" {
				return Result{} // its own address already
			}
			w.result.Table = t.Name
			if w.result.Rule == nil {
				w.result.Rule = &rules.Rule{Chain: t.Base.Name}
			}
			return w.result
		}
	}
	return Result{}
}

// stop ends the walk: r's effect is unknown, or it is a translation already in w.result.
func (w *walk) stop(r *rules.Rule, why string) exit {
	w.result = Result{Rule: r, Unknown: why}
	return stopped
}

// Reasons why a rule's effect is unknown.
const (
	NotKnown = "it depends on data that is not known here"
	Drops    = "it drops or rejects the packet, which is not applied here"
)

// NotOurs is the reason why a translation to the address is not applied.
func NotOurs(a netip.Addr) string {
	return fmt.Sprintf("%s is no address of this host: entries with it would not be recognised as ours", a)
}

func (w *walk) chain(c *rules.Chain) exit {
	for _, r := range c.Rules {
		if w.visits++; w.visits > maxRules {
			return w.stop(r, fmt.Sprintf("the packet has met %d rules before", maxRules))
		}
		x, left := w.rule(r)
		if left {
			return x
		}
	}
	return returned
}

// rule evaluates one rule. left: the packet leaves the chain.
func (w *walk) rule(r *rules.Rule) (x exit, left bool) {
	maybe := false // a test of the rule is unknown
	for _, s := range r.Steps {
		verdict := rules.Verdict{}
		switch s := s.(type) {
		case rules.Test:
			switch s.Test(w) {
			case rules.False:
				return returned, false
			case rules.Unknown:
				maybe = true
			}
			continue
		case rules.Other:
			if !s.Harmless {
				return w.stop(r, NotKnown), true
			}
			continue
		case rules.SetMark:
			w.setMark(s, maybe || w.doubtful())
			continue
		case rules.NAT:
			if maybe || w.doubtful() {
				return w.stop(r, NotKnown), true
			}
			return w.translate(r, s), true
		case rules.Verdict:
			verdict = s
		case rules.VerdictMap:
			e, t := s.Set.Find(w, s.Key)
			switch t {
			case rules.False:
				return returned, false
			case rules.Unknown:
				return w.stop(r, NotKnown), true
			}
			verdict = e.Verdict
		}
		if verdict.Kind != rules.Continue {
			return w.verdict(r, verdict, maybe)
		}
	}
	return returned, false
}

func (w *walk) doubtful() bool { return w.doubt || w.ended }

// verdict is what follows from the rule's verdict, which the packet may have met or not if maybe.
func (w *walk) verdict(r *rules.Rule, v rules.Verdict, maybe bool) (x exit, left bool) {
	switch v.Kind {
	case rules.Accept:
		if maybe || w.doubtful() {
			w.ended = true
			return returned, !maybe
		}
		return accepted, true
	case rules.Drop:
		if maybe || w.doubtful() {
			return w.stop(r, NotKnown), true
		}
		return w.stop(r, Drops), true
	case rules.Return:
		w.doubt = w.doubt || maybe // the rest of this chain: who jumped here ends it
		return returned, !maybe
	case rules.Jump, rules.Goto:
		if v.Chain == nil {
			return w.stop(r, NotKnown), true
		}
		before := w.doubt
		w.doubt = before || maybe
		if x := w.chain(v.Chain); x != returned {
			return x, true
		}
		if v.Kind == rules.Goto {
			return returned, !maybe
		}
		w.doubt = before
	}
	return returned, false
}

// setMark changes a mark. What a rule sets that the packet may not have met is unknown.
func (w *walk) setMark(s rules.SetMark, doubt bool) {
	mark := &w.mark
	if s.Connection {
		mark = &w.connmark
	}
	b, present := s.To.Read(w)
	if !present || b.Size != 4 {
		b = rules.UnknownBits(4)
	}
	if doubt {
		for i := range b.Size { // known is what is the same with and without
			b.Known[i] &= mark.Known[i] & ^(b.Data[i] ^ mark.Data[i])
			b.Data[i] &= b.Known[i]
		}
	}
	*mark = b
}

// translate is the translation of the source. It stays as it is if that is what the rule asks for.
func (w *walk) translate(r *rules.Rule, n rules.NAT) exit {
	p, own := &w.packet, w.packet.Source.Addr()
	result := Result{Rule: r}
	ok := n.Kind == rules.SNAT || n.Kind == rules.Masquerade
	port := func(v rules.Value, otherwise uint16) uint16 {
		if v == nil {
			return otherwise
		}
		b, present := v.Read(w)
		if !present || !b.All() || b.Size < 2 {
			ok = false
		}
		return binary.BigEndian.Uint16(b.Data[:])
	}
	address := func(v rules.Value, otherwise netip.Addr) netip.Addr {
		if v == nil {
			return otherwise
		}
		b, present := v.Read(w)
		a, valid := netip.AddrFromSlice(b.Bytes())
		if !present || !valid || !b.All() || a.Is4() != own.Is4() {
			ok = false
			return otherwise
		}
		return a
	}
	result.FirstPort = port(n.FirstPort, 0)
	result.LastPort = port(n.LastPort, result.FirstPort)
	result.Masquerade = n.Kind == rules.Masquerade
	first := address(n.First, own)
	last := address(n.Last, first)
	inPorts := n.FirstPort == nil || result.FirstPort <= p.Source.Port() && p.Source.Port() <= result.LastPort
	switch {
	case !ok:
		return w.stop(r, NotKnown)
	case result.Masquerade:
		w.result = result
		return stopped
	case n.Netmap:
		result.Source = netmap(first, last, own)
	case !n.Fully && inPorts && !own.Less(first) && !last.Less(own), n.First == nil:
		result.Source = own // get_unique_tuple
	default:
		result.Source = Select(first, last, own, p.Endpoint.Addr(), 0, n.Persistent, false)
	}
	switch {
	case result.Source == own && inPorts:
		result = Result{}
	case !w.host.Has(result.Source):
		return w.stop(r, NotOurs(result.Source))
	}
	w.result = result
	return stopped
}
