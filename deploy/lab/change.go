package lab

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/source/manifest"
)

// Change is a change of a running lab by a command. Exactly one field is set.
type Change struct {
	// Apply adds Services and EndpointSlices, or replaces those with their names.
	Apply *Applied `json:"apply,omitempty"`
	Scale *Scale   `json:"scale,omitempty"`
	// AddPod adds a pod. Without addresses it gets free ones of its node, and without a node the one with the
	// fewest pods.
	AddPod    *Pod       `json:"addPod,omitempty"`
	RemovePod *RemovePod `json:"removePod,omitempty"`
	Ready     *Readiness `json:"ready,omitempty"`
	Node      *NodeEvent `json:"node,omitempty"`
}

// Applied are the objects of "lab apply".
type Applied struct {
	Services       []*corev1.Service            `json:"services,omitempty"`
	EndpointSlices []*discoveryv1.EndpointSlice `json:"endpointSlices,omitempty"`
}

// Scale gives a deployment a number of replicas.
type Scale struct {
	Deployment string `json:"deployment"` // NAMESPACE/NAME, or NAME if it is unique
	Replicas   uint16 `json:"replicas"`
}

// RemovePod removes a pod. It is terminating for a time: its own or, if it is not nil, Grace.
type RemovePod struct {
	Pod   string         `json:"pod"` // NAMESPACE/NAME, or NAME if it is unique
	Grace *time.Duration `json:"grace,omitempty"`
}

// Readiness makes a pod ready or not ready, as its readiness probe would.
type Readiness struct {
	Pod   string `json:"pod"`
	Ready bool   `json:"ready"`
}

// NodeEvent is what happens to a node.
type NodeEvent struct {
	Node   string `json:"node"`
	Action string `json:"action"` // of NodeActions
	// Force: a drain also removes pods of no deployment.
	Force bool `json:"force,omitempty"`
}

// NodeActions are the actions of a NodeEvent: a node loses its connection and gets it again; its pods move to
// other nodes; it gets pods again.
var NodeActions = []string{"down", "up", "drain", "uncordon"}

// apply changes the state, and returns what it changed.
func (c *Change) apply(s *state, now time.Time) ([]string, error) {
	switch {
	case c.Apply != nil:
		return s.apply(c.Apply), nil
	case c.Scale != nil:
		return s.scale(c.Scale)
	case c.AddPod != nil:
		return s.addPod(*c.AddPod)
	case c.RemovePod != nil:
		p, err := s.podNamed(c.RemovePod.Pod)
		if err != nil {
			return nil, err
		}
		return []string{s.end(p, now, c.RemovePod.Grace)}, nil
	case c.Ready != nil:
		return s.setReady(c.Ready)
	case c.Node != nil:
		return s.nodeEvent(c.Node, now)
	}
	return nil, errors.New("unknown change: the lab runs another version of nfqproxy")
}

func (s *state) apply(a *Applied) (changes []string) {
	if s.applied.services == nil {
		s.applied.services = make(map[string]*corev1.Service)
	}
	if s.applied.slices == nil {
		s.applied.slices = make(map[string]*discoveryv1.EndpointSlice)
	}
	note := func(kind, name string, known bool) {
		verb := "added"
		if known {
			verb = "replaced"
		}
		changes = append(changes, fmt.Sprintf("%s %s is %s", kind, name, verb))
	}
	for _, o := range a.Services {
		name := nameOf(o)
		known := slices.ContainsFunc(s.written.Services, func(w *corev1.Service) bool { return nameOf(w) == name })
		note("Service", name, known || s.applied.services[name] != nil)
		s.applied.services[name] = o
	}
	for _, o := range a.EndpointSlices {
		name := nameOf(o)
		known := slices.ContainsFunc(s.written.EndpointSlices, func(w *discoveryv1.EndpointSlice) bool { return nameOf(w) == name })
		note("EndpointSlice", name, known || s.applied.slices[name] != nil)
		s.applied.slices[name] = o
	}
	return changes
}

// named finds an item by its full name or, if that is unique, by its name.
func named[T any](kind, name string, items []T, fullName func(*T) string) (*T, error) {
	var found *T
	var names []string
	for i := range items {
		full := fullName(&items[i])
		names = append(names, full)
		switch {
		case full == name:
			return &items[i], nil
		case !strings.HasSuffix(full, "/"+name):
		case found != nil:
			return nil, fmt.Errorf("%s %q is in several namespaces: want NAMESPACE/%s", kind, name, name)
		default:
			found = &items[i]
		}
	}
	switch {
	case found != nil:
		return found, nil
	case len(names) == 0:
		return nil, fmt.Errorf("no %s %q: the lab has none", kind, name)
	}
	return nil, fmt.Errorf("no %s %q%s; the lab has %s", kind, name, nearest.Hint(name, names), some(names))
}

// hostField is a field of a pod or client in a mistake, by the host's number.
var hostField = regexp.MustCompile(`(pods|clients)\[([0-9]+)\](\.[a-z]+(\[[0-9]+\])?)?`)

// withNames is the first mistake in a spec that a command changed: with names of hosts, as it has no file whose fields have
// numbers.
func (s *Spec) withNames(errs manifest.Errors) error {
	e := errs[0]
	return errors.New(hostField.ReplaceAllStringFunc(fmt.Sprintf("%s: %v", e.Field, e.Err), func(field string) string {
		match := hostField.FindStringSubmatch(field)
		i, _ := strconv.Atoi(match[2]) // digits only
		if match[1] == "pods" {
			return "pod " + s.Pods[i].FullName()
		}
		return "client " + s.Clients[i].Name
	}))
}

func (s *state) podNamed(name string) (*Pod, error) {
	p, err := named("pod", name, s.spec.Pods, (*Pod).FullName)
	if err == nil && !s.pods[p.FullName()].ends.IsZero() {
		return nil, fmt.Errorf("pod %s is terminating already", p.FullName())
	}
	return p, err
}

func (s *state) scale(c *Scale) ([]string, error) {
	d, err := named("deployment", c.Deployment, s.spec.Deployments, (*Deployment).FullName)
	if err != nil {
		return nil, err
	}
	before := *d.Replicas
	d.Replicas = new(c.Replicas) // the other one belongs to the state before
	return []string{fmt.Sprintf("deployment %s: %d replicas, had %d", d.FullName(), c.Replicas, before)}, nil
}

func (s *state) addPod(p Pod) ([]string, error) {
	lab := (*manifest.Lab)(s.spec)
	one := manifest.LabDeployment{Name: p.Name, Namespace: p.Namespace, Replicas: new(uint16(1))}
	if p.Node != "" {
		one.Nodes = []string{p.Node}
		if s.spec.node(p.Node) == nil {
			var names []string
			for _, n := range s.spec.Nodes {
				names = append(names, n.Name)
			}
			return nil, fmt.Errorf("no node %q%s; the lab has %s", p.Node, nearest.Hint(p.Node, names), some(names))
		}
	}
	// The place of a pod of a deployment that has no other.
	found, err := lab.PodsOf(&one, s.spec.Pods, s.unschedulable)
	if err != nil {
		return nil, err
	}
	p.Node = found[0].Node
	if len(p.Addresses) == 0 {
		p.Addresses = found[0].Addresses
	}
	s.spec.Pods = append(s.spec.Pods, p)
	return []string{fmt.Sprintf("pod %s is added on %s with %s", p.FullName(), p.Node, texts(p.Addresses))}, nil
}

func (s *state) setReady(c *Readiness) ([]string, error) {
	p, err := s.podNamed(c.Pod)
	if err != nil {
		return nil, err
	}
	ps := s.pods[p.FullName()]
	ps.unready = !c.Ready
	s.pods[p.FullName()] = ps
	if c.Ready {
		return []string{fmt.Sprintf("pod %s is ready", p.FullName())}, nil
	}
	return []string{fmt.Sprintf("pod %s is not ready", p.FullName())}, nil
}

func (s *state) nodeEvent(c *NodeEvent, now time.Time) (changes []string, err error) {
	n, err := named("node", c.Node, s.spec.Nodes, func(n *Node) string { return n.Name })
	if err != nil {
		return nil, err
	}
	ns := s.nodes[n.Name]
	switch c.Action {
	case "down":
		ns.down = true
		changes = []string{fmt.Sprintf("node %s has lost its connection; its pods are not ready", n.Name)}
	case "up":
		ns.down = false
		changes = []string{fmt.Sprintf("node %s is connected", n.Name)}
	case "drain":
		ns.cordoned = true
		changes = []string{fmt.Sprintf("node %s gets no new pods", n.Name)}
		for i := range s.spec.Pods {
			p := &s.spec.Pods[i]
			switch {
			case p.Node != n.Name || !s.pods[p.FullName()].ends.IsZero():
			case p.Deployment == "" && !c.Force:
				changes = append(changes, fmt.Sprintf("pod %s stays: it is of no deployment (--force removes it)", p.FullName()))
			default:
				changes = append(changes, s.end(p, now, nil))
			}
		}
	case "uncordon":
		ns.cordoned = false
		changes = []string{fmt.Sprintf("node %s gets new pods", n.Name)}
	default:
		return nil, fmt.Errorf("%q: want one of %s", c.Action, strings.Join(NodeActions, ", "))
	}
	s.nodes[n.Name] = ns
	return changes, nil
}
