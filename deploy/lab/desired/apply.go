package desired

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nfqproxy/nfqproxy/control/kube"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// Applied are the objects of "lab apply".
type Applied struct {
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice
	Deployments    []*appsv1.Deployment
	Pods           []*corev1.Pod
}

// Applicable returns the objects of manifests that a running lab takes. files names the manifests in errors.
func Applicable(o *manifest.Objects, files string) (*Applied, error) {
	switch {
	case o.Lab != nil:
		return nil, fmt.Errorf("%s has a Lab: edit the running lab's own file instead; changes to it apply at once", files)
	case len(o.Services)+len(o.EndpointSlices)+len(o.Deployments)+len(o.Pods) == 0:
		return nil, fmt.Errorf("no Service, EndpointSlice, Deployment or Pod in %s", files)
	}
	return &Applied{o.Services, o.EndpointSlices, o.Deployments, o.Pods}, nil
}

// LeftOut are the objects of manifests that a running lab does not take, in a line for each kind.
func LeftOut(o *manifest.Objects) (lines []string) {
	for _, skipped := range o.Skipped {
		lines = append(lines, fmt.Sprintf("left out: %d %s", skipped.Count, skipped.Kind))
	}
	if n := len(o.Nodes); n > 0 {
		lines = append(lines, fmt.Sprintf("left out: %d Node (a lab's nodes come from its file)", n))
	}
	return lines
}

// Manifest writes the objects as the text of a [Change].
func (a *Applied) Manifest() (string, error) {
	o := manifest.Objects{Objects: kube.Objects{Services: a.Services, EndpointSlices: a.EndpointSlices, Pods: a.Pods}, Deployments: a.Deployments}
	return o.YAML()
}

// applyManifest applies the objects of a text in YAML or JSON.
func (s *State) applyManifest(text string, now time.Time) ([]string, error) {
	o, err := labfile.LoadText("manifest", text)
	if err != nil {
		return nil, err
	}
	a, err := Applicable(o, "the manifest")
	if err != nil {
		return nil, err
	}
	changes, err := s.apply(a, now)
	return append(changes, LeftOut(o)...), err
}

// apply puts objects in force.
func (s *State) apply(a *Applied, now time.Time) (changes []string, err error) {
	if s.applied.services == nil {
		s.applied.services = make(map[string]*corev1.Service)
	}
	if s.applied.slices == nil {
		s.applied.slices = make(map[string]*discoveryv1.EndpointSlice)
	}
	add := func(format string, args ...any) { changes = append(changes, fmt.Sprintf(format, args...)) }
	for _, o := range a.Services {
		apply(s.applied.services, s.Written.Services, o, "Service", add)
	}
	for _, o := range a.EndpointSlices {
		if s.made[nameOf(o)] {
			add("EndpointSlice %s is left out: the lab makes it from the pods that Service %s selects", nameOf(o), o.Labels[discoveryv1.LabelServiceName])
			continue
		}
		apply(s.applied.slices, s.Written.EndpointSlices, o, "EndpointSlice", add)
	}
	for _, o := range a.Deployments {
		d, err := labfile.DeploymentOf(o)
		if err != nil {
			return nil, err
		}
		s.setDeployment(&d, now, add)
		noteLeftOut("deployment "+d.FullName(), o.Spec.Template.Spec, add)
	}
	for _, o := range a.Pods {
		p, err := labfile.PodOf(o)
		if err == nil {
			err = s.applyPod(&p, add)
		}
		if err != nil {
			return nil, err
		}
		noteLeftOut("pod "+p.FullName(), o.Spec, add)
	}
	return changes, nil
}

// apply puts one object in force; written are those of the files.
func apply[T object](applied map[string]T, written []T, o T, kind string, add func(string, ...any)) {
	var none T
	name, verb := nameOf(o), "added"
	before, known := applied[name]
	if known && before != none || !known && slices.ContainsFunc(written, func(w T) bool { return nameOf(w) == name }) {
		verb = "replaced"
	}
	applied[name] = o
	add("%s %s is %s", kind, name, verb)
}

// noteLeftOut adds a line for each image and probe that a lab does not run.
func noteLeftOut(what string, spec corev1.PodSpec, add func(string, ...any)) {
	for _, c := range spec.Containers {
		if c.Image != "" && !slices.Contains(labfile.Images, c.Image) {
			add("%s: container %s runs the built-in server, not the image %s", what, c.Name, c.Image)
		}
		if c.ReadinessProbe != nil && !labfile.Probed(c.ReadinessProbe) {
			add("%s: container %s: the readinessProbe has no effect: a lab supports httpGet and tcpSocket", what, c.Name)
		}
	}
}

// applyPod adds a pod, or changes the labels, ports and probe of the one with its name.
func (s *State) applyPod(p *labapi.Pod, add func(string, ...any)) error {
	if own := s.Pod(p.FullName()); own != nil {
		switch {
		case !s.pods[p.FullName()].ends.IsZero():
			return fmt.Errorf("pod %s is terminating: apply it again when it is gone", p.FullName())
		case p.Node != "" && p.Node != own.Node:
			return fmt.Errorf("pod %s: spec.nodeName: it is on %s, and pods do not move: delete it first", p.FullName(), own.Node)
		}
		after := *own
		after.Labels, after.Ports, after.GracePeriodSeconds, after.ReadinessProbe = p.Labels, p.Ports, p.GracePeriodSeconds, p.ReadinessProbe
		if reflect.DeepEqual(after, *own) {
			add("pod %s is unchanged", p.FullName())
			return nil
		}
		*own = after
		add("pod %s is changed", p.FullName())
		if d := s.deploymentOf(own); d != nil && !selects(d.Labels, own.Labels) {
			own.Deployment = "" // which replaces it
			add("pod %s no longer has the labels of deployment %s, which replaces it", p.FullName(), d.FullName())
		}
	} else {
		changes, err := s.addPod(*p)
		if err != nil {
			return fmt.Errorf("pod %s: %w", p.FullName(), err)
		}
		add("%s", changes[0])
	}
	ps := s.pods[p.FullName()]
	ps.applied = true
	s.pods[p.FullName()] = ps
	return nil
}

// selects reports whether labels have all of a selector.
func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if v, ok := labels[key]; !ok || v != value {
			return false
		}
	}
	return true
}

// deploymentOf is the deployment of a pod; nil: it is of none.
func (s *State) deploymentOf(p *labapi.Pod) *labfile.Deployment {
	for i := range s.Lab.Deployments {
		if d := &s.Lab.Deployments[i]; p.Deployment == d.Name && p.Namespace == d.Namespace {
			return d
		}
	}
	return nil
}

// delete removes an object.
func (s *State) delete(c *labapi.Deletion, now time.Time) (changes []string, err error) {
	add := func(format string, args ...any) { changes = append(changes, fmt.Sprintf(format, args...)) }
	switch c.Kind {
	case "Service":
		s.applied.services, err = drop(s.applied.services, s.Written.Services, c, add)
	case "EndpointSlice":
		for _, name := range slices.Sorted(maps.Keys(s.made)) {
			if name == c.Name || strings.HasSuffix(name, "/"+c.Name) {
				return nil, fmt.Errorf("EndpointSlice %s is made from the pods that a Service selects, and would come back: delete the Service, or change its selector", name)
			}
		}
		s.applied.slices, err = drop(s.applied.slices, s.Written.EndpointSlices, c, add)
	case "Pod":
		var p *labapi.Pod
		if p, err = s.podNamed(c.Name); err == nil {
			add("%s", s.end(p, now, nil))
		}
	case "Deployment":
		var d *labfile.Deployment
		if d, err = named("deployment", c.Name, s.Lab.Deployments, (*labfile.Deployment).FullName); err == nil {
			gone := *d
			s.removeDeployment(&gone, now, add)
		}
	default:
		err = Invalid("delete.kind", fmt.Errorf("%q: want one of %s", c.Kind, strings.Join(labapi.DeletionKinds, ", ")))
	}
	return changes, err
}

// drop deletes an object that the files have or a command has applied.
func drop[T object](applied map[string]T, written []T, c *labapi.Deletion, add func(string, ...any)) (map[string]T, error) {
	all := merge(written, applied)
	o, err := named(c.Kind, c.Name, all, func(o *T) string { return nameOf(*o) })
	if err != nil {
		return applied, err
	}
	if applied == nil {
		applied = make(map[string]T)
	}
	var none T
	applied[nameOf(*o)] = none
	add("%s %s is deleted", c.Kind, nameOf(*o))
	return applied, nil
}
