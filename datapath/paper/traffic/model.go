// Package traffic simulates a cluster under load in simulated time: clients on nodes, flows that each
// node's own decision code sends to endpoints, endpoints that work, queue and refuse, and changes of
// the cluster. Nothing of the decision is modelled: it is [decision.Decide] with a [balance.Balancer]
// for each node.
//
// A run reads no clock and starts no goroutine. Its result has the same bits for the same [Config] on
// all machines.
package traffic

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/nfqproxy/nfqproxy/datapath/balance"
)

// Config is a simulation. Times are since its start. The tags are those of experiment files.
type Config struct {
	Cluster  Cluster  `json:"cluster"`
	Workload Workload `json:"workload"`
	Events   []Event  `json:"events"`

	// Duration is for how long flows arrive. The simulation goes on until all connections have ended.
	Duration time.Duration `json:"duration"`
	// Warmup is the time at the start whose flows are in no result.
	Warmup time.Duration `json:"warmup"`
	// Window is the time from one row of the time series to the next; 0: 1/60 of Duration.
	Window time.Duration `json:"window"`
}

// Cluster is the simulated cluster when the simulation starts.
type Cluster struct {
	Nodes    []Node    `json:"-"`
	Services []Service `json:"-"`
	// Propagation is the time from a change to its arrival at a node, for each node of its own; nil: none.
	Propagation *Distribution `json:"propagation"`
}

// Node is a node with clients and endpoints.
type Node struct {
	Name, Zone string
}

// Service is a service with one port.
type Service struct {
	Namespace, Name string
	ClusterIP       netip.Addr
	Port            uint16
	// Algorithm is the service's own; empty: the one that is examined.
	Algorithm string
	// Concurrency is how many connections an endpoint works on at a time, at least 1. Backlog is how
	// many others wait; it refuses more.
	Concurrency, Backlog int
	// SameZone: nodes use the endpoints of their zone, if there are any (trafficDistribution
	// PreferSameZone).
	SameZone  bool
	Endpoints []Endpoint
}

// Endpoint is an endpoint of a service.
type Endpoint struct {
	AddrPort netip.AddrPort
	Node     int // in Cluster.Nodes
	Weight   uint16
}

// Workload is what clients do.
type Workload struct {
	Arrivals Arrivals `json:"arrivals"`
	// Zipf is the exponent of the services' popularity: the k-th gets flows in proportion to k to the
	// power of -Zipf; 0: all the same.
	Zipf    float64 `json:"zipf"`
	Clients Clients `json:"clients"`
	// Work is the time that an endpoint works on a connection.
	Work Distribution `json:"work"`
	// Requests is what clients do with connections; nil: each has one request.
	Requests *Requests `json:"requests"`
	// Idle is the time that a connection stays open after the work, or the last of several requests; nil: none.
	Idle *Distribution `json:"idle"`
	// RoundTrip is the time of a packet to the endpoint and of its reply.
	RoundTrip time.Duration `json:"roundTrip"`
	// Accept is who answers a client: worker, when a worker takes the connection, or kernel, at once, while
	// the connection waits in the backlog. Empty: worker.
	Accept string `json:"accept"`
	// GiveUp is after what time a client gives up whose endpoint is gone; 0: 3 seconds. A client that waits for a worker does not.
	GiveUp time.Duration `json:"giveUp"`
	// TimeWait is for how long the entry of a closed connection remains in its node's connection table,
	// where some algorithms count it; 0: 120 seconds (net.netfilter.nf_conntrack_tcp_timeout_time_wait).
	TimeWait time.Duration `json:"timeWait"`
}

// The values of Workload.Accept.
const (
	ByWorker = "worker"
	ByKernel = "kernel"
)

const (
	// DefaultGiveUp is the default of Workload.GiveUp.
	DefaultGiveUp   = 3 * time.Second
	defaultTimeWait = 120 * time.Second
)

// Clients are the clients on each node.
type Clients struct {
	// PerNode is the number of addresses; 0: 10.
	PerNode int `json:"perNode"`
	// Ports is how many source ports a client uses in turn; 0: 28,232, the default range of Linux
	// (net.ipv4.ip_local_port_range).
	Ports int `json:"ports"`
}

// PerNode is the number of clients on each node.
func (c *Config) PerNode() int { return cmp.Or(c.Workload.Clients.PerNode, defaultClients) }

const (
	firstPort, portRange = 32768, 28232
	defaultClients       = 10
	maxClients           = 1 << 20 // addresses in 172.16.0.0/12
)

// Event is a change at a time. Exactly one of the others is set.
type Event struct {
	At            time.Duration  `json:"at"`
	Scale         *Scale         `json:"scale"`
	Autoscale     *Autoscale     `json:"autoscale"`
	RollingUpdate *RollingUpdate `json:"rollingUpdate"`
	Slow          *Slow          `json:"slow"`
	Antagonist    *Antagonist    `json:"antagonist"`
	NodeLoss      *NodeLoss      `json:"nodeLoss"`
	Flush         *Flush         `json:"conntrackFlush"`
	Away          *Away          `json:"apiServerAway"`
}

// Scale sets the number of a service's endpoints. New ones start as those of a rolling update, and those
// that are too many, the newest, end as those of one.
type Scale struct {
	Lifecycle `json:",inline"`
	To        int `json:"to"`
}

// RollingUpdate replaces all endpoints of a service, one after the other: a new one starts, and when it
// is ready, an old one ends.
type RollingUpdate struct {
	Lifecycle `json:",inline"`
	// Every is the time from one endpoint to the next; 0: as long as one takes to be ready.
	Every time.Duration `json:"every"`
}

// Lifecycle is how endpoints of a service start and end.
type Lifecycle struct {
	// Service is the service's name, or namespace/name; empty: the first.
	Service string `json:"service"`
	// Ready is the time from an endpoint's start until it is in the service; Listens that until it accepts
	// connections. It refuses until then: Listens after Ready is a readiness probe that succeeds too early.
	Ready   time.Duration `json:"ready"`
	Listens time.Duration `json:"listens"`
	// PreStop is the time that an endpoint still accepts connections after it has left the service. Then
	// it refuses, until Grace has passed since it left: then it is gone, with the connections that are
	// still open.
	PreStop time.Duration `json:"preStop"`
	Grace   time.Duration `json:"grace"`
}

// Slow makes the first endpoints of a service slower.
type Slow struct {
	Service   string        `json:"service"`
	Endpoints int           `json:"endpoints"` // 0: 1
	Factor    float64       `json:"factor"`    // of the time of their work
	For       time.Duration `json:"for"`       // 0: until the end
}

// Antagonist is other load on the last nodes, which makes their endpoints slower.
type Antagonist struct {
	Nodes  int           `json:"nodes"` // 0: 1
	Factor float64       `json:"factor"`
	For    time.Duration `json:"for"` // 0: until the end
}

// NodeLoss is the loss of the last nodes, with their clients and endpoints. Connections to these end, and
// new ones get no reply.
type NodeLoss struct {
	Nodes int `json:"nodes"` // 0: 1
	// Noticed is after what time the endpoints leave their services; 0: 40 seconds
	// (kube-controller-manager --node-monitor-grace-period up to Kubernetes 1.31).
	Noticed time.Duration `json:"noticed"`
}

const defaultNoticed = 40 * time.Second

// Flush empties the connection tables of the first nodes. Their open connections are decided again, and
// those that get another endpoint break.
type Flush struct {
	Nodes int `json:"nodes"` // 0: all
}

// Away is an API server that is away: changes reach the nodes when it is back.
type Away struct {
	For time.Duration `json:"for"`
}

// Options are those of a run that do not change what is simulated.
type Options struct {
	// Algorithms has the algorithms; nil: the built-in ones and those of package algorithms. Of entries with Simulated, the
	// simulation has its own.
	Algorithms *balance.Registry
	// Progress is called now and then with the simulated time; it reports whether to go on. Nil: go on.
	Progress func(at time.Duration) bool
	// Stopwatch returns nanoseconds, to measure the time of decisions; nil: they are not measured. It has
	// no influence on anything else.
	Stopwatch func() int64
	// Series: the result has [Result.Series].
	Series bool
}
