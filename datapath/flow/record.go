// Package flow is the record of a decided flow: one JSON object on one line, the same for
// the live daemon's flow log, the lab and the simulator.
//
// It is a ground package.
package flow

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Version is the version of the schema. It is incremented when a field changes its meaning
// or is removed; new fields do not change it.
const Version = 1

// HostMasquerade is the masquerade reason of a flow that a rule of the host masquerades, not one of kube-proxy's.
const HostMasquerade = "host-masquerade"

// Record is one decided flow.
type Record struct {
	Version int `json:"version"`
	// ID names the flow in all records of its life, on all nodes; absent in simulations.
	ID string `json:"id,omitempty"`
	// Event is the event that the record reports; in streams only.
	Event Event `json:"event,omitempty"`
	// Emitted is when the node recorded the event; in streams only. The event itself may have
	// happened earlier: the kernel removes a timed-out entry only when it next scans its bucket.
	Emitted *time.Time `json:"emitted,omitempty"`
	// Time is when the decision was made, a held flow was released or, in a replay, the packet was
	// captured; absent in simulations.
	Time *time.Time `json:"time,omitempty"`
	Node string     `json:"node,omitempty"`
	// Proxy is the service proxy that decided the flow, if not nfqproxy: "kube-proxy (iptables)", "Cilium".
	Proxy string `json:"proxy,omitempty"`
	// Outdated is how many seconds before Time the endpoint was removed or stopped getting new flows, according to the
	// node's objects; absent: it had not. Only with reason service-proxy.
	Outdated float64 `json:"outdated,omitempty"`
	// Queue is the number of the packet's netfilter queue; absent in simulations.
	Queue *uint16 `json:"queue,omitempty"`

	Verdict     string `json:"verdict"` // accept, dnat, reject or drop
	Reason      string `json:"reason"`  // see decision.Reason; for drops by Cilium, its own
	Protocol    string `json:"protocol"`
	Source      string `json:"source"`      // ip:port, before translation
	Destination string `json:"destination"` // ip:port, before translation
	Local       bool   `json:"local"`       // generated on the node itself
	// SourcePod is the namespace/name of the pod that has the source address, where known.
	SourcePod string `json:"sourcePod,omitempty"`
	// SourceNode is the node of the source pod, or the node that is the source itself; SourceHost
	// is a machine outside the cluster with the source address. Each where known.
	SourceNode string `json:"sourceNode,omitempty"`
	SourceHost string `json:"sourceHost,omitempty"`

	Service string `json:"service"`         // namespace/name:port; empty: no service
	Entry   string `json:"entry,omitempty"` // see decision.Entry
	// Branch and Policy name the set of endpoints that was considered, and why: see
	// decision.Branch. Policy is Cluster or Local.
	Branch   string `json:"branch,omitempty"`
	Policy   string `json:"policy,omitempty"`
	Endpoint string `json:"endpoint"`      // ip:port; empty unless verdict is dnat
	Pod      string `json:"pod,omitempty"` // namespace/name behind the endpoint, where known
	// EndpointNode is the endpoint's node, where known.
	EndpointNode string `json:"endpointNode,omitempty"`

	// Candidates are the endpoints that could have been selected; their probabilities add up to 1, if they are known.
	// With session affinity there is only one. Excluded are the others. If both are empty with verdict dnat, they are
	// unknown.
	Candidates []Candidate `json:"candidates"`
	Excluded   []Excluded  `json:"excluded"`
	Draw       *float64    `json:"draw,omitempty"` // in [0, 1); present iff there was a random choice
	// Balance is how a balancing algorithm selected the endpoint; absent with kube-proxy's random draw.
	Balance *Balance `json:"balance,omitempty"`

	// Shadows are the selections that other algorithms would have made for the flow, in the order of the flag --shadow.
	Shadows []Shadow `json:"shadows,omitempty"`

	Masquerade bool `json:"masquerade"` // the source is rewritten
	// MasqueradeReason is the reason for the masquerade mark. A packet delivered on the
	// node itself may carry the mark without being masqueraded.
	MasqueradeReason string `json:"masqueradeReason"`
	// MasqueradeRule is the host's own masquerade rule, as iptables-save prints it or, for a native nftables table, as
	// nft does after the chain's name; present iff MasqueradeReason is HostMasquerade.
	MasqueradeRule string `json:"masqueradeRule,omitempty"`

	// Conntrack is the outcome for the conntrack entry: created, kept (the entry of an earlier
	// packet exists, and endpoint is that entry's), replaced (a finished connection had the same
	// addresses and ports) or failed. Absent in simulations and where no entry is needed.
	Conntrack string `json:"conntrack,omitempty"`
	// MasqueradeAddress is the requested source address; present iff the flow was
	// masqueraded by a live daemon, or by the rules of a dump.
	MasqueradeAddress string `json:"masqueradeAddress,omitempty"`
	// Error is the reason why the flow could not be set up, if conntrack is failed. For drops by Cilium it names the
	// endpoint.
	Error string `json:"error,omitempty"`

	Generation uint64 `json:"generation"` // of the service table, from 1
	// TableAge is the age of that table, in seconds; absent in simulations. An old table is not
	// outdated: a new one is built only when something changes.
	TableAge float64 `json:"tableAge,omitempty"`

	// Stages, Life and Held are in records of the flow API only; Held only for held flows.
	Stages *Stages `json:"stages,omitempty"`
	Life   *Life   `json:"life,omitempty"`
	Held   *Hold   `json:"held,omitempty"`

	// Earlier are the flow's earlier endpoints, which refused it or did not answer, in order; only with second chances.
	Earlier []Attempt `json:"earlier,omitempty"`

	// Others are the records of other nodes about the same connection, which the packet passed before
	// or after this one; only where the flow API of several nodes is queried for a single flow, or for
	// joined records.
	Others []*Record `json:"others,omitempty"`

	Steps []Step `json:"steps,omitempty"` // where requested
	// Hint is advice for the user; in simulations only.
	Hint string `json:"hint,omitempty"`
	// Reply is the path of the reply packet, where requested; in simulations only.
	Reply *Reply `json:"reply,omitempty"`
}

// Reply is the path of the reply packet back through the node.
type Reply struct {
	// Source and Destination are the reply's ip:port as the endpoint sends it; Destination is empty if it is an unknown
	// address of the node.
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	// SeenSource and SeenDestination are those that the client sees.
	SeenSource      string   `json:"seenSource,omitempty"`
	SeenDestination string   `json:"seenDestination,omitempty"`
	Steps           []string `json:"steps"` // one plain sentence each
}

// Attempt is a decision about a flow that failed.
type Attempt struct {
	Endpoint string    `json:"endpoint"` // ip:port
	Outcome  State     `json:"outcome"`  // refused or unanswered
	Time     time.Time `json:"time"`     // when it became known
}

// Candidate is an endpoint that could have been selected.
type Candidate struct {
	Endpoint string `json:"endpoint"`
	// Probability is the probability that the endpoint is selected; absent: 0, or unknown as in Balance.
	Probability float64 `json:"probability,omitempty"`
}

// Balance is how a balancing algorithm selected the endpoint.
type Balance struct {
	Algorithm string `json:"algorithm"` // as the flag --balance spells it
	// Evidence is the basis of the algorithm's choice, as a phrase; absent: it had no choice.
	Evidence string `json:"evidence,omitempty"`
	// Probability is the probability that the endpoint is selected, given what the algorithm knew; absent: unknown.
	Probability float64 `json:"probability,omitempty"`
}

// Shadow is the selection that another algorithm would have made.
type Shadow struct {
	Algorithm string `json:"algorithm"` // as the flag --shadow spells it
	Endpoint  string `json:"endpoint"`  // ip:port
	// Evidence and Probability are as in Balance.
	Evidence    string  `json:"evidence,omitempty"`
	Probability float64 `json:"probability,omitempty"`
}

// Excluded is an endpoint that receives no new flows, and the reason.
type Excluded struct {
	Endpoint string `json:"endpoint"`
	Reason   string `json:"reason"` // see decision.Exclusion
}

// New returns the record of a decision, without steps and without fields that only a live
// daemon knows. t and p must be the decision's table and packet.
func New(t *decision.Table, p *decision.Packet, d *decision.Decision) *Record {
	return newRecord(t.Node().Name, p, d)
}

func newRecord(node string, p *decision.Packet, d *decision.Decision) *Record {
	r := &Record{
		Version:     Version,
		Node:        node,
		Verdict:     d.Verdict.String(),
		Reason:      d.Reason.String(),
		Protocol:    p.Protocol.String(),
		Source:      p.Source.String(),
		Destination: p.Destination.String(),
		Local:       p.Local,
		Generation:  d.Generation,
		Candidates:  []Candidate{}, // never null in JSON
		Excluded:    []Excluded{},
	}
	s := d.ServicePort
	if s == nil {
		return r
	}
	r.Service, r.Entry = s.Name.String(), d.Entry.String()
	r.addEndpoints(d)
	if d.Branch != decision.BranchNone {
		r.Branch, r.Policy = d.Branch.String(), d.Policy.String()
	}
	if d.Verdict != decision.DNAT {
		return r
	}
	if d.HasEndpoint() {
		e := &s.Endpoints[d.Index]
		r.Endpoint, r.Pod, r.EndpointNode = e.AddrPort.String(), e.Pod, e.NodeName
	}
	if d.Drawn {
		r.Draw = new(d.Draw)
	}
	if s.Balance != "" && d.Pick.Evidence.Kind != decision.NoEvidence {
		r.Balance = &Balance{Algorithm: s.Balance, Evidence: balance.Text(d), Probability: d.Pick.Probability}
	}
	r.Masquerade, r.MasqueradeReason = d.Masquerade, d.Mark.String()
	return r
}

// addShadows adds what shadows selected.
func (r *Record) addShadows(d *decision.Decision, shadows []ShadowPick) {
	s := d.ServicePort
	for _, o := range shadows {
		beside := decision.Decision{ServicePort: s, Policy: d.Policy, Pick: o.Pick}
		r.Shadows = append(r.Shadows, Shadow{
			Algorithm: o.Algorithm, Endpoint: s.Endpoints[s.Usable[d.Policy][o.Pick.Position]].AddrPort.String(),
			Evidence: balance.Text(&beside), Probability: o.Pick.Probability,
		})
	}
}

// addEndpoints adds every endpoint of the service port as a candidate or as excluded.
func (r *Record) addEndpoints(d *decision.Decision) {
	s, policy := d.ServicePort, d.Policy
	if d.Branch == decision.BranchNone { // no endpoints considered: use the policy that would apply
		policy = s.ExternalPolicy
		if d.Entry == decision.EntryClusterIP {
			policy = s.InternalPolicy
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		why := e.Exclusions[policy]
		switch {
		case d.Verdict != decision.DNAT || why != 0:
		case d.Reason != decision.Bound:
			r.Candidates = append(r.Candidates, Candidate{e.AddrPort.String(), probability(d, uint32(i))})
			continue
		case uint32(i) == d.Index:
			r.Candidates = append(r.Candidates, Candidate{e.AddrPort.String(), 1})
			continue
		default:
			why = decision.NotBound
		}
		if why != 0 {
			r.Excluded = append(r.Excluded, Excluded{e.AddrPort.String(), why.String()})
		}
	}
}

// probability is the probability that the decision selects the i-th endpoint; 0: unknown.
func probability(d *decision.Decision, i uint32) float64 {
	if d.Reason.Observed() && d.ServicePort.AffinitySeconds > 0 {
		return 0 // it may have been drawn, or bound
	}
	n := float64(len(d.ServicePort.Usable[d.Policy]))
	switch d.Pick.Evidence.Kind {
	case decision.NoEvidence:
		return 1 / n
	case decision.DrawnOf:
		if d.Pick.SatOut == 0 {
			return 1 / n
		}
	}
	if i == d.Index {
		return d.Pick.Probability
	}
	return 0
}

// SetHostMasquerade records that the host's own rule rewrites the source.
func (r *Record) SetHostMasquerade(rule string) {
	r.Masquerade, r.MasqueradeReason, r.MasqueradeRule = true, HostMasquerade, rule
}

// SetKept turns the record into that of a packet whose tuple already has a conntrack entry:
// the entry's endpoint applies, not the one selected now.
func (r *Record) SetKept(endpoint netip.AddrPort, masqueraded bool) {
	r.Conntrack = "kept"
	if endpoint.String() != r.Endpoint {
		r.Endpoint, r.Pod, r.EndpointNode, r.Draw, r.Steps = endpoint.String(), "", "", nil, nil
	}
	if r.Masquerade != masqueraded {
		r.Masquerade, r.MasqueradeReason, r.MasqueradeRule, r.MasqueradeAddress = masqueraded, "", "", ""
	}
}

// Owner is the owner of an address: a pod (namespace/name) with its node, a node, or a machine
// outside the cluster. Unknown names are empty.
type Owner struct{ Pod, Node, Host string }

// Names returns the owner of an address. It is safe for concurrent use; nil knows no names.
type Names func(netip.Addr) Owner

// Owner returns the owner of an address.
func (n Names) Owner(a netip.Addr) Owner {
	if n == nil {
		return Owner{}
	}
	return n(a)
}

// AddNames adds the names of the record's source and endpoint that are missing. It reports whether there were any.
func (r *Record) AddNames(n Names) (added bool) {
	names := func() [5]string { return [...]string{r.SourcePod, r.SourceNode, r.SourceHost, r.Pod, r.EndpointNode} }
	before := names()
	if source, err := netip.ParseAddrPort(r.Source); err == nil {
		o := n.Owner(source.Addr())
		r.SourcePod, r.SourceNode, r.SourceHost = cmp.Or(r.SourcePod, o.Pod), cmp.Or(r.SourceNode, o.Node), cmp.Or(r.SourceHost, o.Host)
	}
	if endpoint, err := netip.ParseAddrPort(r.Endpoint); err == nil {
		o := n.Owner(endpoint.Addr())
		r.Pod, r.EndpointNode = cmp.Or(r.Pod, o.Pod), cmp.Or(r.EndpointNode, o.Node)
	}
	return names() != before
}

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
