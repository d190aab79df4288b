// Package flow is the record of a decided flow: one JSON object on one line, the
// same for the live daemon's flow log, the lab and the simulator, and its
// rendering as text.
package flow

import (
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// Version is the version of the schema. It grows when a field changes its meaning
// or goes away; new fields do not change it.
const Version = 1

// HostMasquerade is the reason of a flow that no rule of kube-proxy's would have
// masqueraded, but one of the host's own.
const HostMasquerade = "host-masquerade"

// Record is one decided flow.
type Record struct {
	Version int `json:"version"`
	// ID names the flow in all records of its life, on all nodes; absent in simulations.
	ID string `json:"id,omitempty"`
	// Event is what the record is about; in streams only.
	Event Event `json:"event,omitempty"`
	// Emitted is when the node noted the event; in streams only. What the event is about may
	// have happened earlier: the kernel removes an entry that timed out when it comes across it.
	Emitted *time.Time `json:"emitted,omitempty"`
	// Time is when the decision was made, a held flow went on or, in a replay, the packet was captured;
	// absent in simulations.
	Time *time.Time `json:"time,omitempty"`
	Node string     `json:"node,omitempty"`
	// Queue is the number of the netfilter queue the packet came by; absent in simulations.
	Queue *uint16 `json:"queue,omitempty"`

	Verdict     string `json:"verdict"` // accept, dnat, reject or drop
	Reason      string `json:"reason"`  // see decision.Reason
	Protocol    string `json:"protocol"`
	Source      string `json:"source"`      // ip:port, before translation
	Destination string `json:"destination"` // ip:port, before translation
	Local       bool   `json:"local"`       // generated on the node itself
	// SourcePod is the namespace/name of the pod that has the source address, where known.
	SourcePod string `json:"sourcePod,omitempty"`
	// SourceNode is the node that the source is on, or that it is; SourceHost a machine
	// outside of the cluster that has the source address. Each where known.
	SourceNode string `json:"sourceNode,omitempty"`
	SourceHost string `json:"sourceHost,omitempty"`

	Service string `json:"service"`         // namespace/name:port; empty: for none
	Entry   string `json:"entry,omitempty"` // see decision.Entry
	// Branch and Policy say which endpoints were looked at, and why those: see
	// decision.Branch. Policy is Cluster or Local.
	Branch   string `json:"branch,omitempty"`
	Policy   string `json:"policy,omitempty"`
	Endpoint string `json:"endpoint"`      // ip:port; empty unless verdict is dnat
	Pod      string `json:"pod,omitempty"` // namespace/name behind the endpoint, where known
	// EndpointNode is the node that the endpoint is on, where known.
	EndpointNode string `json:"endpointNode,omitempty"`

	// Candidates are the endpoints it could have got; their probabilities add up to
	// 1. A client bound by affinity could have got one. Excluded are the others.
	Candidates []Candidate `json:"candidates"`
	Excluded   []Excluded  `json:"excluded"`
	Draw       *float64    `json:"draw,omitempty"` // in [0, 1); present iff there was a choice

	Masquerade bool `json:"masquerade"` // the source is rewritten
	// MasqueradeReason says why the packet carries the masquerade mark. It may do so
	// without being masqueraded: delivered on the node itself.
	MasqueradeReason string `json:"masqueradeReason"`
	// MasqueradeRule is the host's own rule that asks for it, as iptables-save prints it;
	// present iff MasqueradeReason is HostMasquerade.
	MasqueradeRule string `json:"masqueradeRule,omitempty"`

	// Conntrack is what became of the kernel's connection entry; absent in simulations
	// and where none was wanted: created, kept (an earlier packet's decision
	// stands, and endpoint is that one's), replaced (a finished connection had
	// the same addresses and ports) or failed.
	Conntrack string `json:"conntrack,omitempty"`
	// MasqueradeAddress is the source address asked for; present iff the flow was
	// masqueraded by a live daemon, or by the rules of a dump.
	MasqueradeAddress string `json:"masqueradeAddress,omitempty"`
	// Error says why the flow could not be set up, where conntrack is failed.
	Error string `json:"error,omitempty"`

	Generation uint64 `json:"generation"` // of the service table, from 1
	// TableAge is how old that table was, in seconds; absent in simulations. Old is not
	// outdated: tables are made when something changes.
	TableAge float64 `json:"tableAge,omitempty"`

	// Stages, Life and Held are known by the flow API only; Held is of flows that were.
	Stages *Stages `json:"stages,omitempty"`
	Life   *Life   `json:"life,omitempty"`
	Held   *Hold   `json:"held,omitempty"`

	Steps []Step `json:"steps,omitempty"` // where asked for
	// Hint is what might help who asked; in simulations only.
	Hint string `json:"hint,omitempty"`
	// Reply is the way of the answer, where asked for; in simulations only.
	Reply *Reply `json:"reply,omitempty"`
}

// Reply is the way of the answer back through the node.
type Reply struct {
	// Source and Destination are the answer's ip:port as the endpoint sends it;
	// Destination is empty if it is an address of the node that is not known.
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	// SeenSource and SeenDestination are those with which it reaches the client.
	SeenSource      string   `json:"seenSource,omitempty"`
	SeenDestination string   `json:"seenDestination,omitempty"`
	Steps           []string `json:"steps"` // one plain sentence each
}

// Candidate is an endpoint the flow could have got, and how likely.
type Candidate struct {
	Endpoint    string  `json:"endpoint"`
	Probability float64 `json:"probability"`
}

// Excluded is an endpoint that gets no new flows, and why.
type Excluded struct {
	Endpoint string `json:"endpoint"`
	Reason   string `json:"reason"` // see decision.Exclusion
}

// New makes the record of a decision, without steps and without what only a live
// daemon knows. t and p have to be those the decision was made from.
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
	e := &s.Endpoints[d.Index]
	r.Endpoint, r.Pod, r.EndpointNode = e.AddrPort.String(), e.Pod, e.NodeName
	if d.Drawn {
		draw := d.Draw
		r.Draw = &draw
	}
	r.Masquerade, r.MasqueradeReason = d.Masquerade, d.Mark.String()
	return r
}

// addEndpoints says of every endpoint of the service port whether the flow could have
// gone there.
func (r *Record) addEndpoints(d *decision.Decision) {
	s, policy := d.ServicePort, d.Policy
	if d.Branch == decision.BranchNone { // not looked at: those that would have been
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
			r.Candidates = append(r.Candidates, Candidate{e.AddrPort.String(), 1 / float64(len(s.Usable[policy]))})
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

// SetHostMasquerade says that the host's own rule has the source rewritten.
func (r *Record) SetHostMasquerade(rule string) {
	r.Masquerade, r.MasqueradeReason, r.MasqueradeRule = true, HostMasquerade, rule
}

// SetKept turns the record into one of a packet whose tuple was decided before:
// the flow goes where the kernel's entry says, whatever was drawn now.
func (r *Record) SetKept(endpoint netip.AddrPort, masqueraded bool) {
	r.Conntrack = "kept"
	if endpoint.String() != r.Endpoint {
		r.Endpoint, r.Pod, r.EndpointNode, r.Draw, r.Steps = endpoint.String(), "", "", nil, nil
	}
	if r.Masquerade != masqueraded {
		r.Masquerade, r.MasqueradeReason, r.MasqueradeRule, r.MasqueradeAddress = masqueraded, "", "", ""
	}
}
