package decision

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
