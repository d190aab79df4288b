package observe

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Services are service ports, and how their flows spread. The counts are sums over the nodes.
type Services struct {
	Nodes    []string  `json:"nodes"`
	Services []Service `json:"services"` // sorted by [ServiceKey]
	// Next is the [ServiceQuery.After] that the following services come with; empty: these
	// are the last ones.
	Next string `json:"next,omitempty"`
	// Lost counts flows that are in none of the counts, because a node had no room for
	// their records.
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
	// AffinitySeconds is how long clients stay with an endpoint; 0: there is no affinity.
	AffinitySeconds uint32 `json:"affinitySeconds,omitempty"`

	Flows Flows `json:"flows"`
	// Refused counts flows by the reason why they were rejected or dropped.
	Refused map[string]uint64 `json:"refused,omitempty"`
	// Endpoints are sorted as kube-proxy's chains are. Those that went away stay for as long
	// as the service, if they had flows, up to 1,000.
	Endpoints []Endpoint `json:"endpoints"`
	// Fit tells whether the draws spread as they should; nil: there are none to tell from.
	Fit *Fit `json:"fit,omitempty"`
}

// Flows count flows since the daemon's start. A first packet that came again does not count.
// Counts with the name of a [flow.State] are of flows that came into that state.
type Flows struct {
	Total      uint64 `json:"total"`
	Drawn      uint64 `json:"drawn"`      // by lot, or to the only one
	Affinity   uint64 `json:"affinity"`   // to where the client had been before
	Rejected   uint64 `json:"rejected"`   // by the verdict, with an ICMP error
	Dropped    uint64 `json:"dropped"`    // by the verdict
	Failed     uint64 `json:"failed"`     // no connection entry could be made
	Unanswered uint64 `json:"unanswered"` // ended without an answer, or have none yet for three seconds
	Refused    uint64 `json:"refused"`    // by the endpoint, with a RST or an ABORT
	Reset      uint64 `json:"reset"`
	Open       uint64 `json:"open"` // see [flow.Life.Open]; as far as they are still known
	// BytesSent and BytesReceived are of those that are over: the kernel has no entry of them.
	BytesSent     uint64 `json:"bytesSent"`
	BytesReceived uint64 `json:"bytesReceived"`
}

// Errors counts the flows in states that are errors (see [flow.State.IsError]).
func (f *Flows) Errors() uint64 { return f.Refused + f.Reset + f.Rejected + f.Dropped + f.Failed }

// Endpoint is one endpoint of a service port.
type Endpoint struct {
	Endpoint string `json:"endpoint"` // address and port
	Pod      string `json:"pod,omitempty"`
	Node     string `json:"node,omitempty"`
	Local    bool   `json:"local"` // on a node that was asked
	// Excluded says why it gets no new flows under the policy that counts for the
	// ClusterIP, as records say it; empty: it does.
	Excluded string `json:"excluded,omitempty"`
	// Removed: it is no endpoint of the service any more.
	Removed bool `json:"removed,omitempty"`

	Flows Flows `json:"flows"`
	// Expected and Observed are shares of the draws that Fit is about; they add up to 1 each.
	Expected float64 `json:"expected"`
	Observed float64 `json:"observed"`
}

// Fit compares the draws of a service since its endpoints last changed with equal chances
// (Pearson's chi-square test). Flows bound by affinity do not count.
type Fit struct {
	Since time.Time `json:"since"`
	Draws uint64    `json:"draws"`
	// ChiSquare is the sum of (observed - expected)^2 / expected, DegreesOfFreedom the number
	// of endpoints less 1, of each node and policy that had draws.
	ChiSquare        float64 `json:"chiSquare"`
	DegreesOfFreedom int     `json:"degreesOfFreedom"`
	// PValue is how likely draws with equal chances are to spread at least as unequally. Less
	// than 0.01 is suspicious. With fewer than 5 expected draws for each endpoint it means
	// nothing.
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
	Conflicts    []string `json:"conflicts,omitempty"` // addresses that several services claim
}

// Stats are a node's counters since the daemon's start.
type Stats struct {
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Packets received from the queues; Undecodable are those that passed unread, Undecided
	// those that passed because there was no room.
	Packets     uint64 `json:"packets"`
	Undecodable uint64 `json:"undecodable"`
	Undecided   uint64 `json:"undecided"`
	// Flows by verdict: accept, dnat, reject, drop. First packets that came again count again.
	Verdicts map[string]uint64 `json:"verdicts"`
	Reasons  map[string]uint64 `json:"reasons"`
	// Entries are what became of connection entries: created, kept, replaced, failed.
	Entries map[string]uint64 `json:"entries"`
	Known   Known             `json:"known"`
	// Readers follow the flows at this time; Missed counts the records that readers missed.
	Readers int    `json:"readers"`
	Missed  uint64 `json:"missed"`
	Kernel  Kernel `json:"kernel"`
}

// Known is what the node remembers of flows.
type Known struct {
	Flows    int    `json:"flows"`    // remembered now
	Capacity int    `json:"capacity"` // at most
	Open     int    `json:"open"`     // of Flows; see [flow.Life.Open]
	Lost     uint64 `json:"lost"`     // flows there was no room for
	// Forgotten counts flows that were open when they made room for newer ones.
	Forgotten uint64 `json:"forgotten"`
}

// Kernel is what the kernel tells of connections.
type Kernel struct {
	// Following: conntrack's events are received. If not, Why says why, and lives are not known.
	Following bool   `json:"following"`
	Why       string `json:"why,omitempty"`
	// Events received; Overruns counts the times that events were lost, Resyncs the passes
	// over the connection table that made up for it.
	Events   uint64 `json:"events"`
	Overruns uint64 `json:"overruns"`
	Resyncs  uint64 `json:"resyncs"`
	// Paused: so many flows are new that the kernel is not asked about them (see [flow.Life],
	// Incomplete).
	Paused bool `json:"paused"`
	// Accounting and Timestamps say whether the kernel counts bytes and notes times;
	// both are switched on at the start.
	Accounting bool `json:"accounting"`
	Timestamps bool `json:"timestamps"`
}

// Topology is what is known of a cluster and its surroundings.
type Topology struct {
	Nodes []TopologyNode `json:"nodes"`
	Pods  []TopologyPod  `json:"pods"`
	// Hosts are machines outside of the cluster; only labs know any.
	Hosts []TopologyHost `json:"hosts"`
	// Lab is the lab's name; empty: it is none.
	Lab string `json:"lab,omitempty"`
	// CanHold: flows can be held here, see [Observer.Holder].
	CanHold bool `json:"canHold"`
}

// Sort brings nodes, pods and hosts in the order of their names.
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
	// Observed: its flows can be seen here.
	Observed bool `json:"observed"`
}

// TopologyPod is a pod.
type TopologyPod struct {
	Name      string       `json:"name"` // namespace/name
	Node      string       `json:"node"` // empty: not known
	Addresses []netip.Addr `json:"addresses"`
}

// TopologyHost is a machine outside of the cluster.
type TopologyHost struct {
	Name      string       `json:"name"`
	Addresses []netip.Addr `json:"addresses"`
}
