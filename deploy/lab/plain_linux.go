package lab

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/nfqproxy/nfqproxy/conntrack"
	"github.com/nfqproxy/nfqproxy/control/explain"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/resolve"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
	"github.com/nfqproxy/nfqproxy/datapath/paper/iptables"
	"github.com/nfqproxy/nfqproxy/datapath/paper/netfilter"
	"github.com/nfqproxy/nfqproxy/datapath/paper/replay"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// plainNode is the observer of a node without a daemon: nobody records its flows, but its rules can be followed.
type plainNode struct {
	lab  *Lab
	name string
}

var _ observe.Observer = (*plainNode)(nil)

func (p *plainNode) Flows(ctx context.Context, q observe.FlowQuery, each func(observe.Item) error) error {
	if err := each(observe.Item{Missed: &observe.Missed{Node: p.name, Why: observe.MissedNoDaemon}}); err != nil || !q.Follow {
		return err
	}
	<-ctx.Done()
	return nil
}

func (p *plainNode) Flow(context.Context, string) (*flow.Record, error) {
	return nil, p.nothing("flows")
}

func (*plainNode) Services(context.Context, observe.ServiceQuery) (*observe.Services, error) {
	return &observe.Services{}, nil
}

func (*plainNode) Tables(context.Context) ([]observe.Table, error) { return nil, nil }
func (*plainNode) Stats(context.Context) ([]observe.Stats, error)  { return nil, nil }
func (*plainNode) Holder() observe.Holder                          { return nil }

func (p *plainNode) Objects(context.Context, observe.ObjectsQuery) (*observe.TableObjects, error) {
	return nil, p.nothing("service table")
}

func (p *plainNode) Status(context.Context) ([]observe.Status, error) {
	n := p.lab.Spec().Node(p.name)
	text := proxyText(n)
	if state, _, _ := p.lab.daemons[p.name].state(); n.HasProgram() && state != Ready {
		text += fmt.Sprintf(" (%s)", state)
	}
	return []observe.Status{{Node: p.name, Proxy: text, Problems: []observe.Problem{}}}, nil
}

func (p *plainNode) Topology(context.Context) (*observe.Topology, error) {
	return &observe.Topology{Nodes: []observe.TopologyNode{{Name: p.name}}}, nil
}

// Explain follows the packet through the rules in the node's kernel.
func (p *plainNode) Explain(ctx context.Context, q observe.Question) (*flow.Record, error) {
	return p.lab.walk(ctx, p.lab.Spec().Node(p.name), q)
}

// observedNode is the observer of a node with another proxy, whose flows nfqproxyd records. It follows packets through the rules
// in the node's kernel: those decide, not the daemon's table.
type observedNode struct {
	observe.Observer
	lab  *Lab
	name string
}

// Explain follows the packet through the rules in the node's kernel.
func (o *observedNode) Explain(ctx context.Context, q observe.Question) (*flow.Record, error) {
	return o.lab.walk(ctx, o.lab.Spec().Node(o.name), q)
}

func (p *plainNode) nothing(what string) error {
	return &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("node %s has no daemon, and so no %s: it has %s", p.name, what, proxyText(p.lab.Spec().Node(p.name)))}
}

// proxyText is what a node without a daemon has instead, in words.
func proxyText(n *Node) string {
	switch mode := writtenMode(n); {
	case mode != "":
		return "the rules of kube-proxy's " + mode + " mode"
	case n.Proxy == labfile.KubeProxy:
		return "kube-proxy in " + cmp.Or(n.KubeProxyMode, "iptables") + " mode"
	default:
		return "no service proxy"
	}
}

// walk follows a packet through the rules that a node with another proxy than nfqproxy has in its kernel now.
func (l *Lab) walk(ctx context.Context, n *Node, q observe.Question) (*flow.Record, error) {
	objects, config, err := l.live.load(ctx)
	if err != nil {
		return nil, err
	}
	config.Name = n.Name
	table, _ := servicetable.Table(&objects.Objects, config)
	p, err := resolve.NamesOf(table, objects.Pods).Packet(q.Question)
	if err != nil {
		return nil, err
	}
	draws := rand.New(rand.NewPCG(rand.Uint64(), 0))
	if q.Seed != nil {
		draws = rand.New(rand.NewPCG(*q.Seed, 0))
	}
	// By the objects, for the names, and for the endpoints whose routes are needed.
	expected := explain.New(table, draws, config.Algorithms).Decide(&p)
	to := []netip.Addr{p.Source.Addr(), p.Destination.Addr()}
	for _, c := range expected.Candidates {
		to = append(to, addrPort(c.Endpoint).Addr())
	}
	for _, x := range expected.Excluded {
		to = append(to, addrPort(x.Endpoint).Addr())
	}
	listed, err := l.Firewall(ctx, n.Name, to)
	if err != nil {
		return nil, fmt.Errorf("rules of node %s: %w", n.Name, err)
	}
	f := decision.FamilyOf(p.Destination.Addr())
	family := map[decision.Family]iptables.Family{decision.IPv4: iptables.IPv4, decision.IPv6: iptables.IPv6}[f]
	machine, err := listed.Machine(family)
	if err != nil {
		return nil, fmt.Errorf("rules of node %s: %w", n.Name, err)
	}
	machines := make(map[decision.Family]*netfilter.Machine)
	if machine != nil {
		machines[f] = machine
	}
	decided, err := replay.ByRules(replay.Rules{Machines: machines, Steps: true}, draws).Decide(&replay.First{
		Tuple:     conntrack.Tuple{Source: p.Source, Destination: p.Destination, Protocol: uint8(p.Protocol)},
		Interface: p.InInterface, Length: 60, TTL: 64,
	})
	if err != nil {
		return nil, err
	}
	r := decided.Record
	r.Time, r.Node = nil, n.Name
	r.Service, r.Entry = expected.Service, expected.Entry
	r.Hint = fmt.Sprintf("Node %s has no daemon (proxy: %s): the steps are those of the rules in its kernel.", n.Name, n.Proxy)
	if n.Observe {
		r.Hint = fmt.Sprintf("nfqproxy only observes node %s (proxy: %s): the steps are those of the rules in its kernel.", n.Name, n.Proxy)
	}
	if agree(r, expected) {
		r.Reason, r.Branch, r.Policy, r.Candidates, r.Excluded = expected.Reason, expected.Branch, expected.Policy, expected.Candidates, expected.Excluded
		r.MasqueradeReason = expected.MasqueradeReason
	} else {
		r.Hint += fmt.Sprintf(" The Services ask for another verdict: %s.", strings.TrimSpace(expected.Verdict+" "+expected.Endpoint))
	}
	r.Hint = strings.TrimSpace(r.Hint + " " + expected.Hint)
	r.AddNames(func(a netip.Addr) flow.Owner { return l.owners().byAddress[a.Unmap()] })
	for i := range r.Steps {
		r.Steps[i].Line = 0 // of a listing that nobody has
	}
	return r, nil
}

// agree reports whether rules did what the objects ask for: with one of the same endpoints, and with the same masquerading.
func agree(r, expected *flow.Record) bool {
	return r.Verdict == expected.Verdict && r.Masquerade == expected.Masquerade &&
		(r.Endpoint == "" || slices.ContainsFunc(expected.Candidates, func(c flow.Candidate) bool { return c.Endpoint == r.Endpoint }))
}
