// Package steps is the walk of a packet through rules, as it is told: the same for
// kube-proxy's chains on paper, for the rules of an iptables-save dump, and for the
// records that the daemon writes.
package steps

// Outcome is what a rule did to the packet.
type Outcome string

// The outcomes of a rule, and those of what happens between rules.
const (
	Passed  Outcome = "no-match" // the rule did not match
	Jumped  Outcome = "jump"     // matched: the walk goes on in the rule's target chain
	Marked  Outcome = "mark"     // matched: the packet carries another mark from here on
	Applied Outcome = "match"    // matched: the rule's target did what it says
	Policy  Outcome = "policy"   // a built-in chain ended: its policy decides
	Routed  Outcome = "route"    // no rule: the kernel looked for the way
	Tracked Outcome = "track"    // no rule: connection tracking, or a translation it remembers
	Unknown Outcome = "unknown"  // it cannot be told whether the rule matches, or what it does
)

// Step is one rule the packet met. The fields that are left out of JSON where they
// are empty are those of a walk through a dump.
type Step struct {
	// Hook is where in the kernel: PREROUTING, INPUT, FORWARD, OUTPUT or POSTROUTING.
	Hook    string  `json:"hook,omitempty"`
	Table   string  `json:"table"` // empty if Outcome is Routed or Tracked
	Chain   string  `json:"chain"` // likewise
	Line    int     `json:"line,omitempty"`
	Rule    string  `json:"rule"` // as iptables-save prints it, without "-A chain"; empty where there is none
	Outcome Outcome `json:"outcome"`
	// Chance is how likely the outcome was, for a rule that draws; else 0.
	Chance float64 `json:"chance,omitempty"`
	// Count is the number of rules in a row that did not match, where they are told of
	// together: Line is that of the first then, and Rule is empty.
	Count int `json:"count,omitempty"`
	// Mark is the packet's mark after the step, "0x4000"; only where it changed.
	Mark string `json:"mark,omitempty"`
	Text string `json:"text"` // one plain sentence
}
