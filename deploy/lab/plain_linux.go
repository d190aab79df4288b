package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/datapath/flow"
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
	n := p.lab.Spec().node(p.name)
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
	return p.lab.walk(ctx, p.lab.Spec().node(p.name), q)
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
	return o.lab.walk(ctx, o.lab.Spec().node(o.name), q)
}

func (p *plainNode) nothing(what string) error {
	return &observe.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("node %s has no daemon, and so no %s: it has %s", p.name, what, proxyText(p.lab.Spec().node(p.name)))}
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
