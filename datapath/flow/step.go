package flow

// StepOutcome is the effect of a rule on the packet.
type StepOutcome string

// The outcomes of a rule, and of steps between rules.
const (
	StepPassed  StepOutcome = "no-match" // the rule did not match
	StepJumped  StepOutcome = "jump"     // matched: the walk continues in the rule's target chain
	StepMarked  StepOutcome = "mark"     // matched: the rule changed the packet's mark
	StepApplied StepOutcome = "match"    // matched: the rule's target was applied
	StepPolicy  StepOutcome = "policy"   // end of a built-in chain: its policy applies
	StepRouted  StepOutcome = "route"    // no rule: the kernel's routing decision
	StepTracked StepOutcome = "track"    // no rule: connection tracking, a translation from its entry, or IPVS
	StepUnknown StepOutcome = "unknown"  // not known whether the rule matches, or what its target does
)

// Step is one rule on a packet's walk through simulated kube-proxy chains or through an
// iptables-save dump. Fields with omitempty are those of a walk through a dump.
type Step struct {
	// Hook is the netfilter hook: PREROUTING, INPUT, FORWARD, OUTPUT or POSTROUTING.
	Hook    string      `json:"hook,omitempty"`
	Table   string      `json:"table"` // empty if Outcome is StepRouted or StepTracked
	Chain   string      `json:"chain"` // likewise
	Line    int         `json:"line,omitempty"`
	Handle  uint64      `json:"handle,omitempty"` // of an nftables rule without a line, as nft -a prints it
	File    string      `json:"file,omitempty"`   // the file of Line; empty: all rules are in one file
	Rule    string      `json:"rule"`             // as iptables-save prints it, without "-A chain"; empty where there is none
	Outcome StepOutcome `json:"outcome"`
	// Probability is the probability of the outcome, for a rule with a statistic match; else 0.
	Probability float64 `json:"chance,omitempty"`
	// Count is the number of consecutive rules that did not match, if they are one step: Line is then that of the first,
	// and Rule is empty.
	Count int `json:"count,omitempty"`
	// Mark is the packet's mark after the step, "0x4000"; only where it changed.
	Mark string `json:"mark,omitempty"`
	Text string `json:"text"` // one plain sentence
}

// Question is a packet as users write it.
type Question struct {
	Protocol    string `json:"protocol"`    // tcp, udp or sctp
	Source      string `json:"source"`      // an address or a pod's name; the port may be left out
	Destination string `json:"destination"` // an address or a name, with a port
	Local       bool   `json:"local"`       // originates on the node itself
	InInterface string `json:"inInterface"` // the input interface; may be left out
}
