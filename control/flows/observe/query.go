package observe

// FlowQuery says which flows, and how they are to be given. Fields are as people write
// them; the zero value asks for all. All that are given must hold. Where a list is taken,
// values are separated by commas, and one of them must hold.
type FlowQuery struct {
	// Follow gives a record for each event, from now on, until the context ends. Otherwise
	// each flow is given once, as it is known.
	Follow bool
	// Service is NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT; a list.
	Service string
	// Namespace is that of the service, or of the source's or the endpoint's pod; a list.
	Namespace string
	// Pod is NAME or NAMESPACE/NAME of the source's or the endpoint's pod; a list.
	Pod string
	// Node is where it was decided; a list.
	Node string
	// Source, Destination and Endpoint are ADDRESS, PREFIX or ADDRESS:PORT ([IPV6]:PORT);
	// Destination is the one that was asked for, before translation. Source and Endpoint are
	// also NAME or NAME:PORT, with the name of a pod ([NAMESPACE/]NAME), a node or a machine
	// outside of the cluster. Lists.
	Source, Destination, Endpoint string
	// Port is the destination port, before translation; a list.
	Port string
	// Protocol is TCP, UDP or SCTP, in either case; a list.
	Protocol string
	// Verdict, Reason and State are as records have them; lists. State is the flow's state
	// at the time of the event.
	Verdict, Reason, State string
	// ServicesOnly leaves out the flows that are for no service and pass untouched (reason
	// not-a-service), and gives their number: [MissedLeftOut].
	ServicesOnly bool
	// Event has only these events given, following; a list.
	Event string
	// Since is a time (RFC 3339) or how long ago (5m): no flows that were decided earlier.
	// Following, what happened since then, and is still known, comes first.
	Since string
	// Limit is how many: of the newest or, following, how many from before come first. Empty:
	// 100 or, following, 0 and with Since all. "0": all that are known.
	Limit string
	// Steps adds the walk through kube-proxy's chains.
	Steps bool
}

// ServiceQuery says which services.
type ServiceQuery struct {
	// Service and Namespace are as in [FlowQuery].
	Service, Namespace string
	// Active leaves out services that had no flow.
	Active bool
	// Limit is how many at most; empty or "0": all. What follows is behind [Services.Next].
	Limit string
	// After is the [Services.Next] of an earlier answer: the services behind it. Services that
	// come and go between two answers do not move the others to another page.
	After string
}
