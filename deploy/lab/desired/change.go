package desired

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/nearest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
	"github.com/nfqproxy/nfqproxy/control/yamlfile"
	"github.com/nfqproxy/nfqproxy/datapath/decision"
	"github.com/nfqproxy/nfqproxy/datapath/quantity"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
	corev1 "k8s.io/api/core/v1"
)

// Change changes the state, and returns what it changed. The error is an [*observe.Error].
func (s *State) Change(c *labapi.Change, now time.Time) (changes []string, err error) {
	field := "" // of what is wrong
	switch {
	case c.Apply != "":
		field = "apply"
		changes, err = s.applyManifest(c.Apply, now)
	case c.Delete != nil:
		field = "delete.name"
		changes, err = s.delete(c.Delete, now)
	case c.Scale != nil:
		field = "scale.deployment"
		changes, err = s.scale(c.Scale)
	case c.AddPod != nil:
		field = "addPod.node"
		changes, err = s.addPod(*c.AddPod)
	case c.RemovePod != nil:
		field = "removePod.pod"
		changes, err = s.removePod(c.RemovePod, now)
	case c.Ready != nil:
		field = "ready.pod"
		changes, err = s.setReady(c.Ready)
	case c.Server != nil:
		field = "server.pod"
		changes, err = s.setServing(c.Server)
	case c.Node != nil:
		field = "node.node"
		changes, err = s.nodeEvent(c.Node, now)
	}
	if _, ok := errors.AsType[*observe.Error](err); err != nil && !ok {
		err = Invalid(field, err)
	}
	return changes, err
}

// Invalid is the error for a field of a change or a fault.
func Invalid(field string, err error) error {
	return &observe.Error{Status: http.StatusBadRequest, Field: field, Message: err.Error()}
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
	return nil, fmt.Errorf("no %s %q%s; the lab has %s", kind, name, nearest.Hint(name, names), nearest.Some(names))
}

// hostField is a field of a pod or client in a mistake, by the host's number.
var hostField = regexp.MustCompile(`(pods|clients)\[([0-9]+)\](\.[a-z]+(\[[0-9]+\])?)?`)

// WithNames is the first mistake in a spec that a command changed: with names of hosts, as it has no file whose fields have
// numbers.
func WithNames(s *labfile.Lab, errs []yamlfile.FieldError) error {
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

func (s *State) podNamed(name string) (*labapi.Pod, error) {
	p, err := named("pod", name, s.Lab.Pods, (*labapi.Pod).FullName)
	if err == nil && !s.pods[p.FullName()].ends.IsZero() {
		return nil, fmt.Errorf("pod %s is already terminating", p.FullName())
	}
	return p, err
}

func (s *State) nodeNamed(name string) (*labfile.Node, error) {
	return named("node", name, s.Lab.Nodes, func(n *labfile.Node) string { return n.Name })
}

func (s *State) scale(c *labapi.Scale) ([]string, error) {
	if c.Replicas > labapi.MaxReplicas {
		return nil, Invalid("scale.replicas", fmt.Errorf("%d replicas: want a number from 0 to %d", c.Replicas, labapi.MaxReplicas))
	}
	d, err := named("deployment", c.Deployment, s.Lab.Deployments, (*labfile.Deployment).FullName)
	if err != nil {
		return nil, err
	}
	before := *d.Replicas
	d.Replicas = new(c.Replicas) // the other one belongs to the state before
	return []string{fmt.Sprintf("deployment %s: %s, had %d", d.FullName(), quantity.Count(int(c.Replicas), "replica"), before)}, nil
}

func (s *State) addPod(p labapi.Pod) ([]string, error) {
	p.Namespace, p.Ports = cmp.Or(p.Namespace, "default"), slices.Clone(p.Ports)
	for i := range p.Ports {
		p.Ports[i].Protocol = cmp.Or(p.Ports[i].Protocol, decision.TCP)
	}
	if g := p.GracePeriodSeconds; g != nil && *g > uint16(labapi.MaxGrace/time.Second) {
		return nil, Invalid("addPod.gracePeriodSeconds", fmt.Errorf("%d seconds: want a number from 0 to %d", *g, labapi.MaxGrace/time.Second))
	}
	switch existing := s.Pod(p.FullName()); {
	case existing == nil:
	case !s.pods[p.FullName()].ends.IsZero():
		return nil, fmt.Errorf("pod %s is terminating: add it again when it is gone", p.FullName())
	default:
		return nil, fmt.Errorf("pod %s already exists: choose another name, or remove it first", p.FullName())
	}
	if err := labfile.CheckProbe(p.ReadinessProbe, p.Ports); err != nil {
		return nil, Invalid("addPod.readinessProbe", err)
	}
	var nodes []string
	if p.Node != "" {
		nodes = []string{p.Node}
		if _, err := s.nodeNamed(p.Node); err != nil {
			return nil, err
		}
	}
	node, addresses, err := s.Lab.Place(nodes, s.placement())
	if err != nil {
		return nil, err
	}
	p.Node = node
	if len(p.Addresses) == 0 {
		p.Addresses = addresses
	}
	s.Lab.Pods = append(s.Lab.Pods, p)
	return []string{fmt.Sprintf("pod %s is added on %s with %s", p.FullName(), p.Node, strings.Trim(fmt.Sprint(p.Addresses), "[]"))}, nil
}

func (s *State) removePod(c *labapi.PodRemoval, now time.Time) ([]string, error) {
	if g := c.Grace; g != nil && (*g < 0 || *g > labapi.Duration(labapi.MaxGrace)) {
		return nil, Invalid("removePod.grace", fmt.Errorf("%s: want a time from 0s to %s", g, labapi.Duration(labapi.MaxGrace)))
	}
	p, err := s.podNamed(c.Pod)
	if err != nil {
		return nil, err
	}
	return []string{s.end(p, now, (*time.Duration)(c.Grace))}, nil
}

func (s *State) setReady(c *labapi.Readiness) ([]string, error) {
	p, err := s.podNamed(c.Pod)
	if err != nil {
		return nil, err
	}
	ps := s.pods[p.FullName()]
	ps.unready = !c.Ready
	s.pods[p.FullName()] = ps
	if !c.Ready {
		return []string{fmt.Sprintf("pod %s is not ready", p.FullName())}, nil
	}
	if why := s.unready(p); why != "" {
		return []string{fmt.Sprintf("pod %s is not ready yet: %s", p.FullName(), why)}, nil
	}
	return []string{fmt.Sprintf("pod %s is ready", p.FullName())}, nil
}

func (s *State) setServing(c *labapi.Serving) ([]string, error) {
	p, err := s.podNamed(c.Pod)
	if err != nil {
		return nil, err
	}
	if len(p.Ports) == 0 {
		return nil, fmt.Errorf("pod %s has no server: it has no ports", p.FullName())
	}
	ps := s.pods[p.FullName()]
	ps.stopped = !c.Running
	s.pods[p.FullName()] = ps
	if c.Running {
		return []string{fmt.Sprintf("the server of pod %s runs", p.FullName())}, nil
	}
	return []string{fmt.Sprintf("the server of pod %s is stopped", p.FullName())}, nil
}

func (s *State) nodeEvent(c *labapi.NodeEvent, now time.Time) (changes []string, err error) {
	n, err := s.nodeNamed(c.Node)
	if err != nil {
		return nil, err
	}
	ns := s.nodes[n.Name]
	switch c.Action {
	case "down":
		ns.down = true
		changes = []string{fmt.Sprintf("node %s is disconnected; its pods are not ready", n.Name)}
	case "up":
		ns.down = false
		changes = []string{fmt.Sprintf("node %s is connected", n.Name)}
	case "drain":
		ns.cordoned = true
		changes = []string{fmt.Sprintf("node %s gets no new pods", n.Name)}
		for i := range s.Lab.Pods {
			p := &s.Lab.Pods[i]
			switch {
			case p.Node != n.Name || !s.pods[p.FullName()].ends.IsZero():
			case p.Deployment == "" && !c.Force:
				changes = append(changes, fmt.Sprintf("pod %s stays: it belongs to no deployment (a drain with --force removes it)", p.FullName()))
			default:
				changes = append(changes, s.end(p, now, nil))
			}
		}
	case "uncordon":
		ns.cordoned = false
		changes = []string{fmt.Sprintf("node %s gets new pods", n.Name)}
	default:
		return nil, Invalid("node.action", fmt.Errorf("%q: want one of %s", c.Action, strings.Join(labapi.NodeActions, ", ")))
	}
	s.nodes[n.Name] = ns
	return changes, nil
}

// Annotate sets the algorithm in a Service's annotation; empty: that of the files.
func (s *State) Annotate(service, algorithm string) error {
	is := func(o *corev1.Service) bool { return nameOf(o) == service }
	all := merge(s.Written.Services, s.applied.services)
	i := slices.IndexFunc(all, is)
	if i < 0 {
		return &observe.Error{Status: http.StatusNotFound, Field: "service", Message: "there is no service " + service}
	}
	o := all[i].DeepCopy()
	if algorithm == "" {
		if i := slices.IndexFunc(s.Written.Services, is); i >= 0 {
			algorithm = s.Written.Services[i].Annotations[servicetable.AnnotationBalance]
		}
	}
	switch {
	case algorithm == "":
		delete(o.Annotations, servicetable.AnnotationBalance)
	case o.Annotations == nil:
		o.Annotations = map[string]string{servicetable.AnnotationBalance: algorithm}
	default:
		o.Annotations[servicetable.AnnotationBalance] = algorithm
	}
	if s.applied.services == nil {
		s.applied.services = make(map[string]*corev1.Service)
	}
	s.applied.services[service] = o
	return nil
}
