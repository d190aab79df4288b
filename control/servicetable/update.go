package servicetable

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nfqproxy/nfqproxy/control/kube"
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

// Source feeds a Controller with objects, of an API server for example.
type Source interface {
	// Run calls publish with all objects at first and then whenever some changed. Calls do not
	// overlap; changes during a call are collected for the next. Run returns nil when
	// the context ends or nothing can change any more, and an error if it cannot go on.
	Run(ctx context.Context, publish func(Update)) error
}

// fullUpdate is the update to the objects.
func fullUpdate(o *kube.Objects) Update {
	u := Update{
		All:            true,
		Warnings:       o.Warnings,
		Services:       make(map[types.NamespacedName]*Service, len(o.Services)),
		EndpointSlices: make(map[types.NamespacedName]*EndpointSlice, len(o.EndpointSlices)),
		Nodes:          make(map[string]*corev1.Node, len(o.Nodes)),
		Pods:           make(map[types.NamespacedName]*corev1.Pod, len(o.Pods)),
	}
	for _, s := range o.Services {
		u.Services[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = NewService(s)
	}
	for _, s := range o.EndpointSlices {
		u.EndpointSlices[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = NewEndpointSlice(s)
	}
	for _, n := range o.Nodes {
		u.Nodes[n.Name] = n
	}
	for _, p := range o.Pods {
		u.Pods[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}] = p
	}
	return u
}
