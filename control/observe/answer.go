package observe

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Services are service ports with the distribution of their flows. The counts are sums over the nodes.
type Services struct {
	Nodes    []string  `json:"nodes"`
	Services []Service `json:"services"` // sorted by [ServiceKey]
	// Next is the [ServiceQuery.After] of the next page; empty: this is the last one.
	Next string `json:"next,omitempty"`
	// Lost counts flows that are not counted because of a queue overflow on their node.
	Lost uint64 `json:"lost"`
}

// Service is one service port in one address family.
type Service struct {
	Service         string       `json:"service"` // namespace/name:port
	Namespace       string       `json:"namespace"`
	Name            string       `json:"name"`
	PortName        string       `json:"portName,omitempty"`
	Family          string       `json:"family"` // IPv4 or IPv6
	Protocol        string       `json:"protocol"`
	ClusterIP       string       `json:"clusterIP"`
	Port            uint16       `json:"port"`
	NodePort        uint16       `json:"nodePort,omitempty"`
	ExternalIPs     []netip.Addr `json:"externalIPs,omitempty"`
	LoadBalancerIPs []netip.Addr `json:"loadBalancerIPs,omitempty"`
	InternalPolicy  string       `json:"internalPolicy"`
	ExternalPolicy  string       `json:"externalPolicy"`
	// AffinitySeconds is the timeout of session affinity; 0: no affinity.
	AffinitySeconds uint32 `json:"affinitySeconds,omitempty"`
	// Balance is the balancing algorithm; empty: random, like kube-proxy.
	Balance string `json:"balance,omitempty"`

	Flows Flows `json:"flows"`
	// Refused counts rejected and dropped flows by reason.
	Refused map[string]uint64 `json:"refused,omitempty"`
	// Endpoints are in the order of kube-proxy's chains. Removed endpoints that had flows stay for
	// as long as the service, up to 1,000.
	Endpoints []Endpoint `json:"endpoints"`
	// Fit tests the random selections for equal probabilities; nil: there are none.
	Fit *Fit `json:"fit,omitempty"`
	// Changes are the newest changes of the service port in each node's table, oldest first, with
	// [ServiceQuery.Changes].
	Changes []Change `json:"changes,omitempty"`
}

// Change describes how one service table changed a service port, and when that took effect. All times but Changed are
// by the node's clock.
type Change struct {
	Node       string `json:"node"`
	Generation uint64 `json:"generation"`
	// Changed is when the cause of the change happened, by the clock of the control plane: the trigger time of the
	// EndpointSlice (annotation endpoints.kubernetes.io/last-change-trigger-time), often in whole seconds. nil: unknown,
	// as for changes to a Service.
	Changed *time.Time `json:"changed,omitempty"`
	// Received is when the daemon received the first changed object of the Service; nil: none changed (instead an
	// algorithm was switched, or the node's zone changed).
	Received *time.Time `json:"received,omitempty"`
	Time     time.Time  `json:"time"` // when the table was built
	// InForce is when all workers and the kernel's rules used the table; nil: unknown. Some workers use it earlier.
	InForce *time.Time `json:"inForce,omitempty"`
	// FirstFlow is the earliest flow of the service port that this or a later table decided; nil: none yet.
	// Repeated packets, kept and failed entries, flows decided by hand or by the kernel's copy do not count.
	// Flows bound by session affinity count: the table allowed their endpoint.
	FirstFlow *ChangeFlow `json:"firstFlow,omitempty"`
	Created   bool        `json:"created,omitempty"` // the service port is new
	// Settings: its addresses, ports, policies, source ranges, affinity or algorithm changed.
	Settings  bool             `json:"settings,omitempty"`
	Endpoints []EndpointChange `json:"endpoints,omitempty"`
	// More is the number of changed endpoints left out.
	More int `json:"more,omitempty"`
}

// ChangeFlow is a flow of a [Change]. The node may have evicted it for newer ones.
type ChangeFlow struct {
	ID       string    `json:"id"`
	Time     time.Time `json:"time"` // of the decision
	Verdict  string    `json:"verdict"`
	Endpoint string    `json:"endpoint,omitempty"` // empty: none
}

// EndpointChange is a change of one endpoint.
type EndpointChange struct {
	Endpoint string `json:"endpoint"` // address and port
	Pod      string `json:"pod,omitempty"`
	Change   string `json:"change"` // see the constants
	// Excluded is the reason why it receives no new flows to the ClusterIP, as in records; empty: it receives them,
	// or it was removed.
	Excluded string `json:"excluded,omitempty"`

	// FirstFlow, for an endpoint that gets new flows since the change, is the first one that created a connection to it;
	// nil: none yet.
	FirstFlow *ChangeFlow `json:"firstFlow,omitempty"`
	// Rules is when the rules of the observed service proxy had the change, by the kernel's notification; nil: unknown.
	// Only nftables notifies, with both of kube-proxy's modes that use it: nftables, and iptables with its back end
	// nf_tables.
	Rules *time.Time `json:"rules,omitempty"`
	// RulesAwaited: the rules of the observed service proxy must change, and the kernel has not yet notified the daemon
	// of it.
	RulesAwaited bool `json:"rulesAwaited,omitempty"`
	// LastFlow, for a removed or excluded endpoint, is the last flow that created a connection to it before it got new
	// flows again; nil: none. Traffic under the other policy may reach an excluded endpoint.
	LastFlow *ChangeFlow `json:"lastFlow,omitempty"`
	// Open is the number of its open connections now, among the flows that the node keeps; Closed is when the last one
	// ended, if none is open. nil: unknown, because it gets new flows again or life cycles are not available.
	Open   *uint64    `json:"open,omitempty"`
	Closed *time.Time `json:"closed,omitempty"`
}

// The changes of an endpoint.
const (
	EndpointAdded    = "added"
	EndpointRemoved  = "removed"
	EndpointUsable   = "usable"   // it receives new flows again
	EndpointExcluded = "excluded" // it no longer receives new flows, or the reason changed
)

// What is measured after a change of an endpoint.
const (
	FirstFlow = "first_flow" // the first flow to one that gets new flows since the change
	LastFlow  = "last_flow"  // the last flow to one that no longer gets any
	Rules     = "rules"      // when the rules of the observed service proxy had the change
)

// Flows are counts of flows since the daemon's start. Retransmissions of first packets do not count. Counts named after
// a [flow.State] are of flows that entered it.
type Flows struct {
	Total      uint64 `json:"total"`
	Drawn      uint64 `json:"drawn"`      // endpoint selected at random, or the only one
	Affinity   uint64 `json:"affinity"`   // endpoint selected by session affinity
	Rejected   uint64 `json:"rejected"`   // by the verdict, with an ICMP error
	Dropped    uint64 `json:"dropped"`    // by the verdict
	Failed     uint64 `json:"failed"`     // conntrack entry could not be created
	Unanswered uint64 `json:"unanswered"` // ended without a reply, or have had none for three seconds
	Refused    uint64 `json:"refused"`    // by the endpoint, with a RST or an ABORT
	Reset      uint64 `json:"reset"`
	Open       uint64 `json:"open"` // see [flow.Life.Open]; of the flows that the node keeps
	// Flows that an observed service proxy treated differently from the objects that the node knew when they began: it
	// sent them to an endpoint that no longer got new flows, or to an address that is not an endpoint in any table that
	// the node keeps, or did not translate them.
	Outdated        uint64 `json:"outdated,omitempty"`
	UnknownEndpoint uint64 `json:"unknownEndpoint,omitempty"`
	NotTranslated   uint64 `json:"notTranslated,omitempty"`
	// BytesSent and BytesReceived are of flows whose conntrack entry is gone.
	BytesSent     uint64 `json:"bytesSent"`
	BytesReceived uint64 `json:"bytesReceived"`
}

// Add adds the counts of other flows.
func (f *Flows) Add(o *Flows) {
	*f = Flows{
		Total: f.Total + o.Total, Drawn: f.Drawn + o.Drawn, Affinity: f.Affinity + o.Affinity,
		Rejected: f.Rejected + o.Rejected, Dropped: f.Dropped + o.Dropped, Failed: f.Failed + o.Failed,
		Unanswered: f.Unanswered + o.Unanswered, Refused: f.Refused + o.Refused, Reset: f.Reset + o.Reset, Open: f.Open + o.Open,
		Outdated: f.Outdated + o.Outdated, UnknownEndpoint: f.UnknownEndpoint + o.UnknownEndpoint, NotTranslated: f.NotTranslated + o.NotTranslated,
		BytesSent: f.BytesSent + o.BytesSent, BytesReceived: f.BytesReceived + o.BytesReceived,
	}
}

// Endpoint is one endpoint of a service port.
type Endpoint struct {
	Endpoint string `json:"endpoint"` // address and port
	Pod      string `json:"pod,omitempty"`
	Node     string `json:"node,omitempty"`
	Local    bool   `json:"local"` // on an observed node
	// Excluded is the reason why it receives no new flows to the ClusterIP, as in records; empty: it
	// receives them.
	Excluded string `json:"excluded,omitempty"`
	// Removed: it is no longer an endpoint of the service.
	Removed bool `json:"removed,omitempty"`

	Flows Flows `json:"flows"`
	// Expected and Observed are shares of the random selections of Fit; they add up to 1 each.
	Expected float64 `json:"expected"`
	Observed float64 `json:"observed"`
}

// Fit compares the random selections of a service since its endpoints last changed with equal
// probabilities (Pearson's chi-square test). Flows with session affinity do not count. Selections of
// another algorithm count and are not tested: there are no degrees of freedom.
type Fit struct {
	Since time.Time `json:"since"`
	Draws uint64    `json:"draws"`
	// ChiSquare is the sum of (observed - expected)^2 / expected, DegreesOfFreedom the number
	// of endpoints less 1, of each node and policy with random selections.
	ChiSquare        float64 `json:"chiSquare"`
	DegreesOfFreedom int     `json:"degreesOfFreedom"`
	// PValue is the probability of an at least as uneven distribution under equal probabilities.
	// Less than 0.01 is suspicious. It is not valid with fewer than 5 expected selections for
	// each endpoint.
	PValue float64 `json:"pValue"`
}

// Table describes a node's service table.
type Table struct {
	Node       string       `json:"node"`
	Addresses  []netip.Addr `json:"addresses"` // of the node
	Generation uint64       `json:"generation"`
	Built      time.Time    `json:"built"`
	Services   int          `json:"services"`
	// ServicePorts and Endpoints count both families.
	ServicePorts int      `json:"servicePorts"`
	Endpoints    int      `json:"endpoints"`
	Conflicts    []string `json:"conflicts,omitempty"` // addresses of more than one service
	// Digest identifies the services and endpoints, without what differs between nodes: nodes with the same objects have
	// the same digest.
	Digest string `json:"digest"`
}

// Stats are a node's counters since the daemon's start.
type Stats struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Packets were received from the queues; Undecodable ones passed because they could not be decoded, Undecided ones
	// because of an overflow.
	Packets     uint64 `json:"packets"`
	Undecodable uint64 `json:"undecodable"`
	Undecided   uint64 `json:"undecided"`
	// Verdicts counts flows by verdict: accept, dnat, reject, drop. Retransmissions of first packets count.
	Verdicts map[string]uint64 `json:"verdicts"`
	Reasons  map[string]uint64 `json:"reasons"`
	// Entries counts conntrack entries by outcome: created, kept, replaced, failed.
	Entries map[string]uint64 `json:"entries"`
	Known   Known             `json:"known"`
	// Generations lists the generations of the service table that the node keeps.
	Generations Generations `json:"generations"`
	// Readers is the number of clients that follow the flows; Missed counts the records that they missed.
	Readers int    `json:"readers"`
	Missed  uint64 `json:"missed"`
	Kernel  Kernel `json:"kernel"`
}

// Known describes the flows that a node keeps.
type Known struct {
	Flows    int    `json:"flows"`    // kept now
	Capacity int    `json:"capacity"` // at most
	Open     int    `json:"open"`     // of Flows; see [flow.Life.Open]
	Lost     uint64 `json:"lost"`     // flows lost by overflow
	// Forgotten counts open flows that were evicted for newer ones.
	Forgotten uint64 `json:"forgotten"`
}

// Generations describes the generations of the service table that a node keeps to explain the flows that it remembers.
type Generations struct {
	Kept   int    `json:"kept"`   // including the one in force
	Oldest uint64 `json:"oldest"` // the oldest that is kept; 0: there is no table yet
	// Bytes estimates the memory that they use in addition to the table in force.
	Bytes int `json:"bytes"`
	// Dropped counts those evicted for newer ones.
	Dropped uint64 `json:"dropped"`
}

// Kernel describes the subscription to conntrack events.
type Kernel struct {
	// Following: conntrack events are received. If not, Why is the reason, and flow life cycles are
	// not available.
	Following bool   `json:"following"`
	Why       string `json:"why,omitempty"`
	// Events counts received events, Overruns the times that events were lost, and Resyncs the
	// dumps of the conntrack table to recover from it.
	Events   uint64 `json:"events"`
	Overruns uint64 `json:"overruns"`
	Resyncs  uint64 `json:"resyncs"`
	// Paused: events are not requested now because the rate of new flows is too high (see [flow.Life], Incomplete).
	Paused bool `json:"paused"`
	// Accounting and Timestamps: the kernel counts bytes and records times; nfqproxy enables both
	// at its start.
	Accounting bool `json:"accounting"`
	Timestamps bool `json:"timestamps"`
}

// Topology lists the known nodes and pods of a cluster, and external machines.
type Topology struct {
	Nodes []TopologyNode `json:"nodes"`
	Pods  []TopologyPod  `json:"pods"`
	// Hosts are machines outside the cluster; only labs have any.
	Hosts []TopologyHost `json:"hosts"`
	// Lab is the lab's name; empty: not a lab.
	Lab string `json:"lab,omitempty"`
	// CanHold: the server supports holding flows, see [Observer.Holder].
	CanHold bool `json:"canHold"`
	// CanBalance: algorithms can be switched, see [Balancing].
	CanBalance bool `json:"canBalance"`
	// CanRequest: requests can be sent from hosts, see [Requester].
	CanRequest bool `json:"canRequest"`
	// CanLearn: a course is running, see [Teacher].
	CanLearn bool `json:"canLearn"`
	// CanChange: the lab can be changed, see [Lab].
	CanChange bool `json:"canChange"`
	// CanWhy: questions about causes are answered, see [Doctor.Why].
	CanWhy bool `json:"canWhy"`
	// HasHistory: lists of flows until a time come from a history, which goes back further than the nodes' memory.
	HasHistory bool `json:"hasHistory"`
}

// Sort sorts nodes, pods and hosts by name.
func (t *Topology) Sort() {
	slices.SortFunc(t.Nodes, func(a, b TopologyNode) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Pods, func(a, b TopologyPod) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(t.Hosts, func(a, b TopologyHost) int { return strings.Compare(a.Name, b.Name) })
}

// TopologyNode is a node of the cluster.
type TopologyNode struct {
	Name      string         `json:"name"`
	Addresses []netip.Addr   `json:"addresses"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs,omitempty"`
	// Observed: its flows are observed.
	Observed bool `json:"observed"`
}

// TopologyPod is a pod.
type TopologyPod struct {
	Name      string       `json:"name"` // namespace/name
	Node      string       `json:"node"` // empty: unknown
	Addresses []netip.Addr `json:"addresses"`
}

// TopologyHost is a machine outside the cluster.
type TopologyHost struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
}
