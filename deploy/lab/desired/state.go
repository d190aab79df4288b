// Package desired is what a running lab is to be: the Lab and the objects of its files, what commands have changed since, and what
// follows from that, as a control plane would make it. It is pure.
package desired

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/kubeaddr"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// defaultGrace is how long a pod serves after its removal; see labapi.Pod.
const defaultGrace = 2 * time.Second

// State is what a running lab is to be: its files, and what commands have changed since. It is pure; package deploy/lab carries
// it out. A state is not changed once it is in force: its methods change a [State.Clone].
type State struct {
	Lab   *labfile.Lab // with the pods there are now; those that end are among them
	start *labfile.Lab // the file's at the start of the lab
	// Written are the objects of the files, with their Lab.
	Written *manifest.Objects
	// applied are objects of "lab apply", which go before those of the files with their kinds and names.
	applied objectSet
	pods    map[string]podState  // by full name; without an entry: ready
	nodes   map[string]nodeState // by name
	given   *labfile.Given
	// own are the Services whose EndpointSlices of the files the controller takes over.
	own takenOver
	// made are the names of the EndpointSlices that were last made of Services' selectors.
	made map[string]bool
}

// podState is how a pod differs from one that runs and is ready.
type podState struct {
	unready bool        // by a command, whatever its probe finds
	probe   ProbeResult // of a pod with a readiness probe
	failure string      // of the probe; empty: none
	stopped bool        // its server does not run
	ends    time.Time   // it is terminating and ends then; zero: it is not
	applied bool        // a command has written it: what the files have of it is not in force
}

// ProbeResult is what a readiness probe finds.
type ProbeResult int

// The results of a readiness probe.
const (
	ProbeUnknown ProbeResult = iota // not enough probes yet
	ProbeSucceeds
	ProbeFails
)

// nodeState is how a node differs from one that is up.
type nodeState struct {
	down     bool
	cordoned bool // gets no new pods
}

// objectSet are objects by kind and "namespace/name". Nil is an object of the files that a command has deleted.
type objectSet struct {
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
}

// New is the state of a lab as its files have it.
func New(spec *labfile.Lab, written *manifest.Objects) *State {
	s := &State{Lab: spec, start: labfile.Of(written), given: labfile.NewGiven(spec)}
	s.write(written)
	return s
}

// write makes objects those of the files.
func (s *State) write(written *manifest.Objects) { s.Written, s.own = written, takeOver(written) }

// Clone is a copy to change.
func (s *State) Clone() *State {
	c := *s
	spec := *s.Lab
	spec.Pods, spec.Clients, spec.Deployments = slices.Clone(spec.Pods), slices.Clone(spec.Clients), slices.Clone(spec.Deployments)
	c.Lab = &spec
	c.applied = objectSet{maps.Clone(s.applied.services), maps.Clone(s.applied.slices)}
	c.pods, c.nodes, c.given = maps.Clone(s.pods), maps.Clone(s.nodes), s.given.Clone()
	if c.pods == nil {
		c.pods = make(map[string]podState)
	}
	if c.nodes == nil {
		c.nodes = make(map[string]nodeState)
	}
	return &c
}

// Pod finds a pod by its full name; nil: there is none.
func (s *State) Pod(name string) *labapi.Pod {
	for i := range s.Lab.Pods {
		if s.Lab.Pods[i].FullName() == name {
			return &s.Lab.Pods[i]
		}
	}
	return nil
}

// Stopped reports whether the server of a pod does not run.
func (s *State) Stopped(pod string) bool { return s.pods[pod].stopped }

// Node reports whether a node is down, and whether it gets no new pods.
func (s *State) Node(name string) (down, cordoned bool) {
	return s.nodes[name].down, s.nodes[name].cordoned
}

// Probed keeps what the readiness probe of a pod found, with the reason of a failure.
func (s *State) Probed(pod string, result ProbeResult, failure string) {
	p := s.pods[pod]
	p.probe, p.failure = result, failure
	s.pods[pod] = p
}

// podsOf are the pods of a deployment.
func (s *State) podsOf(d *labfile.Deployment) (all []*labapi.Pod) {
	for i := range s.Lab.Pods {
		if p := &s.Lab.Pods[i]; p.Deployment == d.Name && p.Namespace == d.Namespace {
			all = append(all, p)
		}
	}
	return all
}

// placement is where further pods can be.
func (s *State) placement() labfile.Placement {
	return labfile.Placement{Pods: s.Lab.Pods, Unschedulable: s.unschedulable, Given: s.given}
}

func (s *State) unschedulable(node string) bool { return s.nodes[node].down || s.nodes[node].cordoned }

// Replicas gives each deployment its number of pods, and returns what changed. Pods that find no place are missing until
// another change.
func (s *State) Replicas(now time.Time) (changes []string) {
	lab := s.Lab
	for i := range s.Lab.Deployments {
		d := &s.Lab.Deployments[i]
		own := s.podsOf(d)
		// The newest first, as ReplicaSets do.
		for len(own) > int(*d.Replicas) {
			changes = append(changes, s.end(own[len(own)-1], now, nil))
			own = own[:len(own)-1]
		}
		added, err := lab.PodsOf(d, s.placement())
		for _, p := range added {
			s.Lab.Pods = append(s.Lab.Pods, p)
			changes = append(changes, fmt.Sprintf("pod %s is added on %s with %s", p.FullName(), p.Node, strings.Trim(fmt.Sprint(p.Addresses), "[]")))
		}
		if err != nil {
			changes = append(changes, fmt.Sprintf("deployment %s has %d of %d pods: %v", d.FullName(), len(own)+len(added), *d.Replicas, err))
		}
	}
	return changes
}

// end makes a pod terminating, for the time it serves on: its own, or another one.
func (s *State) end(p *labapi.Pod, now time.Time, grace *time.Duration) string {
	wait := defaultGrace
	if p.GracePeriodSeconds != nil {
		wait = time.Duration(*p.GracePeriodSeconds) * time.Second
	}
	if grace != nil {
		wait = *grace
	}
	p.Deployment = "" // which may replace it at once
	ps := s.pods[p.FullName()]
	ps.ends = now.Add(wait)
	s.pods[p.FullName()] = ps
	return fmt.Sprintf("pod %s is terminating, and ends in %s", p.FullName(), wait)
}

// Sweep removes the pods whose time is over, and returns when the next one ends: zero: none does.
func (s *State) Sweep(now time.Time) (ended []string, next time.Time) {
	s.Lab.Pods = slices.DeleteFunc(s.Lab.Pods, func(p labapi.Pod) bool {
		at := s.pods[p.FullName()].ends
		switch {
		case at.IsZero():
			return false
		case at.After(now):
			if next.IsZero() || at.Before(next) {
				next = at
			}
			return false
		}
		delete(s.pods, p.FullName())
		ended = append(ended, p.FullName())
		return true
	})
	return ended, next
}

// Objects are the Kubernetes objects of the state, with what controllers make of them. Its Lab is the spec.
func (s *State) Objects(c *controllers.EndpointSlices, now time.Time) (*manifest.Objects, error) {
	o := *s.Written
	o.Lab = s.Lab
	o.Services = merge(s.Written.Services, s.applied.services)
	for i := range o.Services {
		o.Services[i] = o.Services[i].DeepCopy() // Allocate changes it
	}
	if err := controllers.Allocate(o.Services, labfile.Of(&o).ServicePrefixes()); err != nil {
		return nil, err
	}
	if err := cmp.Or(controllers.Unique(o.Services), apart(s.Lab, o.Services)); err != nil {
		return nil, err
	}
	o.Nodes, o.Pods, o.Deployments = s.nodeObjects(), s.podObjects(), s.deploymentObjects()
	given := s.handWritten(c, o.Services)
	made, err := c.Sync(o.Services, o.Pods, o.Nodes, given, now)
	if err != nil {
		return nil, err
	}
	s.made = make(map[string]bool)
	for _, slice := range made {
		s.made[nameOf(slice)] = true
	}
	o.EndpointSlices = append(given, made...)
	byName(o.EndpointSlices)
	return &o, nil
}

// apart returns an error for a ClusterIP that is the address of a host: the proxies would translate the packets to that host.
func apart(l *labfile.Lab, services []*corev1.Service) error {
	hosts := l.Owners()
	for _, o := range services {
		for i, ip := range o.Spec.ClusterIPs {
			if a, err := kubeaddr.Parse(ip); err == nil && hosts[a] != "" {
				return fmt.Errorf("spec.clusterIPs[%d] of Service %s: %s is the address of %s: change it, or leave it out to have a free one allocated", i, nameOf(o), a, hosts[a])
			}
		}
	}
	return nil
}

// podObjects are the pods of the spec: as the files have them, if they do.
func (s *State) podObjects() (all []*corev1.Pod) {
	written := make(map[string]*corev1.Pod)
	for _, p := range s.Written.Pods {
		written[nameOf(p)] = p
	}
	inLab := make(map[string]bool) // pods that were hosts of the lab when the files were read
	for _, p := range s.Written.Lab.LabPods() {
		inLab[p.FullName()] = true
	}
	for i := range s.Lab.Pods {
		p := &s.Lab.Pods[i]
		o, ok := written[p.FullName()]
		if !ok || s.pods[p.FullName()].applied {
			o = labfile.PodObject(p)
		}
		o = s.own.labelled(o)
		all = append(all, s.withState(o, p))
		delete(written, p.FullName())
	}
	for name, p := range written {
		if !inLab[name] {
			all = append(all, p) // no host
		}
	}
	byName(all)
	return all
}

// withState is a pod with the conditions of its state.
func (s *State) withState(o *corev1.Pod, p *labapi.Pod) *corev1.Pod {
	ps, why := s.pods[p.FullName()], s.unready(p)
	if why == "" && ps.ends.IsZero() {
		return o
	}
	o = o.DeepCopy()
	if why != "" {
		setUnready(&o.Status.Conditions, why)
	}
	if !ps.ends.IsZero() {
		o.DeletionTimestamp = &metav1.Time{Time: ps.ends}
	}
	return o
}

// unready is why a pod is not ready; empty: it is.
func (s *State) unready(p *labapi.Pod) string {
	ps := s.pods[p.FullName()]
	switch {
	case s.nodes[p.Node].down:
		return "node " + p.Node + " is disconnected"
	case ps.unready:
		return "made not ready by a command"
	case p.ReadinessProbe == nil || ps.probe == ProbeSucceeds:
		return ""
	}
	return "readiness probe: " + cmp.Or(ps.failure, "no result yet")
}

func setUnready(conditions *[]corev1.PodCondition, why string) {
	condition := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: why}
	for i := range *conditions {
		if (*conditions)[i].Type == corev1.PodReady {
			(*conditions)[i] = condition
			return
		}
	}
	*conditions = append(*conditions, condition)
}

// nodeObjects are the nodes of the files, with their states.
func (s *State) nodeObjects() (all []*corev1.Node) {
	for _, n := range s.Written.Nodes {
		ns, ok := s.nodes[n.Name]
		if ok {
			n = n.DeepCopy()
			n.Spec.Unschedulable = ns.cordoned
			status := corev1.ConditionTrue
			if ns.down {
				status = corev1.ConditionUnknown // as the node controller of Kubernetes has it
			}
			n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }),
				corev1.NodeCondition{Type: corev1.NodeReady, Status: status})
		}
		all = append(all, n)
	}
	return all
}

func (s *State) podState(p *labapi.Pod) string {
	switch {
	case !s.pods[p.FullName()].ends.IsZero():
		return labapi.PodTerminating
	case s.unready(p) != "":
		return labapi.PodUnready
	}
	return labapi.PodReady
}

// PodStatus are the states of pods of a topology of the state.
func (s *State) PodStatus(pods []observe.TopologyPod) []labapi.PodStatus {
	all := make([]labapi.PodStatus, len(pods))
	for i, t := range pods {
		p := s.Pod(t.Name)
		all[i] = labapi.PodStatus{TopologyPod: t, State: s.podState(p)}
		if p.Deployment != "" {
			all[i].Deployment = p.Namespace + "/" + p.Deployment
		}
		if len(p.Ports) > 0 {
			all[i].Server = labapi.ServerRuns
			if s.pods[p.FullName()].stopped {
				all[i].Server = labapi.ServerStopped
			}
		}
	}
	return all
}

// DeploymentStatus are the states of all deployments.
func (s *State) DeploymentStatus() (all []labapi.DeploymentStatus) {
	for _, d := range s.deploymentObjects() {
		all = append(all, labapi.DeploymentStatus{Name: nameOf(d), Replicas: int(*d.Spec.Replicas), Ready: int(d.Status.ReadyReplicas)})
	}
	return all
}

// deploymentObjects are the deployments with their states.
func (s *State) deploymentObjects() (all []*appsv1.Deployment) {
	for i := range s.Lab.Deployments {
		d := &s.Lab.Deployments[i]
		o := d.Object()
		for _, p := range s.podsOf(d) {
			o.Status.Replicas++
			o.Status.UpdatedReplicas++
			if s.podState(p) == labapi.PodReady {
				o.Status.ReadyReplicas++
				o.Status.AvailableReplicas++
			}
		}
		all = append(all, o)
	}
	byName(all)
	return all
}

// object is what all kinds have.
type object interface {
	comparable
	GetNamespace() string
	GetName() string
}

func nameOf[T object](o T) string { return o.GetNamespace() + "/" + o.GetName() }

func byName[T object](list []T) {
	slices.SortFunc(list, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}

// merge is a new list with the objects of a list, and with others in the place of those with their names; nil: without them.
func merge[T object](list []T, others map[string]T) []T {
	var all []T
	for _, o := range list {
		if _, ok := others[nameOf(o)]; !ok {
			all = append(all, o)
		}
	}
	var none T
	for _, o := range others {
		if o != none {
			all = append(all, o)
		}
	}
	byName(all)
	return all
}
