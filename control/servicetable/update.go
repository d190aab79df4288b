package servicetable

import (
	"context"
	"fmt"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Update contains changed objects. They are read-only.
type Update struct {
	// All: these are all existing objects; otherwise they are those that changed. An object
	// that is nil was deleted.
	All            bool
	Services       map[types.NamespacedName]*Service
	EndpointSlices map[types.NamespacedName]*EndpointSlice
	Nodes          map[string]*corev1.Node
	Pods           map[types.NamespacedName]*corev1.Pod // for their names only
	// Warnings are about the objects as a whole; valid iff All.
	Warnings []string
}

// Add adds an object: a *Service, *EndpointSlice, *corev1.Node or *corev1.Pod. gone: it was deleted.
func (u *Update) Add(object any, gone bool) {
	switch o := object.(type) {
	case *Service:
		add(&u.Services, o.ObjectName(), o, gone)
	case *EndpointSlice:
		add(&u.EndpointSlices, o.ObjectName(), o, gone)
	case *corev1.Node:
		add(&u.Nodes, o.Name, o, gone)
	case *corev1.Pod:
		add(&u.Pods, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o, gone)
	}
}

func add[K comparable, V any](m *map[K]*V, k K, v *V, gone bool) {
	if gone {
		v = nil
	}
	set(m, k, v)
}

// Source feeds a Controller with objects, of an API server for example.
type Source interface {
	// Run calls publish with all objects at first and then whenever some changed. Calls do not
	// overlap; changes during a call are collected for the next. Run returns nil when
	// the context ends or nothing can change any more, and an error if it cannot go on.
	Run(ctx context.Context, publish func(Update)) error
}

// Meta is what an object needs for client-go's caches, in a fifth of the memory of a [metav1.ObjectMeta].
type Meta struct{ Namespace, Name, ResourceVersion string }

func metaOf(m *metav1.ObjectMeta) Meta {
	return Meta{unique.Make(m.Namespace).Value(), m.Name, m.ResourceVersion}
}

// GetObjectMeta makes it a [metav1.ObjectMetaAccessor].
func (m *Meta) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion}
}

// ObjectName is the key of the object in an [Update].
func (m *Meta) ObjectName() types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
}

// Service is a Kubernetes Service as it is kept: encoded, in a quarter of the memory. It is decoded when its service
// ports are made. It is immutable.
type Service struct {
	Meta
	encoded []byte // without what Meta has
}

// NewService keeps a Service.
func NewService(s *corev1.Service) *Service {
	c := *s
	c.Namespace, c.Name, c.ResourceVersion = "", "", ""
	encoded, err := c.Marshal()
	if err != nil {
		panic(fmt.Sprintf("service %s/%s: %v", s.Namespace, s.Name, err)) // every Service can be encoded
	}
	return &Service{metaOf(&s.ObjectMeta), encoded}
}

// Object is the Service.
func (s *Service) Object() *corev1.Service {
	o := new(corev1.Service)
	if err := o.Unmarshal(s.encoded); err != nil {
		panic(fmt.Sprintf("service %s/%s: %v", s.Namespace, s.Name, err)) // NewService has encoded it
	}
	o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	o.Namespace, o.Name, o.ResourceVersion = s.Namespace, s.Name, s.ResourceVersion
	return o
}
