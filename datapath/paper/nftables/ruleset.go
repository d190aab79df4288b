// Package nftables is the text of nftables rulesets: [Read] reads what nft list ruleset prints, as text or as
// JSON, and files written by hand; [Ruleset.WriteTo] prints a ruleset as nft does.
//
// The abstract syntax is that of libnftables-json(5), so that the text and the JSON of a ruleset give the same
// values. Symbolic constants (services, ICMP types, states) stay the words that they are. What a rule does with a
// packet is not this package's subject.
//
// # Text and JSON
//
// They differ where nft does. Only the text has:
//   - the text of rules, comments on how many elements a set has, and the warning in front of a table of iptables-nft;
//   - fractions of seconds, and of [Last] whether it was used;
//   - the spelling of what can be written in two ways: [Match.Slash], [NAT.Spelled], [Queue.To], [Fib.Check], [Limit.Implied], [Reject.Typed],
//     [Base.PriorityText], [Ruleset.Joined], [Ruleset.Seconds], and numbers such as 0x00000010. Numbers of JSON are written as
//     nft writes those of their type in text; compare them with [Literal.Number];
//   - whether the values of an empty map are intervals, and the expression behind typeof of a map's values, which JSON
//     has as the name of their type;
//   - what nft makes of the extensions of iptables-nft, in words that it does not print otherwise. JSON has them as [XT].
//
// The JSON of nft 1.0.6 lacks more: comments of tables and chains, devices of hooks, the flag "dynamic", "auto-merge", the
// statements of sets, all but the first statement of an element, and expressions behind typeof.
package nftables

import "time"

// Ruleset is what a file or a listing declares.
type Ruleset struct {
	Tables []*Table
	// Seconds is set if times are numbers of seconds, as nft -T prints them: 3600s and not 1h.
	Seconds bool
	// Joined is set if lines have several elements of maps, or of sets whose elements have comments, timeouts or counters, as
	// nft before 1.1 prints them.
	Joined bool
}

// BelowNetwork reports whether a table's chains are at hooks of bridges and devices, which packets pass before or after those of the
// network layer.
func BelowNetwork(t *Table) bool { return t.Family == FamilyBridge || t.Family == FamilyNetdev }

// Table is all that stands in one table. A table that is listed twice is one.
type Table struct {
	Position
	Family Family
	Name   string
	Handle uint64   // 0: not known
	Flags  []string // "dormant", "owner", "persist"
	// Comment is the comment that is part of the table; see also Warning.
	Comment string
	// Warning is the comment in front of a table that nft prints for those of iptables-nft: "Warning: table ip nat is
	// managed by iptables-nft, do not touch!".
	Warning    string
	Chains     []*Chain
	Sets       []*Set
	Objects    []*Object
	Flowtables []*Flowtable
}

// Family is the family of a table, or of an address.
type Family string

// The families of tables.
const (
	FamilyIP     Family = "ip"
	FamilyIP6    Family = "ip6"
	FamilyINet   Family = "inet"
	FamilyARP    Family = "arp"
	FamilyBridge Family = "bridge"
	FamilyNetdev Family = "netdev"
)

func isFamily(word string) bool {
	switch Family(word) {
	case FamilyIP, FamilyIP6, FamilyINet, FamilyARP, FamilyBridge, FamilyNetdev:
		return true
	}
	return false
}

// Chain is a chain with its rules.
type Chain struct {
	Position
	Name    string
	Handle  uint64
	Comment string
	Flags   []string // "offload"
	Base    *Base    // nil: packets come by jump and goto only
	Rules   []*Rule
}

// Base is how a base chain is attached to the packet path.
type Base struct {
	Type     string // "filter", "nat", "route"
	Hook     string
	Priority int32 // names such as dstnat are resolved, by family
	// PriorityText is the priority as it stands: "filter - 10". Empty in JSON; nft's versions have different names.
	PriorityText string
	Devices      []string // of the hooks ingress and egress
	Policy       string   // "accept" or "drop"; empty: not given, which means accept
}

// Rule is one rule.
type Rule struct {
	Position
	Handle uint64
	// Text is the rule as it stands, without its handle; empty if it was read from JSON: see [Rule.String].
	Text       string
	Comment    string
	Statements []Statement
}

// Set is a named set or map.
type Set struct {
	Position
	Name    string
	Handle  uint64
	Comment string
	Key     Type
	Map     bool
	Value   Type // of a map: data, "verdict", or a kind of objects such as "counter"
	Meter   bool // nft lists it as a meter
	// Flags are of "constant", "interval", "dynamic", "timeout", in this order; a Timeout implies the last.
	Flags      []string
	Timeout    time.Duration // of elements that have none of their own
	GCInterval time.Duration
	Size       uint64 // 0: not given
	Count      uint64 // how many elements nft counts, if it prints that in a comment
	Policy     string // "memory" or "performance"; empty: not given
	AutoMerge  bool
	Statements []Statement // those that each new element gets
	Elements   []Element
}

// Type is the type of keys or values: by name, or as that of an expression.
type Type struct {
	Names    []string // one, or those of a concatenation; nil with Of
	Of       Expr     // after typeof
	Interval bool     // of the values of a map: each is a range
}

// Element is an element of a set or map, named or anonymous.
type Element struct {
	Key        Expr // a value, Prefix, Range, Concat of those, or Wildcard
	Value      Expr // of a map: a value, or a Verdict; nil in sets
	Line       int  // of the file, counted from 1; 0: unknown
	Timeout    time.Duration
	Expires    time.Duration
	Comment    string
	Statements []Statement
}

// Flowtable is a table of connections that bypass the chains.
type Flowtable struct {
	Position
	Name     string
	Handle   uint64
	Hook     string
	Priority int32
	Devices  []string
	Flags    []string // "offload"
	Counter  bool
}

// Object is a named stateful object.
type Object struct {
	Position
	Kind    string // "counter", "quota", "limit", "ct helper", "ct timeout", "ct expectation", "synproxy", "secmark"; or unknown
	Name    string
	Handle  uint64
	Comment string
	// Body is a [Counter], [Quota], [Limit], [CTHelper], [CTTimeout], [CTExpectation], [Synproxy], [Secmark] or [Unknown].
	Body ObjectBody
}
