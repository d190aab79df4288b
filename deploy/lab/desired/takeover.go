package desired

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/nfqproxy/nfqproxy/control/controllers"
	"github.com/nfqproxy/nfqproxy/control/labapi"
	"github.com/nfqproxy/nfqproxy/control/manifest"
	"github.com/nfqproxy/nfqproxy/deploy/lab/labfile"
)

// takenOver are Services with a selector whose EndpointSlices are in the files. In a cluster the controller owns these, so it
// does in a lab, if it makes the same of the pods as the files have them.
type takenOver struct {
	services map[string]bool // by "namespace/name"
	// labels are those that the pods of a lab lack to be selected, by the pod's full name.
	labels map[string]map[string]string
}

// takeOver finds the Services of files whose EndpointSlices the controller would make the same way.
func takeOver(written *manifest.Objects) takenOver {
	t := takenOver{make(map[string]bool), make(map[string]map[string]string)}
	given := byService(written.EndpointSlices)
	var candidates, all []*corev1.Service
	for _, s := range written.Services {
		s = s.DeepCopy() // Allocate changes it
		all = append(all, s)
		if len(s.Spec.Selector) > 0 && len(given[nameOf(s)]) > 0 {
			t.note(s, given[nameOf(s)], written)
			candidates = append(candidates, s)
		}
	}
	if len(candidates) == 0 {
		return t
	}
	if controllers.Allocate(all, labfile.Of(written).ServicePrefixes()) != nil {
		return takenOver{} // the lab has the error
	}
	s := &State{Lab: labfile.Of(written), Written: written, own: t}
	made, err := controllers.NewEndpointSlices().Sync(candidates, s.podObjects(), s.nodeObjects(), nil, time.Time{})
	if err != nil {
		return takenOver{}
	}
	of := byService(made)
	for _, c := range candidates {
		if name := nameOf(c); slices.Equal(contents(given[name]), contents(of[name])) {
			t.services[name] = true
		}
	}
	return t
}

// serviceOf is the Service of an EndpointSlice, as "namespace/name".
func serviceOf(e *discoveryv1.EndpointSlice) string {
	return e.Namespace + "/" + e.Labels[discoveryv1.LabelServiceName]
}

func byService(list []*discoveryv1.EndpointSlice) map[string][]*discoveryv1.EndpointSlice {
	all := make(map[string][]*discoveryv1.EndpointSlice)
	for _, e := range list {
		all[serviceOf(e)] = append(all[serviceOf(e)], e)
	}
	return all
}

// note notes the labels that endpoints of a Service lack: pods of a lab need not have any.
func (t takenOver) note(s *corev1.Service, given []*discoveryv1.EndpointSlice, written *manifest.Objects) {
	at := make(map[string]*labapi.Pod)
	for i := range labfile.Of(written).Pods {
		p := &labfile.Of(written).Pods[i]
		for _, a := range p.Addresses {
			at[a.String()] = p
		}
	}
	for _, g := range given {
		for i := range g.Endpoints {
			p := at[firstAddress(&g.Endpoints[i])]
			if p == nil || p.Namespace != s.Namespace || len(p.Labels) > 0 {
				continue
			}
			labels := t.labels[p.FullName()]
			if labels == nil {
				labels = make(map[string]string)
				t.labels[p.FullName()] = labels
			}
			for key, value := range s.Spec.Selector {
				labels[key] = cmp.Or(labels[key], value)
			}
		}
	}
}

func firstAddress(e *discoveryv1.Endpoint) string {
	if len(e.Addresses) == 0 {
		return ""
	}
	return e.Addresses[0]
}

// labelled is the object of a pod with the labels that it lacks.
func (t takenOver) labelled(o *corev1.Pod) *corev1.Pod {
	if labels := t.labels[nameOf(o)]; labels != nil && len(o.Labels) == 0 {
		o = o.DeepCopy()
		o.Labels = maps.Clone(labels)
	}
	return o
}

// contents are what EndpointSlices say of their endpoints' ports, sorted: what proxies read of them.
func contents(list []*discoveryv1.EndpointSlice) (all []string) {
	for _, s := range list {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			c := e.Conditions
			ready := ptr.Deref(c.Ready, true)
			for _, p := range s.Ports {
				all = append(all, fmt.Sprint(firstAddress(e), ptr.Deref(p.Name, ""), ptr.Deref(p.Port, 0), ptr.Deref(p.Protocol, corev1.ProtocolTCP),
					ready, ptr.Deref(c.Serving, ready), ptr.Deref(c.Terminating, false)))
			}
		}
	}
	slices.Sort(all)
	return all
}

// handWritten are the EndpointSlices that the controller does not own. It takes over those of the files that it makes the same
// way, unless a command has applied one to the Service.
func (s *State) handWritten(c *controllers.EndpointSlices, services []*corev1.Service) (all []*discoveryv1.EndpointSlice) {
	byCommand, taken := make(map[string]bool), make(map[string][]*discoveryv1.EndpointSlice)
	for _, e := range s.applied.slices {
		if e != nil {
			byCommand[serviceOf(e)] = true
		}
	}
	for _, e := range merge(s.Written.EndpointSlices, s.applied.slices) {
		if service := serviceOf(e); s.own.services[service] && !byCommand[service] {
			taken[service] = append(taken[service], e)
		} else {
			all = append(all, e)
		}
	}
	for _, o := range services {
		switch mine := taken[nameOf(o)]; {
		case len(mine) == 0:
		case len(o.Spec.Selector) == 0: // a command has taken it away
			all = append(all, mine...)
		default:
			c.TakeOver(o, mine)
		}
	}
	byName(all)
	return all
}

// Unchanged are lines about the EndpointSlices that still send new flows to pods that a change has made not ready or has ended:
// no controller owns them. The objects are those after the change, which made the state next of s.
func (s *State) Unchanged(next *State, objects *manifest.Objects) (lines []string) {
	lost := make(map[string]string) // pods by address
	for i := range s.Lab.Pods {
		p := &s.Lab.Pods[i]
		if after := next.Pod(p.FullName()); s.podState(p) == labapi.PodReady && (after == nil || next.podState(after) != labapi.PodReady) {
			for _, a := range p.Addresses {
				lost[a.String()] = p.FullName()
			}
		}
	}
	if len(lost) == 0 {
		return nil
	}
	selectors := make(map[string]bool)
	for _, o := range objects.Services {
		selectors[nameOf(o)] = len(o.Spec.Selector) > 0
	}
	for _, e := range objects.EndpointSlices {
		if next.made[nameOf(e)] {
			continue
		}
		var pods []string
		for i := range e.Endpoints {
			if p, ok := lost[firstAddress(&e.Endpoints[i])]; ok && ptr.Deref(e.Endpoints[i].Conditions.Ready, true) {
				pods = append(pods, p)
			}
		}
		if len(pods) == 0 {
			continue
		}
		service := serviceOf(e)
		why := "has no selector"
		if selectors[service] {
			why = "has EndpointSlices that no controller would make of its pods"
		}
		lines = append(lines, fmt.Sprintf("EndpointSlice %s is not changed, and still has %s as ready: Service %s %s; change it in the file, or with lab apply", nameOf(e), strings.Join(pods, ", "), service, why))
	}
	return lines
}
