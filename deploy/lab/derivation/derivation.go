// Package derivation makes labs of Kubernetes objects: hosts for their nodes, pods and endpoints, and what objects do not show.
package derivation

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Options complete what Kubernetes objects lack.
type Options struct {
	// Name is the lab's.
	Name string
	// ClusterCIDRs are the pods' prefixes, at most one per family. The default of a family is
	// the smallest prefix with all pods, if it contains no other hosts.
	ClusterCIDRs []netip.Prefix
	// Namespaces select all their Pods and all their Services' endpoints for the lab, Services
	// select their endpoints; without either the lab has everything.
	Namespaces []string
	Services   []decision.ServiceName
}

// Derive makes a lab from Kubernetes objects alone: the nodes, pods and machines in them, a
// client pod on each node, and an external client. Everything else is guessed, with
// addresses that no object has; each guess is one line. The caller sets Spec.Objects.
// Derive is pure.
func Derive(objects *manifest.Objects, o Options) (*labfile.Lab, []string, error) {
	services, _ := servicetable.Build(&objects.Objects, servicetable.NodeConfig{})
	d := &derivation{
		options: o, services: services, spec: &labfile.Lab{Metadata: labfile.Metadata{Name: o.Name}, ClusterCIDRs: slices.Clone(o.ClusterCIDRs)},
		byName: make(map[string]*derivedNode), byPod: make(map[string]*derivedPod), at: make(map[netip.Addr]host), names: map[string]bool{labfile.Router: true},
	}
	for _, step := range []func() error{
		func() error { return d.takeNodes(objects.Nodes) },
		func() error { return d.takePods(objects.Pods) },
		d.takeEndpoints, d.placePods, d.assignCIDRs, d.checkClusterCIDRs, d.applySelection, d.assignNetworks, d.addHosts, d.finish,
	} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	var guesses []string
	for _, g := range d.guesses {
		if g.node == nil || slices.Contains(d.nodes, g.node) { // it may have been left out
			guesses = append(guesses, g.text)
		}
	}
	return d.spec, guesses, nil
}

// derivation is the state of Derive.
type derivation struct {
	options  Options
	services []*decision.ServicePort
	spec     *labfile.Lab
	guesses  []guess

	nodes    []*derivedNode
	pods     []*derivedPod
	machines []*derivedMachine
	byName   map[string]*derivedNode // nodes
	byPod    map[string]*derivedPod  // by full name
	at       map[netip.Addr]host     // nodes, pods and machines
	names    map[string]bool         // of nodes, clients and pods, these without a namespace
	used     []netip.Prefix          // nothing that is made up may overlap with these
	// namesPods: endpoints that are pods have a targetRef with the pod's name.
	namesPods bool
}

// guess is a property that the objects lack.
type guess struct {
	node *derivedNode // the node that it concerns; nil: none
	text string
}

// host is a node, a pod or a machine.
type host interface {
	serve(labapi.Port)
	choose()
}

// choice is whether a host is selected for the lab.
type choice struct{ chosen bool }

func (c *choice) choose() { c.chosen = true }

type derivedNode struct {
	labfile.Node
	choice
	declared []netip.Prefix // the pod CIDRs of its object
}

type derivedPod struct {
	labapi.Pod
	choice
	madeUp bool // its name is made up
	// known: there is a Pod object; declared: its containers declare their ports.
	known, declared bool
}

// derivedMachine is an endpoint that is neither a pod nor a node.
type derivedMachine struct {
	labapi.Client
	choice
	service string // the Service that it is an endpoint of
}

func (n *derivedNode) serve(p labapi.Port)    { n.Ports = withPort(n.Ports, p) }
func (p *derivedPod) serve(port labapi.Port)  { p.Ports = withPort(p.Ports, port) }
func (m *derivedMachine) serve(p labapi.Port) { m.Ports = withPort(m.Ports, p) }

func withPort(ports []labapi.Port, p labapi.Port) []labapi.Port {
	if p.Protocol != decision.TCP && p.Protocol != decision.UDP {
		return ports
	}
	if i := labfile.PortAt(ports, p.Port, p.Protocol); i >= 0 {
		ports[i].Server = cmp.Or(ports[i].Server, p.Server)
		return ports
	}
	return append(ports, p)
}

func (d *derivation) guess(format string, args ...any) {
	d.guesses = append(d.guesses, guess{nil, fmt.Sprintf(format, args...)})
}

func (d *derivation) guessNode(n *derivedNode, format string, args ...any) {
	d.guesses = append(d.guesses, guess{n, fmt.Sprintf("node %s: ", n.Name) + fmt.Sprintf(format, args...)})
}

// hasSelection reports whether the lab has only a selection.
func (o *Options) hasSelection() bool { return len(o.Namespaces)+len(o.Services) > 0 }

// wants reports whether everything of a namespace belongs to the lab.
func (o *Options) wants(namespace string) bool {
	return !o.hasSelection() || slices.Contains(o.Namespaces, namespace)
}

// applySelection keeps only what was chosen.
func (d *derivation) applySelection() error {
	if d.options.hasSelection() {
		before := len(d.nodes) + len(d.pods) + len(d.machines)
		d.pods = slices.DeleteFunc(d.pods, func(p *derivedPod) bool { return !p.chosen })
		d.machines = slices.DeleteFunc(d.machines, func(m *derivedMachine) bool { return !m.chosen })
		for _, p := range d.pods {
			d.byName[p.Node].choose()
		}
		if !slices.ContainsFunc(d.nodes, func(n *derivedNode) bool { return n.chosen }) {
			d.nodes[0].choose()
		}
		d.nodes = slices.DeleteFunc(d.nodes, func(n *derivedNode) bool { return !n.chosen })
		if n := before - len(d.nodes) - len(d.pods) - len(d.machines); n > 0 {
			d.guess("%d nodes, pods and machines are omitted: Services that were not selected exist, but their endpoints do not reply", n)
		}
	}
	made := 0
	for _, p := range d.pods {
		if p.madeUp {
			made++
		}
	}
	if made > 0 {
		d.guess("the objects do not name %d of the pods: these have the name of their Service, with a number", made)
	}
	const choose = "select a part with --namespace or --service"
	// Besides these there are a pod on each node and a client.
	if n := len(d.nodes); n > labfile.MaxNodes {
		return fmt.Errorf("the objects have %d nodes, and a lab at most %d: %s", n, labfile.MaxNodes, choose)
	}
	if n, most := len(d.pods)+len(d.machines), labfile.MaxHosts-len(d.nodes)-1; n > most {
		return fmt.Errorf("the objects have %d pods and other endpoints, and a lab of %d nodes at most %d: %s", n, len(d.nodes), most, choose)
	}
	return nil
}

// finish puts everything into the spec.
func (d *derivation) finish() error {
	check := func(what string, ports []labapi.Port) error {
		if len(ports) > labfile.MaxPorts {
			return fmt.Errorf("%s serves %d ports, and a host of a lab at most %d", what, len(ports), labfile.MaxPorts)
		}
		return nil
	}
	var errs []error
	for _, n := range d.nodes {
		errs = append(errs, check("node "+n.Name, n.Ports))
		d.spec.Nodes = append(d.spec.Nodes, n.Node)
	}
	for _, p := range d.pods {
		errs = append(errs, check("pod "+p.FullName(), p.Ports))
		d.spec.Pods = append(d.spec.Pods, p.Pod)
	}
	for _, m := range d.machines {
		errs = append(errs, check("the endpoint of Service "+m.service, m.Ports))
		d.spec.Clients = append(d.spec.Clients, m.Client)
	}
	return errors.Join(errs...)
}
