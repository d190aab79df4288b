// Package apiserver serves Kubernetes objects, of a lab or of files, by the part of the Kubernetes API that service proxies
// use: lists and watches of Services, EndpointSlices, Nodes, Pods and ServiceCIDRs, in JSON. It is read only.
package apiserver

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nfqproxy/nfqproxy/control/kube"
)

// resource is a kind of objects in a path of the API.
type resource struct {
	group string // "/api/v1" or "/apis/GROUP/VERSION"
	name  string // "services"
}

// kinds are the kinds of the resources.
var kinds = map[resource]metav1.TypeMeta{
	{"/api/v1", "services"}:                         {APIVersion: "v1", Kind: "Service"},
	{"/api/v1", "nodes"}:                            {APIVersion: "v1", Kind: "Node"},
	{"/api/v1", "pods"}:                             {APIVersion: "v1", Kind: "Pod"},
	{"/apis/discovery.k8s.io/v1", "endpointslices"}: {APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
	{"/apis/networking.k8s.io/v1", "servicecidrs"}:  {APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
}

// object is one object. It does not change.
type object struct {
	metav1.Object // what it was made of, without a resource version
	text          json.RawMessage
}

func (o *object) key() string { return o.GetNamespace() + "/" + o.GetName() }

// event is a change of an object.
type event struct {
	what          watch.EventType
	version       uint64
	resource      resource
	before, after *object // after is the last state of a deleted one
}

// maxEvents is how many events there are for watches that begin in the past.
const maxEvents = 4096

// Server has the objects. The zero value has none. It is safe for concurrent use.
type Server struct {
	mu      sync.Mutex
	version uint64
	objects map[resource]map[string]*object
	events  []event       // the last ones
	oldest  uint64        // version of the last event that is forgotten
	changed chan struct{} // closed at the next change; nil: nothing waits

	access  access
	serving serving
}

// Set puts objects in the place of all before.
func (s *Server) Set(o *kube.Objects) error {
	all := make(map[resource][]metav1.Object)
	services, nodes, pods := resource{"/api/v1", "services"}, resource{"/api/v1", "nodes"}, resource{"/api/v1", "pods"}
	for _, x := range o.Services {
		all[services] = append(all[services], x)
	}
	for _, x := range o.Nodes {
		all[nodes] = append(all[nodes], x)
	}
	for _, x := range o.Pods {
		all[pods] = append(all[pods], x)
	}
	slices := resource{"/apis/discovery.k8s.io/v1", "endpointslices"}
	for _, x := range o.EndpointSlices {
		all[slices] = append(all[slices], x)
	}
	cidrs := resource{"/apis/networking.k8s.io/v1", "servicecidrs"}
	for _, x := range o.Context.ServiceCIDRs {
		all[cidrs] = append(all[cidrs], x)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.version, s.objects = 1, make(map[resource]map[string]*object)
	}
	for r := range kinds {
		if err := s.replace(r, all[r]); err != nil {
			return err
		}
	}
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
	return nil
}

// replace puts the objects of one resource in force.
func (s *Server) replace(r resource, list []metav1.Object) error {
	old := s.objects[r]
	if old == nil {
		old = make(map[string]*object)
		s.objects[r] = old
	}
	wanted := make(map[string]bool)
	for _, source := range list {
		key := source.GetNamespace() + "/" + source.GetName()
		wanted[key] = true
		before := old[key]
		if before != nil && reflect.DeepEqual(before.Object, source) {
			continue
		}
		after, err := encode(source, kinds[r], s.version+1)
		if err != nil {
			return err
		}
		what := watch.Added
		if before != nil {
			what = watch.Modified
		}
		old[key] = after
		s.note(event{what: what, resource: r, before: before, after: after})
	}
	for key, before := range old {
		if wanted[key] {
			continue
		}
		last, err := encode(before.Object, kinds[r], s.version+1)
		if err != nil {
			return err
		}
		delete(old, key)
		s.note(event{what: watch.Deleted, resource: r, before: before, after: last})
	}
	return nil
}

func (s *Server) note(e event) {
	s.version++
	e.version = s.version
	s.events = append(s.events, e)
	if n := len(s.events) - maxEvents; n > 0 {
		s.oldest = s.events[n-1].version
		s.events = slices.Delete(s.events, 0, n)
	}
}

// encode is an object with a version.
func encode(source metav1.Object, kind metav1.TypeMeta, version uint64) (*object, error) {
	copied := source.(runtime.Object).DeepCopyObject()
	copied.GetObjectKind().SetGroupVersionKind(kind.GroupVersionKind())
	copied.(metav1.Object).SetResourceVersion(strconv.FormatUint(version, 10))
	text, err := json.Marshal(copied)
	return &object{source, text}, err
}
