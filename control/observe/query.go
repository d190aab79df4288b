package observe

import (
	"cmp"
	"strconv"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/decision"
)

// FlowQuery selects flows and the form of the result. Fields are as users write them; the zero value selects all. A
// flow must match all given fields. Values in a list are separated by commas, and one of them must match.
type FlowQuery struct {
	// Follow sends a record for each event, from now on, until the context ends. Otherwise each
	// flow is returned once, in its present state.
	Follow bool
	// Service is NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT; a list.
	Service string
	// Namespace is the namespace of the service, the source pod or the endpoint's pod; a list.
	Namespace string
	// Pod is NAME or NAMESPACE/NAME of the source pod or the endpoint's pod; a list.
	Pod string
	// Node is the deciding node; a list.
	Node string
	// Source, Destination and Endpoint are ADDRESS, PREFIX or ADDRESS:PORT ([IPV6]:PORT); Destination is as before
	// translation. Source and Endpoint may also be NAME or NAME:PORT, with the name of a pod ([NAMESPACE/]NAME), a node
	// or a machine outside the cluster. Lists.
	Source, Destination, Endpoint string
	// Port is the destination port, before translation; a list.
	Port string
	// Protocol is TCP, UDP or SCTP, in either case; a list.
	Protocol string
	// Verdict, Reason and State are as in records; lists. State is the flow's state at the time
	// of the event.
	Verdict, Reason, State string
	// ServicesOnly leaves out flows for no service, which pass unchanged (reason not-a-service),
	// and reports their number: [MissedLeftOut].
	ServicesOnly bool
	// Joined adds what other nodes decided about the same connections ([Item.Joined]), including nodes and flows that
	// the query leaves out. In a list they come right after their record, and are not separate records; a list of all
	// flows ("0") of more than 16 nodes is not joined. With only one observed node there is nothing to add.
	Joined bool
	// Event selects events, with Follow; a list.
	Event string
	// Since is a time (RFC 3339) or an age (5m): leave out flows decided earlier. With Follow, known events since then
	// are sent first.
	Since string
	Until string // as Since: leave out flows decided then or later; not with Follow
	// Limit is the number of newest flows or, with Follow, of past flows to send first. Empty: 100; with Follow 0, with
	// Follow and Since all. "0": all known flows.
	Limit string
	// Rate is the maximum number of records per second of all nodes together, with Follow. Above it the reader gets all
	// records of a sample of flows, and a report ([MissedSampled]). Empty: the limit of each node, and that of a
	// [Relay].
	Rate string
	// Steps adds the walk through kube-proxy's chains.
	Steps bool
}

// ServiceQuery selects services.
type ServiceQuery struct {
	// Service and Namespace are as in [FlowQuery].
	Service, Namespace string
	// Active leaves out services without flows.
	Active bool
	// Changes adds the newest changes of each service port.
	Changes bool
	// Limit is the maximum number; empty or "0": all. [Services.Next] is the next page.
	Limit string
	// After is the [Services.Next] of the last response: continue after it. Services added or removed meanwhile do not
	// shift the pages.
	After string
}

// ServiceKey identifies a service port in one address family, and is the sort key of lists of
// services.
type ServiceKey struct {
	decision.ServicePortName
	Family string // IPv4 or IPv6
}

// Key returns the service's key.
func (s *Service) Key() ServiceKey {
	return ServiceKey{decision.ServicePortName{Namespace: s.Namespace, Name: s.Name, Port: s.PortName}, s.Family}
}

// Compare orders by namespace, name, port and family.
func (k ServiceKey) Compare(o ServiceKey) int {
	return cmp.Or(k.Service().Compare(o.Service()), cmp.Compare(k.Port, o.Port), cmp.Compare(k.Family, o.Family))
}

// String returns namespace/name:port/family, the form of [ServiceQuery.After].
func (k ServiceKey) String() string { return k.ServicePortName.String() + "/" + k.Family }

// ObjectsQuery selects a service table, and which of its objects.
type ObjectsQuery struct {
	Node       string // optional if there is only one
	Generation string // the number of the table; empty: the one in force
	Service    string // NAMESPACE/NAME; empty: all
}

// TableObjects is a service table as Kubernetes objects.
type TableObjects struct {
	Node       string    `json:"node"`
	Generation uint64    `json:"generation"`
	Built      time.Time `json:"built"`
	// YAML has the Services, their EndpointSlices and the Node, separated by "---", from which the same table is made
	// for this node. They have only what a service table depends on.
	YAML string `json:"yaml"`
}

// Parse returns the number of the generation, 0 for the one in force, and the Service; a zero name: all. The error
// is an [*Error].
func (q ObjectsQuery) Parse() (generation uint64, service decision.ServiceName, err error) {
	if q.Generation != "" {
		if generation, err = strconv.ParseUint(q.Generation, 10, 64); err != nil || generation == 0 {
			return 0, service, badParameter("generation", "generation %q: want the number of a service table, from 1", q.Generation)
		}
	}
	if q.Service != "" {
		service, err = parseServiceName(q.Service)
	}
	return generation, service, err
}
