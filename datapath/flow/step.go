package flow

// StepOutcome is what a rule did to the packet.
type StepOutcome string

// The outcomes of a rule, and those of what happens between rules.
const (
	StepPassed  StepOutcome = "no-match" // the rule did not match
	StepJumped  StepOutcome = "jump"     // matched: the walk goes on in the rule's target chain
	StepMarked  StepOutcome = "mark"     // matched: the packet carries another mark from here on
	StepApplied StepOutcome = "match"    // matched: the rule's target did what it says
	StepPolicy  StepOutcome = "policy"   // a built-in chain ended: its policy decides
	StepRouted  StepOutcome = "route"    // no rule: the kernel looked for the way
	StepTracked StepOutcome = "track"    // no rule: connection tracking, or a translation it remembers
	StepUnknown StepOutcome = "unknown"  // it cannot be told whether the rule matches, or what it does
)

// Step is one rule that a packet met on its walk through rules: of kube-proxy's chains on paper,
// or of an iptables-save dump. The fields that are left out of JSON where they
// are empty are those of a walk through a dump.
type Step struct {
	// Hook is where in the kernel: PREROUTING, INPUT, FORWARD, OUTPUT or POSTROUTING.
	Hook    string      `json:"hook,omitempty"`
	Table   string      `json:"table"` // empty if Outcome is StepRouted or StepTracked
	Chain   string      `json:"chain"` // likewise
	Line    int         `json:"line,omitempty"`
	Rule    string      `json:"rule"` // as iptables-save prints it, without "-A chain"; empty where there is none
	Outcome StepOutcome `json:"outcome"`
	// Chance is how likely the outcome was, for a rule that draws; else 0.
	Chance float64 `json:"chance,omitempty"`
	// Count is the number of rules in a row that did not match, where they are told of
	// together: Line is that of the first then, and Rule is empty.
	Count int `json:"count,omitempty"`
	// Mark is the packet's mark after the step, "0x4000"; only where it changed.
	Mark string `json:"mark,omitempty"`
	Text string `json:"text"` // one plain sentence
}
