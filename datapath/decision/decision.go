package decision

import "net/netip"

// Packet is the input of a decision: the first packet of a flow.
type Packet struct {
	Protocol    Protocol
	Source      netip.AddrPort
	Destination netip.AddrPort
	// Local: the packet originates on the node itself (the OUTPUT hooks).
	Local bool
	// InInterface is the name of the input interface; empty if Local. Only detectors by interface
	// use it.
	InInterface string
}

// Rand is the source of random numbers. [math/rand/v2.Rand] is one.
type Rand interface {
	// Float64 returns a number in [0, 1).
	Float64() float64
}

// Affinity stores which endpoints clients are bound to (sessionAffinity: ClientIP).
type Affinity interface {
	// Bound reports whether the client is bound to the endpoint of the service port: its last flow
	// to it began at most AffinitySeconds ago.
	Bound(s *ServicePort, endpoint netip.AddrPort, client netip.Addr) bool
}

// Verdict is the verdict on the packet.
type Verdict uint8

// The verdicts.
const (
	Accept Verdict = iota // passes unchanged
	DNAT                  // goes to Decision.Endpoint
	Reject                // refused with an ICMP error
	Drop                  // dropped without a reply
)

// String returns the verdict as in flow records.
func (v Verdict) String() string { return nameOf(verdictNames[:], v, "unknown") }

var verdictNames = [...]string{
	Accept: "accept",
	DNAT:   "dnat",
	Reject: "reject",
	Drop:   "drop",
}

// nameOf returns the name of a code; none: it has no name.
func nameOf[T ~uint8](names []string, code T, none string) string {
	if int(code) < len(names) {
		return names[code]
	}
	return none
}

// Entry is the kind of address by which a packet reached a service port.
type Entry uint8

// The kinds of addresses.
const (
	EntryNone         Entry = iota // none
	EntryClusterIP                 // its ClusterIP
	EntryExternalIP                // one of its external IPs
	EntryLoadBalancer              // one of its load balancer IPs
	EntryNodePort                  // its node port
)

// String returns the entry as in flow records.
func (e Entry) String() string { return nameOf(entryNames[:], e, "unknown") }

var entryNames = [...]string{
	EntryNone:         "none",
	EntryClusterIP:    "cluster-ip",
	EntryExternalIP:   "external-ip",
	EntryLoadBalancer: "load-balancer-ip",
	EntryNodePort:     "node-port",
}

// Branch is the set of endpoints that were considered, and the reason.
type Branch uint8

// The branches.
const (
	BranchNone         Branch = iota // none
	BranchInternal                   // those of the internal traffic policy
	BranchExternal                   // those of the external traffic policy
	BranchPodShortcut                // external policy Local, but the client is a pod: all of the cluster
	BranchNodeShortcut               // external policy Local, but the client is the node itself: all of the cluster
)

// String returns the branch as in flow records.
func (b Branch) String() string { return nameOf(branchNames[:], b, "") }

var branchNames = [...]string{
	BranchInternal:     "internal-policy",
	BranchExternal:     "external-policy",
	BranchPodShortcut:  "pod-short-circuit",
	BranchNodeShortcut: "node-short-circuit",
}

// Reason is the reason for the verdict.
type Reason uint8

// The reasons for verdicts.
const (
	NotAService        Reason = iota // Accept: no service port has the destination
	Balanced                         // DNAT: an endpoint was selected
	Bound                            // DNAT: affinity binds the client to the endpoint
	NoEndpoints                      // Reject: the cluster has no usable endpoint
	NoLocalEndpoints                 // Drop: policy Local, and the node has no usable endpoint
	SourceNotAllowed                 // Drop: not in the load balancer's source ranges
	ForeignLocalnet                  // Drop: to a loopback address, but not from one
	NotFiltered                      // Accept: the refusing rule is not on its path through the node
	DroppedByHand                    // Drop: it was held at the queue and dropped by hand; [Decide] never returns it
	ByKernel                         // DNAT: the kernel's copy of the service table selected an endpoint; [Decide] never returns it
	ByProxy                          // DNAT: another service proxy selected an endpoint; [Decide] never returns it
	UnknownEndpoint                  // DNAT: another service proxy selected an address that is not an endpoint of the service port; [Decide] never returns it
	NotTranslated                    // Accept: the destination is a service port's, but no proxy translated it; [Decide] never returns it
	TranslationUnknown               // Accept: another service proxy may have translated it, unobserved; [Decide] never returns it
)

// String returns the reason as in flow records.
func (r Reason) String() string { return nameOf(reasonNames[:], r, "unknown") }

var reasonNames = [...]string{
	NotAService:        "not-a-service",
	Balanced:           "balanced",
	Bound:              "affinity",
	NoEndpoints:        "no-endpoints",
	NoLocalEndpoints:   "no-local-endpoints",
	SourceNotAllowed:   "source-not-allowed",
	ForeignLocalnet:    "foreign-localnet",
	NotFiltered:        "not-filtered",
	DroppedByHand:      "dropped-by-hand",
	ByKernel:           "kernel-copy",
	ByProxy:            "service-proxy",
	UnknownEndpoint:    "unknown-endpoint",
	NotTranslated:      "not-translated",
	TranslationUnknown: "translation-unknown",
}

// Observed reports whether the daemon did not decide such a flow, but found it in the connection table.
func (r Reason) Observed() bool { return r >= ByKernel }

// Mark is the reason for the packet's masquerade mark: the first one that applies on the walk.
type Mark uint8

// The reasons for the masquerade mark.
const (
	NotMarked    Mark = iota
	MarkAll           // --masquerade-all
	MarkOutside       // a ClusterIP flow from outside, according to the local detector
	MarkExternal      // an external destination under policy Cluster: the reply must return through this node
	MarkLocal         // an external destination under policy Local, from the node itself
	MarkHairpin       // hairpin: the client is the endpoint
)

// String returns the reason as in flow records; empty for none.
func (m Mark) String() string { return nameOf(markNames[:], m, "") }

var markNames = [...]string{
	MarkAll:      "masquerade-all",
	MarkOutside:  "source-outside-cluster",
	MarkExternal: "external",
	MarkLocal:    "local-source",
	MarkHairpin:  "hairpin",
}

// Decision is the outcome for one packet. It points into the table that it was made from and stays
// valid.
type Decision struct {
	Verdict Verdict
	Reason  Reason
	Entry   Entry
	Branch  Branch
	// Policy is the policy of the considered endpoints; valid iff Branch is not BranchNone.
	Policy Policy
	// Mark is the reason for the packet's masquerade mark, if it has one.
	Mark Mark
	// Masquerade: its source is rewritten, because it is marked and passes POSTROUTING.
	Masquerade bool
	// Index is the endpoint's position in ServicePort.Endpoints; valid iff Verdict
	// is DNAT, and Reason is not UnknownEndpoint.
	Index uint32
	// Draw is in [0, 1); valid iff Drawn.
	Draw  float64
	Drawn bool
	// Pick describes how a [Balancer] selected the endpoint; the zero value: no Balancer did.
	Pick Pick
	// ServicePort is nil iff Reason is NotAService.
	ServicePort *ServicePort
	Generation  uint64 // of the table
}

// HasEndpoint reports whether the decision has an endpoint of its service port.
func (d *Decision) HasEndpoint() bool { return d.Verdict == DNAT && d.Reason != UnknownEndpoint }

// Endpoint is the flow's endpoint. Call it only if the decision has one: see [Decision.HasEndpoint].
func (d *Decision) Endpoint() netip.AddrPort {
	return d.ServicePort.Endpoints[d.Index].AddrPort
}
