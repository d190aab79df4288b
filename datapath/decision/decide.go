// Package decision decides what happens to the first packet of a flow, as
// kube-proxy's iptables chains would.
//
// [Decide] is a pure function of a [Table], a [Packet] and randomness. The live
// datapath, the lab, the simulator, tests and benchmarks all call it; it does no
// I/O, reads no clock, keeps no state and allocates nothing. [Walk] tells the
// story of a decision in kube-proxy's chains and rules.
package decision

import "net/netip"

// Packet is what the decision looks at: the first packet of a flow.
type Packet struct {
	Protocol    Protocol
	Source      netip.AddrPort
	Destination netip.AddrPort
	Local       bool // generated on the node itself (the OUTPUT hooks)
}

// Rand gives the draws. [math/rand/v2.Rand] is one.
type Rand interface {
	// Float64 returns a number in [0, 1).
	Float64() float64
}

// Verdict is what becomes of the packet.
type Verdict uint8

// The verdicts.
const (
	Accept Verdict = iota // not for a service: passes untouched
	DNAT                  // goes to Decision.Endpoint
	Reject                // refused with an ICMP error
	Drop                  // discarded without an answer
)

// String gives the verdict as the flow record writes it.
func (v Verdict) String() string {
	switch v {
	case Accept:
		return "accept"
	case DNAT:
		return "dnat"
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	}
	return "unknown"
}

// Entry is the way by which a packet came to a service port.
type Entry uint8

// The ways to a service port.
const (
	EntryNone      Entry = iota // to none
	EntryClusterIP              // its ClusterIP, in KUBE-SERVICES
	EntryNodePort               // its node port, in KUBE-NODEPORTS
)

// String gives the entry as the flow record writes it.
func (e Entry) String() string {
	switch e {
	case EntryNone:
		return "none"
	case EntryClusterIP:
		return "cluster-ip"
	case EntryNodePort:
		return "node-port"
	}
	return "unknown"
}

// Reason says why the verdict is what it is.
type Reason uint8

// The reasons for verdicts.
const (
	NotAService Reason = iota // Accept: no service port has the destination
	Balanced                  // DNAT: an endpoint was chosen
	NoEndpoints               // Reject: the service port has no usable endpoint
)

// String gives the reason as the flow record writes it.
func (r Reason) String() string {
	switch r {
	case NotAService:
		return "not-a-service"
	case Balanced:
		return "balanced"
	case NoEndpoints:
		return "no-endpoints"
	}
	return "unknown"
}

// MasqueradeReason says why the packet gets the masquerade mark; the first that
// applies on the walk.
type MasqueradeReason uint8

// The reasons for masquerading.
const (
	NoMasquerade       MasqueradeReason = iota
	MasqueradeAll                       // --masquerade-all
	MasqueradeOutside                   // a ClusterIP flow from outside the cluster CIDR
	MasqueradeNodePort                  // the reply must come back through this node
	MasqueradeHairpin                   // the endpoint reaches itself
)

// String gives the reason as the flow record writes it; empty for none.
func (m MasqueradeReason) String() string {
	switch m {
	case MasqueradeAll:
		return "masquerade-all"
	case MasqueradeOutside:
		return "source-outside-cluster"
	case MasqueradeNodePort:
		return "node-port"
	case MasqueradeHairpin:
		return "hairpin"
	}
	return ""
}

// Decision is the outcome for one packet. It points into the table it was made
// from and is valid for as long as the caller keeps it.
type Decision struct {
	Verdict     Verdict
	Reason      Reason
	Entry       Entry
	Mark        MasqueradeReason // why the packet carries the masquerade mark, if it does
	Masquerade  bool             // its source is rewritten: marked, and it passes POSTROUTING
	Index       int              // of Endpoint in ServicePort.Endpoints; valid iff Verdict is DNAT
	Draw        float64          // in [0, 1); valid iff there was more than one endpoint to choose from
	ServicePort *ServicePort     // nil iff Reason is NotAService
	Generation  uint64           // of the table
}

// Endpoint is where the flow goes. It is only meaningful iff the verdict is DNAT.
func (d *Decision) Endpoint() netip.AddrPort {
	return d.ServicePort.Endpoints[d.Index].AddrPort
}

// Drawn says whether randomness was used, which is what makes Draw valid.
func (d *Decision) Drawn() bool { return d.Verdict == DNAT && len(d.ServicePort.Endpoints) > 1 }

// Decide says what becomes of the flow that starts with the packet. It draws
// from r at most once, and only where there is more than one endpoint. The
// endpoint is the one at position floor(draw * n): the same distribution as
// kube-proxy's n-1 rules with probabilities 1/n, 1/(n-1), ... 1/2, for one draw
// instead of up to n-1.
func Decide(t *Table, p *Packet, r Rand) Decision {
	s, entry := t.lookup(p)
	if s == nil {
		return Decision{Verdict: Accept, Reason: NotAService, Generation: t.generation}
	}
	d := Decision{ServicePort: s, Entry: entry, Generation: t.generation}
	n := len(s.Endpoints)
	if n == 0 {
		d.Verdict, d.Reason = Reject, NoEndpoints
		return d
	}
	d.Verdict, d.Reason = DNAT, Balanced
	if n > 1 {
		d.Draw = r.Float64()
		d.Index = min(int(d.Draw*float64(n)), n-1)
	}
	d.Mark = markReason(t, p, &d)
	// A packet from elsewhere for an endpoint on the node itself is delivered by
	// way of INPUT: it never comes to the MASQUERADE rule.
	d.Masquerade = d.Mark != NoMasquerade && (p.Local || !t.IsLocal(d.Endpoint().Addr()))
	return d
}

// markReason follows the walk: KUBE-EXT or KUBE-SVC first, KUBE-SEP last.
func markReason(t *Table, p *Packet, d *Decision) MasqueradeReason {
	switch {
	case d.Entry == EntryNodePort:
		return MasqueradeNodePort
	case t.node.MasqueradeAll:
		return MasqueradeAll
	case t.outsideCluster(p.Source.Addr()):
		return MasqueradeOutside
	case d.Endpoint().Addr() == p.Source.Addr():
		return MasqueradeHairpin
	}
	return NoMasquerade
}
