package web_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/paper/crossnode"
	"github.com/nfqproxy/nfqproxy/control/resolve"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
)

// world is a cluster on paper: its flows are decided by the very code that decides real ones.
type world struct {
	nodes    []*worldNode
	pods     []observe.TopologyPod
	hosts    []observe.TopologyHost
	services []*decision.ServicePort
	crowd    []observe.Service     // further services, see [world.grow]
	owner    map[netip.Addr]string // pods, by address
	nodeOf   map[string]string     // nodes, by pod
	objects  *manifest.Objects
	random   *rand.Rand
	traffic  []traffic
	// decided are decisions to give again, when there are enough: deciding a thousand in a
	// second leaves a small machine no time for a browser.
	decided []decided
}

type decided struct {
	record flow.Record
	life   []flow.State
}

// enough is how many different flows there are.
const enough = 600

type worldNode struct {
	name      string
	addresses []netip.Addr
	cidrs     []netip.Prefix
	simulator *crossnode.Simulator
	names     *resolve.Names
	table     *decision.Table
}

// traffic is a request that a client repeats.
type traffic struct {
	weight                   int
	node, protocol, from, to string
	life                     []flow.State // after "decided"
}

var (
	tcpLife     = []flow.State{flow.Answered, flow.Established, flow.Closing, flow.Closed, flow.Gone}
	udpLife     = []flow.State{flow.Answered, flow.Gone}
	resetLife   = []flow.State{flow.Answered, flow.Established, flow.Reset, flow.Gone}
	refusedLife = []flow.State{flow.Refused, flow.Gone}
	silentLife  = []flow.State{flow.Unanswered, flow.Gone}
)

// mix has the clients, their destinations, and the later states of their flows.
var mix = []traffic{
	{weight: 20, from: "shop/frontend-7c9d-x2k4p", to: "service/shop/cart:http", life: tcpLife},
	{weight: 20, from: "shop/frontend-7c9d-m8q1z", to: "service/shop/catalog:http", life: tcpLife},
	{weight: 12, from: "shop/cart-5b8f-qq7dn", to: "service/shop/redis:6379", life: tcpLife},
	{weight: 14, from: "shop/catalog-66d9-b2v8s", protocol: "udp", to: "service/kube-system/kube-dns:dns", life: udpLife},
	{weight: 10, from: "shop/frontend-7c9d-x2k4p", protocol: "udp", to: "service/kube-system/kube-dns:dns", life: udpLife},
	{weight: 10, from: "192.0.2.10", node: "node-a", to: "172.20.0.2:30080", life: tcpLife},
	{weight: 8, from: "198.51.100.23", node: "node-c", to: "203.0.113.10:80", life: tcpLife},
	{weight: 4, from: "shop/cart-5b8f-qq7dn", to: "service/shop/payment:https", life: resetLife},
	{weight: 3, from: "shop/catalog-66d9-b2v8s", to: "service/shop/catalog:http", life: tcpLife},
	{weight: 3, from: "monitoring/prometheus-0", to: "service/shop/cart:http", life: refusedLife},
	{weight: 3, from: "shop/frontend-7c9d-m8q1z", to: "service/shop/payment:https", life: silentLife},
	{weight: 3, from: "monitoring/prometheus-0", to: "service/shop/legacy:80"},
	{weight: 2, from: "198.51.100.23", node: "node-c", to: "172.20.0.4:30443"},
	{weight: 4, from: "monitoring/prometheus-0", to: "93.184.216.34:443", life: tcpLife},
}

// newWorld makes the cluster. A seed makes its draws the same each time.
func newWorld(t testing.TB, seed uint64) *world {
	t.Helper()
	objects, err := manifest.Load([]string{"testdata/cluster.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{objects: objects, owner: make(map[netip.Addr]string), nodeOf: make(map[string]string), random: rand.New(rand.NewPCG(seed, 1)), traffic: mix}
	for _, n := range objects.Nodes {
		table, warnings := servicetable.Table(&objects.Objects, servicetable.NodeConfig{Name: n.Name, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
		if len(warnings) > 0 {
			t.Fatalf("testdata/cluster.yaml: %s", strings.Join(warnings, "; "))
		}
		node := &worldNode{
			name: n.Name, cidrs: []netip.Prefix{netip.MustParsePrefix(n.Spec.PodCIDR)}, table: table,
			simulator: crossnode.New(table, w.random, crossnode.Cluster{Nodes: objects.Nodes, EndpointSlices: objects.EndpointSlices}),
			names:     resolve.NamesOf(table, objects.Pods),
		}
		node.simulator.FollowReply = true
		for _, a := range n.Status.Addresses {
			node.addresses = append(node.addresses, netip.MustParseAddr(a.Address))
		}
		w.nodes = append(w.nodes, node)
		w.services = table.Services()
	}
	for _, p := range objects.Pods {
		w.addPod(p)
	}
	w.hosts = []observe.TopologyHost{
		{Name: "laptop", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.10")}},
		{Name: "crawler", Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.23")}},
	}
	return w
}

func (w *world) addPod(p *corev1.Pod) {
	name, address := p.Namespace+"/"+p.Name, netip.MustParseAddr(p.Status.PodIP)
	w.pods = append(w.pods, observe.TopologyPod{Name: name, Node: p.Spec.NodeName, Addresses: []netip.Addr{address}})
	w.owner[address], w.nodeOf[name] = name, p.Spec.NodeName
}

func (w *world) node(name string) *worldNode {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// next makes a new flow of the mix, and its later states.
func (w *world) next() (*flow.Record, []flow.State) {
	if len(w.decided) == enough {
		again := w.decided[w.random.IntN(enough)]
		w.scatter(&again.record)
		return &again.record, again.life
	}
	r, life := w.make()
	w.decided = append(w.decided, decided{*r, life})
	w.scatter(r)
	return r, life
}

func (w *world) make() (*flow.Record, []flow.State) {
	sum := 0
	for i := range w.traffic {
		sum += w.traffic[i].weight
	}
	at := w.random.IntN(sum)
	i := 0
	for ; at >= w.traffic[i].weight; i++ {
		at -= w.traffic[i].weight
	}
	m := &w.traffic[i]
	q := flow.Question{Protocol: "tcp", Source: m.from, Destination: m.to}
	node := m.node
	if m.protocol != "" {
		q.Protocol = m.protocol
	}
	if n, ok := w.nodeOf[m.from]; ok {
		node, q.Source = n, "pod/"+m.from
	}
	q.Source += fmt.Sprintf(":%d", 32768+w.random.IntN(28000))
	r, err := w.decide(node, q)
	if err != nil {
		panic(fmt.Sprintf("the traffic %+v: %v", m, err))
	}
	return r, m.life
}

// decide answers a question at a node, with all that the daemon would know of the flow.
func (w *world) decide(node string, q flow.Question) (*flow.Record, error) {
	n := w.node(node)
	if n == nil {
		return nil, &observe.Error{Status: 404, Field: "node", Message: fmt.Sprintf("node %q: there is none of this name", node)}
	}
	p, err := n.names.Packet(q)
	if err != nil {
		return nil, err
	}
	r := n.simulator.Decide(&p)
	w.name(r)
	return r, nil
}

// name names the record's addresses.
func (w *world) name(r *flow.Record) {
	source := netip.MustParseAddrPort(r.Source).Addr()
	if r.SourcePod = w.owner[source]; r.SourcePod != "" {
		r.SourceNode = w.nodeOf[r.SourcePod]
	}
	for _, h := range w.hosts {
		if slices.Contains(h.Addresses, source) {
			r.SourceHost = h.Name
		}
	}
	if r.Endpoint != "" {
		r.EndpointNode = w.nodeOf[r.Pod]
	}
}

// live turns a simulated record into one of a live daemon.
func (w *world) live(r *flow.Record, id string, now time.Time) {
	queue, waited := uint16(1000), 0.00004+w.random.Float64()*0.0002
	r.ID, r.Time, r.Queue, r.TableAge, r.Hint, r.Reply = id, &now, &queue, 4711.5, "", nil
	r.Stages = &flow.Stages{Waited: &waited, Decided: 0.0000008, Written: 0.00002 + w.random.Float64()*0.00004, Accepted: 0.000012}
	r.Life = &flow.Life{State: flow.Decided, Since: now, History: []flow.Moment{{Event: flow.Decided, Time: now}}}
	switch r.Verdict {
	case "dnat":
		r.Conntrack = "created"
		if r.Masquerade {
			r.MasqueradeAddress = w.node(r.Node).addresses[0].String()
		}
	case "reject":
		r.Life.State, r.Life.Over = flow.Rejected, true
	case "drop":
		r.Life.State, r.Life.Over = flow.Dropped, true
	}
	r.Life.History[0].Event = r.Life.State
}
