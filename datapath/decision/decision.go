package decision

import "net/netip"

// Packet is what the decision looks at: the first packet of a flow.
type Packet struct {
	Protocol    Protocol
	Source      netip.AddrPort
	Destination netip.AddrPort
	// Local: generated on the node itself (the OUTPUT hooks).
	Local bool
	// InInterface is the name of the interface it came in by; empty if Local. Only
	// detectors by interface look at it.
	InInterface string
}

// Rand gives the draws. [math/rand/v2.Rand] is one.
type Rand interface {
	// Float64 returns a number in [0, 1).
	Float64() float64
}

// Affinity knows which endpoints clients are bound to (sessionAffinity: ClientIP).
type Affinity interface {
	// Bound says whether the client is bound to the endpoint of the service port: a
	// flow of its went there no longer ago than AffinitySeconds.
	Bound(s *ServicePort, endpoint netip.AddrPort, client netip.Addr) bool
}

// Verdict is what becomes of the packet.
type Verdict uint8

// The verdicts.
const (
	Accept Verdict = iota // passes untouched
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
	EntryNone         Entry = iota // to none
	EntryClusterIP                 // its ClusterIP
	EntryExternalIP                // one of its external IPs
	EntryLoadBalancer              // one of its load balancer IPs
	EntryNodePort                  // its node port
)

// String gives the entry as the flow record writes it.
func (e Entry) String() string {
	switch e {
	case EntryNone:
		return "none"
	case EntryClusterIP:
		return "cluster-ip"
	case EntryExternalIP:
		return "external-ip"
	case EntryLoadBalancer:
		return "load-balancer-ip"
	case EntryNodePort:
		return "node-port"
	}
	return "unknown"
}

// words gives the entry as a sentence writes it.
func (e Entry) words() string {
	switch e {
	case EntryClusterIP:
		return "cluster IP"
	case EntryExternalIP:
		return "external IP"
	case EntryLoadBalancer:
		return "load balancer IP"
	case EntryNodePort:
		return "node port"
	}
	return "no address"
}

// Branch is which endpoints were looked at, and why those.
type Branch uint8

// The branches.
const (
	BranchNone         Branch = iota // none were
	BranchInternal                   // those of the internal traffic policy
	BranchExternal                   // those of the external traffic policy
	BranchPodShortcut                // external policy Local, but a pod asks: all of the cluster
	BranchNodeShortcut               // external policy Local, but the node itself asks: all of the cluster
)

// String gives the branch as the flow record writes it.
func (b Branch) String() string {
	switch b {
	case BranchInternal:
		return "internal-policy"
	case BranchExternal:
		return "external-policy"
	case BranchPodShortcut:
		return "pod-short-circuit"
	case BranchNodeShortcut:
		return "node-short-circuit"
	}
	return ""
}

// Reason says why the verdict is what it is.
type Reason uint8

// The reasons for verdicts.
const (
	NotAService      Reason = iota // Accept: no service port has the destination
	Balanced                       // DNAT: an endpoint was chosen
	Bound                          // DNAT: affinity binds the client to the endpoint
	NoEndpoints                    // Reject: nowhere in the cluster is a usable endpoint
	NoLocalEndpoints               // Drop: policy Local, and the node has no usable endpoint
	SourceNotAllowed               // Drop: not in the load balancer's source ranges
	ForeignLocalnet                // Drop: to a loopback address, but not from one
	NotFiltered                    // Accept: it would be refused or dropped, but not on this way through the node
	DroppedByHand                  // Drop: somebody held it at the queue and dropped it; never decided by [Decide]
)

// String gives the reason as the flow record writes it.
func (r Reason) String() string {
	switch r {
	case NotAService:
		return "not-a-service"
	case Balanced:
		return "balanced"
	case Bound:
		return "affinity"
	case NoEndpoints:
		return "no-endpoints"
	case NoLocalEndpoints:
		return "no-local-endpoints"
	case SourceNotAllowed:
		return "source-not-allowed"
	case ForeignLocalnet:
		return "foreign-localnet"
	case NotFiltered:
		return "not-filtered"
	case DroppedByHand:
		return "dropped-by-hand"
	}
	return "unknown"
}

// Mark says why the packet gets the masquerade mark; the first reason that
// applies on the walk.
type Mark uint8

// The reasons for the masquerade mark.
const (
	NotMarked    Mark = iota
	MarkAll           // --masquerade-all
	MarkOutside       // a ClusterIP flow from outside, as the local detector sees it
	MarkExternal      // an external destination under policy Cluster: the reply must come back through this node
	MarkLocal         // an external destination under policy Local, from the node itself
	MarkHairpin       // the endpoint reaches itself
)

// String gives the reason as the flow record writes it; empty for none.
func (m Mark) String() string {
	switch m {
	case MarkAll:
		return "masquerade-all"
	case MarkOutside:
		return "source-outside-cluster"
	case MarkExternal:
		return "external"
	case MarkLocal:
		return "local-source"
	case MarkHairpin:
		return "hairpin"
	}
	return ""
}

// Decision is the outcome for one packet. It points into the table it was made
// from and is valid for as long as the caller keeps it.
type Decision struct {
	Verdict Verdict
	Reason  Reason
	Entry   Entry
	Branch  Branch
	// Policy is that of the endpoints looked at; valid iff Branch is one.
	Policy Policy
	// Mark says why the packet carries the masquerade mark, if it does.
	Mark Mark
	// Masquerade: its source is rewritten, because it is marked and passes POSTROUTING.
	Masquerade bool
	// Index is the endpoint's position in ServicePort.Endpoints; valid iff Verdict
	// is DNAT.
	Index uint32
	// Draw is in [0, 1); valid iff Drawn.
	Draw  float64
	Drawn bool
	// ServicePort is nil iff Reason is NotAService.
	ServicePort *ServicePort
	Generation  uint64 // of the table
}

// Endpoint is where the flow goes. It may be called iff the verdict is DNAT.
func (d *Decision) Endpoint() netip.AddrPort {
	return d.ServicePort.Endpoints[d.Index].AddrPort
}
