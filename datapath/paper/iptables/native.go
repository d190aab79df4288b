package iptables

import (
	"fmt"
	"net/netip"
)

// Native is a condition or an effect of a rule of nftables that iptables has no module for. Package nftrules makes them.
type Native interface {
	// Text is in nft's words.
	Text() string
	// Evaluate returns whether the rule goes on. An effect happens, and the rule goes on.
	Evaluate(*Context) Truth
	// Reads are the facts that it depends on; of an effect that other rules can see, FactShared.
	Reads() Facts
	// Effect reports whether it is one; Does is what it did with the packet, one sentence without a subject, or empty.
	Effect() bool
	Does(*Context) string
	// WhyNot is one sentence about why it is false, and WhyUnknown about why its result is not known.
	WhyNot(*Context) string
	WhyUnknown(*Context) string
}

// NativeMatch is a [Native] at its place in a rule. Those of a rule are evaluated in their order.
type NativeMatch struct{ Native }

func (NativeMatch) module() string { return "nftables" }

func (m NativeMatch) write(w *words)            { w.bare(m.Text()) }
func (m NativeMatch) test(c *Context) Truth     { return m.Evaluate(c) }
func (m NativeMatch) reads() Facts              { return m.Reads() }
func (m NativeMatch) whyNot(c *Context) string  { return m.WhyNot(c) }
func (m NativeMatch) unknown(c *Context) string { return m.WhyUnknown(c) }

// Lookup is a target of nftables that depends on the packet: a verdict map, or a translation to what a map has.
type Lookup interface {
	// Text is in nft's words.
	Text() string
	// Find returns the target for a packet, nil if the packet goes on with the next rule: False if there is none, so that the
	// rule ends. It may draw at random. by is the element that has it, in words; nil: there is nothing to say.
	Find(*Context) (t Target, by fmt.Stringer, result Truth)
	// WhyNot is one sentence about a result that is not True.
	WhyNot(*Context) string
	// Translates reports whether it is a translation of the destination.
	Translates() bool
	// Chains are the names of all chains that it may lead to.
	Chains() []string
}

// Naming is implemented by conditions and lookups with a set.
type Naming interface {
	// Sources are the networks of sources that the set has, Destinations those of destinations, and Devices the devices.
	Sources() []netip.Prefix
	Destinations() []netip.Prefix
	Devices() []Interface
}

// Names is the set of a condition or a target; nil: it has none, or is negated.
func Names(of any) Naming {
	switch of := of.(type) {
	case NativeMatch:
		n, _ := of.Native.(Naming)
		return n
	case NativeTarget:
		n, _ := of.Lookup.(Naming)
		return n
	}
	return nil
}

// NativeTarget is a [Lookup] as the target of a rule.
type NativeTarget struct{ Lookup }

func (t NativeTarget) name() string   { return t.Text() }
func (t NativeTarget) write(w *words) {}

// Synproxy is nftables' synproxy for a packet that it answers.
type Synproxy struct{}

func (Synproxy) name() string   { return "synproxy" }
func (Synproxy) write(w *words) {}

// Base is what makes a chain of nftables a base chain.
type Base struct {
	Type     string // "filter", "nat" or "route"
	Hook     string // "prerouting", "input", "forward", "output" or "postrouting"
	Priority int32
}
