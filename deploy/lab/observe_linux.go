package lab

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nfqproxy/nfqproxy/control/live/flowapi"
	"github.com/nfqproxy/nfqproxy/control/live/localnode"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/view/findings"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
	"github.com/nfqproxy/nfqproxy/control/view/viewapi"
	webpage "github.com/nfqproxy/nfqproxy/control/view/web"
	"github.com/nfqproxy/nfqproxy/datapath/balance"
	"github.com/nfqproxy/nfqproxy/datapath/balance/script"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/deploy/lab/desired"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// listenPage listens at the address of the page, outside of the lab's namespaces.
func listenPage(address string) (*os.File, error) {
	l, err := viewapi.ListenPage(address)
	if err != nil {
		return nil, err
	}
	defer l.Close() // the file is a duplicate
	return l.(*net.TCPListener).File()
}

// makeDir makes the directory of the daemons' sockets, and the token that they share.
func (l *Lab) makeDir() (err error) {
	// In the lab's own /run, which disappears with the lab, even if it is killed.
	if l.dir, err = os.MkdirTemp("/run", "nfqproxy-lab-"); err != nil {
		return err
	}
	l.token = cmp.Or(l.options.Token, rand.Text())
	return os.WriteFile(l.tokenFile(), []byte(l.token), 0o600)
}

func (l *Lab) tokenFile() string { return filepath.Join(l.dir, "token") }

// NodeObserver is the flow API of one node's daemon.
func (l *Lab) NodeObserver(node string) (*remote.Client, error) {
	d, err := l.observerOf(node)
	if err != nil {
		return nil, err
	}
	absent := "its process does not run: nfqproxy lab status has the reason"
	if l.observers[node] == nil {
		absent += ", and nfqproxy lab fault rm starts it again after a fault"
	}
	return remote.NewClient("unix:"+d.socket, remote.ClientOptions{Token: l.token, Absent: absent})
}

// Socket is the path of the flow API of a node's daemon.
func (l *Lab) Socket(node string) (string, error) {
	d, err := l.observerOf(node)
	if err != nil {
		return "", err
	}
	return d.socket, nil
}

// observerOf is the daemon that makes the records of a node: its proxy, or the one that observes it.
func (l *Lab) observerOf(node string) (*daemon, error) {
	if o := l.observers[node]; o != nil {
		return o, nil
	}
	return l.daemon(node)
}

// OpenFlows prepares the flow API of all nodes and its page, at listeners, of which the first is the one that the status
// has. serve serves them until the context ends, and has to be called.
func (l *Lab) OpenFlows(listener net.Listener, others ...net.Listener) (serve func(context.Context) error, err error) {
	var members []remote.Member
	for _, n := range l.Spec().Nodes {
		if !n.HasFlowAPI() {
			members = append(members, remote.Member{Name: n.Name, Observer: &plainNode{l, n.Name}})
			continue
		}
		client, err := l.NodeObserver(n.Name)
		if err != nil {
			return nil, err
		}
		o := observe.Observer(client)
		if n.Observe {
			o = &observedNode{client, l, n.Name}
		}
		members = append(members, remote.Member{Name: n.Name, Observer: o})
	}
	relay, err := remote.NewRelay(members, remote.RelayOptions{
		Names:     func(a netip.Addr) flow.Owner { return l.owners().byAddress[a.Unmap()] },
		Addresses: func(name string) []netip.Addr { return l.owners().addresses[name] },
	})
	if err != nil {
		return nil, err
	}
	l.FlowAPI, l.Observer = FlowAPIStatus{URL: "http://" + listener.Addr().String(), Token: l.token}, &mapped{relay, l}
	return func(ctx context.Context) error {
		defer relay.Close()
		doctor := &findings.Doctor{Observer: l.Observer, Objects: l.live.load, Firewall: l.Firewall}
		config := flowapi.Config{
			Observer: l.Observer, Page: webpage.Handler(), Token: l.token, OpenLoopback: true,
			Routes: viewapi.Routes(viewapi.Config{Doctor: doctor, Requester: l, Teacher: l.options.Teacher, Lab: l}),
		}
		if l.decides() {
			config.Balancing = l
		}
		served, ctx := errgroup.WithContext(ctx)
		for _, l := range append(others, listener) {
			served.Go(func() error { return flowapi.New(config).Serve(ctx, l) })
		}
		return served.Wait()
	}, nil
}

// mapped is a relay with the lab's topology.
type mapped struct {
	*remote.Relay
	lab *Lab
}

// Topology returns the topology of the lab. Its nodes know parts of it only, and which of them answer.
func (m *mapped) Topology(ctx context.Context) (*observe.Topology, error) {
	t := topologyOf(m.lab.Spec())
	if seen, err := m.Relay.Topology(ctx); err == nil { // otherwise no daemon answers
		for i := range t.Nodes {
			t.Nodes[i].Observed = slices.ContainsFunc(seen.Nodes, func(n observe.TopologyNode) bool { return n.Name == t.Nodes[i].Name && n.Observed })
		}
	}
	t.CanHold, t.CanBalance, t.CanWhy, t.CanRequest, t.CanChange = m.lab.decides(), m.lab.decides(), true, true, true
	t.CanLearn = m.lab.options.Teacher != nil
	t.Sort()
	return t, nil
}

// decides reports whether nfqproxy is the proxy of a node: only its decisions can be held, and its algorithms switched.
func (l *Lab) decides() bool {
	return slices.ContainsFunc(l.Spec().Nodes, func(n Node) bool { return n.HasDaemon() })
}

// topologyOf is the topology in the order of the file.
func topologyOf(s *Spec) *observe.Topology {
	t := &observe.Topology{Lab: s.Name, Hosts: []observe.TopologyHost{}, Pods: []observe.TopologyPod{}}
	for _, n := range s.Nodes {
		t.Nodes = append(t.Nodes, observe.TopologyNode{Name: n.Name, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs})
	}
	for _, p := range s.Pods {
		t.Pods = append(t.Pods, observe.TopologyPod{Name: p.FullName(), Node: p.Node, Addresses: p.Addresses})
	}
	for _, c := range s.Clients {
		t.Hosts = append(t.Hosts, observe.TopologyHost{Name: c.Name, Addresses: c.Addresses})
	}
	return t
}

// owners map the addresses of a spec to names, and its names to addresses. They are read only.
type owners struct {
	spec      *Spec
	byAddress map[netip.Addr]flow.Owner
	addresses map[string][]netip.Addr
}

// owners are those of the hosts there are now.
func (l *Lab) owners() *owners {
	spec := l.Spec()
	if o := l.lastOwners.Load(); o != nil && o.spec == spec {
		return o
	}
	o := newOwners(spec)
	l.lastOwners.Store(o)
	return o
}

func newOwners(s *Spec) *owners {
	byAddress := make(map[netip.Addr]flow.Owner)
	for _, n := range s.Nodes {
		for _, p := range n.PodCIDRs {
			if !p.IsSingleIP() {
				byAddress[labfile.Gateway(p)] = flow.Owner{Node: n.Name}
			}
		}
	}
	for _, m := range machinesOf(s) {
		for _, a := range m.addresses {
			byAddress[a] = flow.Owner{Pod: m.Pod, Node: m.Node, Host: m.Host}
		}
	}
	addresses := make(map[string][]netip.Addr)
	for _, a := range slices.SortedFunc(maps.Keys(byAddress), netip.Addr.Compare) {
		o := byAddress[a]
		name := cmp.Or(o.Pod, o.Host, o.Node)
		addresses[name] = append(addresses[name], a)
		if o.Pod != "" {
			_, name, _ := strings.Cut(o.Pod, "/")
			addresses[name] = append(addresses[name], a)
		}
	}
	return &owners{s, byAddress, addresses}
}

// FlowAPIOf returns the flow API of this user's running lab; an empty one: no name is given and
// no lab is running. Without a name, several running labs are an error.
func FlowAPIOf(labName string) (FlowAPIStatus, error) {
	s, err := StatusOf(labName)
	if n, ok := errors.AsType[*NotRunningError](err); ok && labName == "" && len(n.Running) == 0 {
		return FlowAPIStatus{}, nil
	}
	if err != nil {
		return FlowAPIStatus{}, err
	}
	return s.FlowAPI, nil
}

var _ observe.Balancing = (*Lab)(nil)

// algorithmsOf are those of the daemons of a lab. Errors are those of its scripts.
func algorithmsOf(spec *Spec) (*balance.Registry, error) {
	r := balance.NewRegistry()
	var scripts []*script.Script
	for _, path := range spec.Proxy.Scripts {
		s, err := script.Load(path)
		if err != nil {
			return nil, err
		}
		scripts = append(scripts, s)
	}
	return r, script.Register(r, scripts...)
}

// Algorithms implements [observe.Balancing].
func (l *Lab) Algorithms(ctx context.Context) (*observe.Algorithms, error) {
	objects, config, _ := l.live.load(ctx) // never an error
	table, _ := servicetable.Table(&objects.Objects, config)
	return localnode.AlgorithmsOf(l.algorithms, table), nil
}

// Shadows implements [observe.Balancing].
func (l *Lab) Shadows(ctx context.Context, service string) (*observe.Shadows, error) {
	m, ok := l.Observer.(*mapped)
	if !ok {
		return nil, errors.New("the lab's flow API is not open")
	}
	return m.Shadows(ctx, service)
}

// Balance implements [observe.Balancing]. It changes the annotation of the Service, as kubectl annotate does.
func (l *Lab) Balance(ctx context.Context, c observe.BalanceChange) error {
	if _, err := c.Name(); err != nil {
		return err
	}
	if c.Algorithm != "" {
		if _, err := localnode.Canonical(l.algorithms, c.Algorithm); err != nil {
			return err
		}
	}
	_, err := l.live.change(ctx, func(s *desired.State, _ time.Time) ([]string, error) { return nil, s.Annotate(c.Service, c.Algorithm) })
	if err != nil {
		return err
	}
	if late := l.live.settle(ctx); len(late) > 0 {
		return errors.New(strings.Join(late, "; "))
	}
	return nil
}
