// Package localnode observes the flows of the node it runs on: it is the [observe.Observer] behind a
// daemon's flow API.
package localnode

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/control/live/journal"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/shadow"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/live/engine"
	"golang.org/x/sync/semaphore"
)

// Owners returns the owners of addresses; see [servicetable.Owners].
type Owners interface {
	Owner(netip.Addr) flow.Owner
	Pods(each func(name, node string, addresses []netip.Addr))
	Nodes(each func(name string, addresses []netip.Addr))
}

// Config is the configuration of a Node.
type Config struct {
	Name    string // of the node
	Version string // of this program
	Journal *journal.Journal
	Owners  Owners
	// Table is the service table in force; nil: none yet.
	Table func() *decision.Table
	// Stats are the datapath's; nil before it runs.
	Stats func() *engine.Stats
	// HostRules returns the host's own nat rules; it may be nil, and return nil.
	HostRules func() explain.HostRules
	// Daemon is required for [Node.Status].
	Daemon Daemon
	// Holder holds flows; nil: holding flows is not supported.
	Holder observe.Holder
	// Algorithms are those that Services can have; nil: none.
	Algorithms *balance.Registry
	// Switch sets a Service's algorithm, as [servicetable.Controller.Balance] does; nil: the node is no [observe.Balancing].
	Switch func(ctx context.Context, name decision.ServiceName, algorithm *string) error
	// Shadows are the algorithms that decide without effect; nil: none do.
	Shadows *shadow.Shadows
	// Records is the rate limit for all readers together, in records per second; a fifth of it
	// while the journal is busy; 0: [observe.NodeRecords]. Beyond it each reader gets a sample of flows, and a
	// report of the missed records.
	Records int
}

// Node is the observer of this node.
type Node struct {
	config  Config
	readers atomic.Int64
	missed  atomic.Uint64
	// large is a lock held by requests for the objects of a table, which take memory in proportion to the cluster.
	large  *semaphore.Weighted
	digest digest
}

var (
	_ observe.Observer        = (*Node)(nil)
	_ observe.Balancing       = (*Node)(nil)
	_ observe.ServiceStreamer = (*Node)(nil)
)

// New returns the observer.
func New(c Config) *Node {
	if c.Records == 0 {
		c.Records = observe.NodeRecords
	}
	return &Node{config: c, large: semaphore.NewWeighted(1)}
}

// Holder implements [observe.Observer].
func (n *Node) Holder() observe.Holder { return n.config.Holder }

// Flow returns a flow, with its present counters from the kernel.
func (n *Node) Flow(_ context.Context, id string) (*flow.Record, error) {
	e, ok := n.config.Journal.Find(id)
	if !ok {
		return nil, &observe.Error{Status: http.StatusNotFound, Field: "id", Message: "flow " + id + " not found on this node, or evicted for newer ones"}
	}
	n.config.Journal.Refresh(&e)
	return e.Record(n.config.Owners.Owner, true), nil
}

// Explain simulates a packet.
func (n *Node) Explain(_ context.Context, q observe.Question) (*flow.Record, error) {
	if err := n.isThis(q.Node); err != nil {
		return nil, err
	}
	t := n.config.Table()
	if t == nil {
		return nil, notReady()
	}
	p, err := observe.Packet(q.Question)
	if err != nil {
		return nil, err
	}
	seed := rand.Uint64()
	if q.Seed != nil {
		seed = *q.Seed
	}
	s := explain.New(t, rand.New(rand.NewPCG(seed, 0)), n.config.Algorithms)
	s.FollowReply = q.Reply
	if n.config.HostRules != nil {
		s.HostRules = n.config.HostRules()
	}
	r := s.Decide(&p)
	o := n.config.Owners.Owner(p.Source.Addr())
	r.SourcePod, r.SourceNode = o.Pod, o.Node
	return r, nil
}

// isThis checks the node of a question; empty: any.
func (n *Node) isThis(node string) error {
	if node == "" || node == n.config.Name {
		return nil
	}
	return &observe.Error{Status: http.StatusNotFound, Field: "node", Message: "node " + node + " is not observed by this server: it observes " + n.config.Name}
}

func notReady() error {
	return &observe.Error{Status: http.StatusServiceUnavailable, Message: "no service table yet: waiting for the first complete state of the cluster"}
}

// Tables describes the table in force.
func (n *Node) Tables(context.Context) ([]observe.Table, error) {
	t := n.config.Table()
	if t == nil {
		return nil, notReady()
	}
	v4, v6 := t.Counts(decision.IPv4), t.Counts(decision.IPv6)
	d := observe.Table{
		Node: n.config.Name, Addresses: slices.Clone(t.Node().Addresses), Generation: t.Generation(), Built: t.Built(), Services: t.ServiceCount(),
		ServicePorts: v4.ServicePorts + v6.ServicePorts, Endpoints: v4.Endpoints + v6.Endpoints,
	}
	d.Digest = n.digest.of(t)
	for _, c := range t.Conflicts() {
		d.Conflicts = append(d.Conflicts, c.Error())
	}
	return []observe.Table{d}, nil
}

// Objects returns the table in force or, if the journal still keeps it, an earlier one.
func (n *Node) Objects(ctx context.Context, q observe.ObjectsQuery) (*observe.TableObjects, error) {
	if err := n.isThis(q.Node); err != nil {
		return nil, err
	}
	generation, service, err := q.Parse()
	if err != nil {
		return nil, err
	}
	t := n.config.Table()
	switch {
	case t == nil:
		return nil, notReady()
	case generation != 0 && generation != t.Generation():
		if t = n.config.Journal.Table(generation); t == nil {
			return nil, &observe.Error{Status: http.StatusNotFound, Field: "generation", Message: fmt.Sprintf("generation %d is not kept: %s keeps generation %d and later", generation, n.config.Name, n.config.Journal.Generations().Oldest)}
		}
	}
	var names []decision.ServiceName
	if q.Service != "" {
		if len(t.Service(service)) == 0 {
			return nil, &observe.Error{Status: http.StatusNotFound, Field: "service", Message: fmt.Sprintf("service %s is not in generation %d of the service table", q.Service, t.Generation())}
		}
		names = append(names, service)
	}
	if err := n.large.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer n.large.Release(1)
	text, err := servicetable.Objects(t, names...).YAML()
	return &observe.TableObjects{Node: n.config.Name, Generation: t.Generation(), Built: t.Built(), YAML: text}, err
}

// Stats returns this node's counters.
func (n *Node) Stats(context.Context) ([]observe.Stats, error) {
	j := n.config.Journal
	s := observe.Stats{
		Node: n.config.Name, Version: n.config.Version, Started: j.Started(),
		Verdicts: make(map[string]uint64), Reasons: make(map[string]uint64), Entries: make(map[string]uint64),
		Known: j.Known(), Generations: j.Generations(), Readers: int(n.readers.Load()), Missed: n.missed.Load(), Kernel: j.Kernel(),
	}
	if d := n.config.Stats(); d != nil {
		s.Packets, s.Undecodable, s.Undecided = d.Packets, d.Undecodable, d.Undecided
		for c, k := range d.Flows {
			s.Verdicts[c.Verdict.String()] += k
			s.Reasons[c.Reason.String()] += k
		}
		s.Entries["created"], s.Entries["kept"], s.Entries["replaced"], s.Entries["failed"] = d.Created, d.Kept, d.Replaced, d.Failed
	}
	return []observe.Stats{s}, nil
}

// Topology returns the nodes and pods named by the objects and endpoints.
func (n *Node) Topology(context.Context) (*observe.Topology, error) {
	t := &observe.Topology{Nodes: []observe.TopologyNode{}, Pods: []observe.TopologyPod{}, Hosts: []observe.TopologyHost{}, CanHold: n.config.Holder != nil, CanBalance: n.config.Switch != nil}
	nodes := map[string][]netip.Addr{n.config.Name: nil}
	pods := make(map[string]observe.TopologyPod)
	if table := n.config.Table(); table != nil {
		nodes[n.config.Name] = table.Node().Addresses
		for _, s := range table.Services() {
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				if _, ok := nodes[e.NodeName]; !ok && e.NodeName != "" {
					nodes[e.NodeName] = nil
				}
				if e.Pod == "" {
					continue
				}
				p := pods[e.Pod]
				if p.Name, p.Node = e.Pod, e.NodeName; !slices.Contains(p.Addresses, e.AddrPort.Addr()) {
					p.Addresses = append(p.Addresses, e.AddrPort.Addr())
				}
				pods[e.Pod] = p
			}
		}
	}
	n.config.Owners.Nodes(func(name string, addresses []netip.Addr) {
		// Those of the Node object come first: other nodes reach this one by them.
		nodes[name] = slices.Concat(addresses, slices.DeleteFunc(slices.Clone(nodes[name]), func(a netip.Addr) bool { return slices.Contains(addresses, a) }))
	})
	n.config.Owners.Pods(func(name, node string, addresses []netip.Addr) {
		if node == "" {
			node = pods[name].Node
		}
		pods[name] = observe.TopologyPod{Name: name, Node: node, Addresses: append([]netip.Addr{}, addresses...)} // never null in JSON
	})
	for name, addresses := range nodes {
		t.Nodes = append(t.Nodes, observe.TopologyNode{Name: name, Addresses: append([]netip.Addr{}, addresses...), Observed: name == n.config.Name})
	}
	for _, p := range pods {
		t.Pods = append(t.Pods, p)
	}
	t.Sort()
	return t, nil
}
