package decision

import (
	"net/netip"
	"strings"
)

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

// Node is the input of a decision about its node. Two nodes with the same services decide
// differently only because of their Node.
type Node struct {
	// Name is the Kubernetes node name, Zone the value of its label
	// topology.kubernetes.io/zone.
	Name, Zone string
	// IPs are the node's own addresses, from its Node object, at most one of each family. A
	// source range that contains one allows the node to use local load balancer IPs.
	IPs []netip.Addr
	// Addresses are all addresses local to the node (iptables: addrtype LOCAL)
	// except loopback ones.
	Addresses []netip.Addr
	// NodePortAddresses restricts node ports to the local addresses within these
	// prefixes. Without a prefix of an address's family there is no restriction.
	NodePortAddresses []netip.Prefix
	// LocalhostNodePorts also opens node ports on IPv4 loopback addresses. They never work on IPv6 ones. It is false if
	// NodePortAddresses exclude 127.0.0.0/8, as in kube-proxy (NewProxier): then there is no KUBE-FIREWALL rule, and
	// route_localnet is unchanged.
	LocalhostNodePorts bool
	// Detector detects pods of this node or the cluster.
	Detector Detector
	// MasqueradeAll masquerades every ClusterIP flow.
	MasqueradeAll bool
	// NoHairpinMasquerade leaves out the masquerading of an endpoint's packets to itself, which breaks such
	// flows. kube-proxy has no such setting: it is for lessons about the rule.
	NoHairpinMasquerade bool
	// MasqueradeMark is the packet mark's bit; 0 means kube-proxy's default, 0x4000.
	MasqueradeMark uint32
}

// DefaultMasqueradeMark is bit 14, kube-proxy's default.
const DefaultMasqueradeMark = 1 << 14

// Mark is MasqueradeMark or its default.
func (n *Node) Mark() uint32 {
	if n.MasqueradeMark == 0 {
		return DefaultMasqueradeMark
	}
	return n.MasqueradeMark
}

// IP is the node's own address of the family; the zero Addr if there is none.
func (n *Node) IP(f Family) netip.Addr {
	a, _ := AddressOf(n.IPs, f)
	return a
}

// Detector is kube-proxy's local detector (pkg/proxy/util/localdetector.go). At most one field is set; the zero
// Detector detects nothing, and no ClusterIP flow is masqueraded as coming from outside.
type Detector struct {
	// CIDRs are the pods' prefixes. Only the first of each family counts.
	CIDRs []netip.Prefix
	// Bridge is the input interface of pods' packets.
	Bridge string
	// InterfacePrefix is the prefix of the names of pods' interfaces.
	InterfacePrefix string
}

// CIDR is the prefix for the family, if there is one.
func (d *Detector) CIDR(f Family) (netip.Prefix, bool) {
	return PrefixOf(d.CIDRs, f)
}

// Implemented reports whether the detector works for the family.
func (d *Detector) Implemented(f Family) bool {
	_, ok := d.CIDR(f)
	return ok || d.Bridge != "" || d.InterfacePrefix != ""
}

// IsLocal reports whether the packet comes from a pod, according to the detector. The detector
// must be implemented for its family.
func (d *Detector) IsLocal(p *Packet) bool {
	switch {
	case d.Bridge != "":
		return p.InInterface == d.Bridge
	case d.InterfacePrefix != "":
		// A packet that originates on the node has no input interface.
		return strings.HasPrefix(p.InInterface, d.InterfacePrefix)
	}
	cidr, ok := d.CIDR(FamilyOf(p.Source.Addr()))
	return ok && cidr.Contains(p.Source.Addr())
}

// Balancer selects endpoints for the flows of service ports with their own algorithm ([ServicePort.Balance]). Package
// balance has one. It is safe for concurrent use; it is called for each new flow, so it neither blocks nor allocates.
type Balancer interface {
	// Pick selects an endpoint for the flow that starts with the packet, from those of the policy in ServicePort.Usable:
	// at least one. Affinity has already been checked.
	Pick(s *ServicePort, policy Policy, p *Packet, r Rand) Pick
	// Take is Pick for a flow whose endpoint affinity has fixed: that at the position in the policy's
	// ServicePort.Usable.
	Take(s *ServicePort, policy Policy, position uint32) Pick
}

// Pick describes how a [Balancer] selected an endpoint.
type Pick struct {
	// Position is the endpoint's position in ServicePort.Usable of the flow's policy.
	Position uint32
	// Evidence has the numbers that the algorithm based its choice on.
	Evidence Evidence
	// SatOut counts the endpoints that the algorithm left out because they failed; FirstOut is one of
	// them. They are about ejection only.
	SatOut   uint16
	FirstOut Out
	// Probability is the endpoint's probability of being selected, given the state of the
	// algorithm; 0: unknown.
	Probability float64
	// Draw is in [0, 1); valid iff Drawn: the endpoint is the one at position floor(draw * n) of n.
	Draw  float64
	Drawn bool
}

// Out is an endpoint that was left out because it failed.
type Out struct {
	Position uint32 // in ServicePort.Usable
	Failures uint16 // in a row
	Seconds  uint16 // until it is tried again
}

// Evidence is the basis of an algorithm's choice, in numbers, so that no flow costs memory. Its meaning
// depends on the kind.
type Evidence struct {
	Kind   EvidenceKind
	Values [3]uint32
	// Note is a sentence, for algorithms without their own kind of evidence.
	Note string
}

// EvidenceKind is the kind of an [Evidence].
type EvidenceKind uint8

// The kinds of evidence, and the values of each.
const (
	NoEvidence EvidenceKind = iota
	// Only: there was no other, or affinity fixed it.
	Only
	// DrawnOf: drawn at random from this many.
	DrawnOf
	// Turn: its turn in the rotation; the turn's number, and the number of turns in a round.
	Turn
	// Slot: the flow's hash points to its slot; the slot, and the number of slots.
	Slot
	// FewestOpen: the fewest open connections of all; open, inactive, weight.
	FewestOpen
	// FewerOpen: fewer open connections than the others of a sample; open, those of the best of the
	// others, the size of the sample.
	FewerOpen
	// Idle: it has no open connection.
	Idle
	// ShortestDelay: the shortest expected delay of all, (open+1)/weight; open, weight.
	ShortestDelay
	// LowerCost: a lower cost than the other of a sample, both in microseconds; latency times open
	// connections plus one.
	LowerCost
	// Noted: see Note.
	Noted
)

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
