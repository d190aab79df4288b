package observe

import (
	"fmt"
	"strings"
	"time"
)

// Status describes the daemon of a node, for an operator.
type Status struct {
	Node string `json:"node"`
	// Proxy is what a node without a daemon has instead, in words: "kube-proxy in nftables mode". The node's flows are
	// not recorded, which is not a problem. Empty: the node has a daemon.
	Proxy string `json:"proxy,omitempty"`
	// Problems need an operator; empty: the node is healthy. Lost packets and records do not count.
	Problems []Problem `json:"problems"`
	Daemon   *Daemon   `json:"daemon,omitempty"` // nil: the node is unreachable, or has another Proxy
}

// Problem is a condition that needs an operator.
type Problem struct {
	Code string `json:"code"` // see the Problem constants
	Text string `json:"text"`
}

// The problems; observetest.Problems lists them.
const (
	ProblemUnreachable   = "unreachable"    // the daemon does not answer
	ProblemNotServing    = "not-serving"    // there is no service table yet
	ProblemSavedObjects  = "saved-objects"  // the API server does not answer: the daemon uses saved objects
	ProblemChangesLate   = "changes-late"   // a change of objects is taking too long to take effect
	ProblemRulesDamaged  = "rules-damaged"  // the kernel rules are damaged and cannot be repaired
	ProblemRulesDiffer   = "rules-differ"   // the kernel rules, or their copy of the service table, differ from what they should be
	ProblemRulesUnknown  = "rules-unknown"  // the kernel rules cannot be compared
	ProblemKernelDecides = "kernel-decides" // packets are not queued: the kernel's copy decides new flows
	ProblemWorkerStuck   = "worker-stuck"   // the worker of a queue makes no progress
	ProblemHostFirewall  = "host-firewall"  // rules are missing in the host's firewall
	ProblemFlowLog       = "flow-log"       // the flow log cannot be written: it gets no more records
	ProblemNotObserving  = "not-observing"  // the daemon should observe, but cannot
)

// Daemon is the state of a daemon. Counts are since its start.
type Daemon struct {
	Version   string    `json:"version"`
	ProcessID int       `json:"processID"`
	Started   time.Time `json:"started"`
	Time      time.Time `json:"time"` // of this state, by the node's clock
	// Observed is the node's service proxy, if the daemon only observes: "kube-proxy (iptables)". Kernel is then what it
	// sees of connections, and the fields about decisions and rules are absent. Empty: the daemon decides.
	Observed string  `json:"observed,omitempty"`
	Kernel   *Kernel `json:"kernel,omitempty"`
	Source   Source  `json:"source"`
	Table    *Table  `json:"table,omitempty"` // in force; nil: none yet
	// DecidedBy is, for each address family (IPv4, IPv6), what decides new flows now: see the DecidedBy constants. A
	// family is missing if that is unknown.
	DecidedBy map[string]string `json:"decidedBy"`
	// DecidedByCopy counts packets that the kernel's copy of the service table decided: the first of each
	// flow that it translated, and all that it refused.
	DecidedByCopy uint64 `json:"decidedByCopy"`
	// Connections is how full the connection table is; nil: unknown.
	Connections  *Connections `json:"connections,omitempty"`
	Queues       []Queue      `json:"queues"`
	Losses       Losses       `json:"losses"`
	Rules        KernelRules  `json:"rules"`
	HostNAT      HostNAT      `json:"hostNAT"`
	HostFirewall HostFirewall `json:"hostFirewall"`
	Confinement  Confinement  `json:"confinement"`
	// FlowLog is the error that stopped the flow log; empty: it works, or there is none.
	FlowLog string `json:"flowLog,omitempty"`
}

// What decides new flows.
const (
	DecidedByDaemon = "daemon"
	DecidedByCopy   = "kernel-copy" // the kernel's copy of the service table
)

// Source is where Services and EndpointSlices come from.
type Source struct {
	// WaitingFor names the objects that the first service table waits for; empty: the table is in force.
	WaitingFor string `json:"waitingFor,omitempty"`
	// Saved is when the saved objects were current that the daemon uses because the API server does not answer; nil: it
	// does not use them.
	Saved *time.Time `json:"saved,omitempty"`
	// Late: a change has waited for longer than twice the sync period.
	Late bool `json:"late"`
}

// Connections is how full the connection table of the node's network namespace is; the kernel has the same
// limit for each.
type Connections struct {
	Entries uint64 `json:"entries"`
	Limit   uint64 `json:"limit"` // nf_conntrack_max; 0: none
}

// NearlyFull reports whether four fifths of the entries are in use.
func (c *Connections) NearlyFull() bool { return c.Limit > 0 && c.Entries*5 >= c.Limit*4 }

// Queue is a netfilter queue, with its worker.
type Queue struct {
	Number uint16 `json:"number"`
	// NoService: its packets are for no service, or for one without endpoints.
	NoService bool `json:"noService"`
	// PortID is the netlink port bound to the queue, as the kernel lists it.
	PortID  uint32 `json:"portID"`
	Packets uint64 `json:"packets"` // received from it
	Waiting uint64 `json:"waiting"` // packets in the kernel without a verdict
	// Overrun counts packets that passed undecided because the socket's buffer was full.
	Overrun uint64 `json:"overrun"`
	// Refused counts verdicts for packets that the kernel had flushed.
	Refused uint64 `json:"refused"`
	Stuck   bool   `json:"stuck"` // its worker makes no progress
}

// Losses counts what was lost, by reason.
type Losses struct {
	// Undecided packets passed the queues because of an overflow; the kernel's copy decides those to
	// services. The Overrun of all queues is included.
	Undecided uint64 `json:"undecided"`
	// TableFull, NoRoute and OtherFailures count connection entries that could not be created: their
	// packets were dropped.
	TableFull     uint64 `json:"tableFull"`
	NoRoute       uint64 `json:"noRoute"`
	OtherFailures uint64 `json:"otherFailures"`
	// Evicted counts entries without a reply that were removed from a connection table that was full
	// or more than half full.
	Evicted uint64 `json:"evicted"`
	// ForgottenClients lost their session affinity because there were too many.
	ForgottenClients uint64 `json:"forgottenClients"`
	// InvalidDropped counts forwarded packets that are invalid for connection tracking.
	InvalidDropped uint64 `json:"invalidDropped"`
	// Records counts flow records lost by overflow.
	Records uint64 `json:"records"`
}

// KernelRules are the kernel's tables nfqproxy, with their copy of the service table.
type KernelRules struct {
	// InStep: at the last comparison they matched the service table.
	InStep bool `json:"inStep"`
	// Compared is when the rules and all elements of their sets were compared for a status: at most
	// every five seconds. nil: they could not be compared; Error is the reason.
	Compared *time.Time `json:"compared,omitempty"`
	Error    string     `json:"error,omitempty"`
	// Chains, Rules and Elements are what the kernel has.
	Chains   int `json:"chains"`
	Rules    int `json:"rules"`
	Elements int `json:"elements"`
	// Differences describes in words what the comparison found.
	Differences []string `json:"differences,omitempty"`
	// Audited is when the daemon last checked and repaired the rules; nil: not yet.
	Audited *time.Time `json:"audited,omitempty"`
	// Fault is damage that the daemon could not repair; empty: none is known.
	Fault string `json:"fault,omitempty"`
	// Reinstalled counts how often the rules had been removed, Repaired how often some had been changed.
	Reinstalled uint64 `json:"reinstalled"`
	Repaired    uint64 `json:"repaired"`
}

// HostNAT are the host's own nat rules for flows to services.
type HostNAT struct {
	Applied     bool   `json:"applied"`     // see the flag --host-masquerade
	Masqueraded uint64 `json:"masqueraded"` // flows whose source they translate
	// Unknown describes rules that cannot be evaluated or read. UnknownFlows counts the flows that met
	// them: their source is unchanged.
	Unknown      []string `json:"unknown,omitempty"`
	UnknownFlows uint64   `json:"unknownFlows"`
}

// HostFirewall are the daemon's rules in the host's own firewall.
type HostFirewall struct {
	Fault    string `json:"fault,omitempty"` // rules that are missing or wrong; empty: none is known
	Repaired uint64 `json:"repaired"`        // how often they were repaired after another program changed them
}

// Capability is a capability that a process has, and its use.
type Capability struct {
	Name string `json:"name"` // CAP_NET_ADMIN
	Use  string `json:"use,omitempty"`
}

// Confinement describes the restrictions in force for all threads of a daemon.
type Confinement struct {
	// Capabilities are the effective ones; the process cannot get others if NoNewPrivs is set.
	Capabilities []Capability `json:"capabilities"`
	NoNewPrivs   bool         `json:"noNewPrivs"`
	// SystemCalls is how many system calls the filter allows. 0: there is no filter.
	SystemCalls int `json:"systemCalls"`
	// Program is the program that the process may start; empty: none, if there is a filter.
	Program string `json:"program,omitempty"`
	// LandlockABI is the version of Landlock; 0: it is not in force.
	LandlockABI int `json:"landlockABI"`
	// Changes are the file changes that Landlock allows, valid iff LandlockABI is not 0.
	Changes []string `json:"changes,omitempty"`
	// Missing are the parts that are not in force, each with the reason.
	Missing []string `json:"missing,omitempty"`
}

// String describes the state in one line.
func (c Confinement) String() string {
	var parts, names []string
	for _, k := range c.Capabilities {
		name := k.Name
		if k.Use != "" {
			name += " (" + k.Use + ")"
		}
		names = append(names, name)
	}
	if names == nil {
		names = []string{"none"}
	}
	parts = append(parts, "capabilities: "+strings.Join(names, " "))
	if c.NoNewPrivs {
		parts = append(parts, "no new privileges")
	}
	if c.SystemCalls > 0 {
		parts = append(parts, fmt.Sprintf("system calls: %d", c.SystemCalls))
	}
	if c.Program != "" {
		parts = append(parts, "may start "+c.Program)
	}
	if c.LandlockABI > 0 {
		changes := "none"
		if len(c.Changes) > 0 {
			changes = strings.Join(c.Changes, ", ")
		}
		parts = append(parts, fmt.Sprintf("changes of files (Landlock %d): %s", c.LandlockABI, changes))
	}
	for _, m := range c.Missing {
		parts = append(parts, "not in force: "+m)
	}
	return strings.Join(parts, "; ")
}
