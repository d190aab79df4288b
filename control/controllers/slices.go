// Package controllers does for the objects of a lab what an API server and kube-controller-manager do in a
// cluster: it allocates ClusterIPs and node ports, and makes EndpointSlices for Services with selectors.
//
// It is a ground package.
package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	endpointsliceutil "k8s.io/endpointslice/util"
)

const (
	// controllerName is the value of the label endpointslice.kubernetes.io/managed-by, that of kube-controller-manager.
	controllerName = "endpointslice-controller.k8s.io"
	// maxEndpoints is kube-controller-manager's default of --max-endpoints-per-slice.
	maxEndpoints = 100
)

// EndpointSlices keeps EndpointSlices like the Pods that Services select. It runs the reconciler of
// kube-controller-manager (k8s.io/endpointslice), so conditions, hints and how endpoints are split are the same.
// It is not safe for concurrent use.
type EndpointSlices struct {
	reconciler *endpointslice.Reconciler
	zones      *topologycache.TopologyCache
	nodes      nodeLister
	// slices are those of Services with a selector, by name.
	slices map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice
	// service is the one that is reconciled.
	service types.NamespacedName
}

// NewEndpointSlices returns a controller without EndpointSlices.
func NewEndpointSlices() *EndpointSlices {
	e := &EndpointSlices{zones: topologycache.NewTopologyCache(), slices: make(map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice)}
	e.reconciler = endpointslice.NewReconciler(&client{slices: e}, &e.nodes, maxEndpoints, endpointsliceutil.NewEndpointSliceTracker(), e.zones,
		&record.FakeRecorder{}, controllerName, endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	return e
}

// Sync returns the EndpointSlices of all Services with a selector, sorted by namespace and name. A Service that has one in
// given is left alone: its EndpointSlices are written by hand. What is returned is read only: later calls return other objects
// for what has changed. now is the time of the change, for annotations.
func (e *EndpointSlices) Sync(services []*corev1.Service, pods []*corev1.Pod, nodes []*corev1.Node, given []*discoveryv1.EndpointSlice, now time.Time) ([]*discoveryv1.EndpointSlice, error) {
	e.nodes = nodeLister{nodes}
	e.zones.SetNodes(logr.Discard(), nodes)
	byHand := make(map[types.NamespacedName]bool)
	for _, s := range given {
		byHand[types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}] = true
	}
	left := maps.Clone(e.slices)
	var errs []error
	for _, s := range services {
		name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		if len(s.Spec.Selector) == 0 || s.Spec.Type == corev1.ServiceTypeExternalName || byHand[name] {
			continue
		}
		delete(left, name)
		if e.slices[name] == nil {
			e.slices[name] = make(map[string]*discoveryv1.EndpointSlice)
		}
		existing := make([]*discoveryv1.EndpointSlice, 0, len(e.slices[name]))
		for _, slice := range slices.Sorted(maps.Keys(e.slices[name])) {
			existing = append(existing, e.slices[name][slice])
		}
		e.service = name
		if err := e.reconciler.Reconcile(logr.Discard(), s, selected(s, pods), existing, now); err != nil {
			errs = append(errs, fmt.Errorf("EndpointSlices of Service %s: %w", name, err))
		}
	}
	for name := range left {
		delete(e.slices, name)
		e.reconciler.DeleteService(name.Namespace, name.Name)
	}
	var all []*discoveryv1.EndpointSlice
	for _, m := range e.slices {
		all = slices.AppendSeq(all, maps.Values(m))
	}
	slices.SortFunc(all, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all, errors.Join(errs...)
}

// TakeOver hands the EndpointSlices of a Service with a selector to the controller, unless it already has some. The next
// Sync keeps their names, as far as it needs them.
func (e *EndpointSlices) TakeOver(s *corev1.Service, given []*discoveryv1.EndpointSlice) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	if e.slices[name] != nil {
		return
	}
	e.slices[name] = make(map[string]*discoveryv1.EndpointSlice)
	for _, g := range given {
		g = g.DeepCopy()
		g.Labels[discoveryv1.LabelManagedBy] = controllerName
		g.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s, corev1.SchemeGroupVersion.WithKind("Service"))}
		e.slices[name][g.Name] = g
	}
}

// selected are the pods that a Service selects.
func selected(s *corev1.Service, pods []*corev1.Pod) (all []*corev1.Pod) {
	selector := labels.SelectorFromSet(s.Spec.Selector)
	for _, p := range pods {
		if p.Namespace == s.Namespace && selector.Matches(labels.Set(p.Labels)) {
			all = append(all, p)
		}
	}
	return all
}

// client is the part of an API server that the reconciler uses.
type client struct {
	kubernetes.Interface
	slices *EndpointSlices
}

func (c *client) DiscoveryV1() discoveryclient.DiscoveryV1Interface {
	return discovery{slices: c.slices}
}

type discovery struct {
	discoveryclient.DiscoveryV1Interface
	slices *EndpointSlices
}

func (d discovery) EndpointSlices(string) discoveryclient.EndpointSliceInterface {
	return store{slices: d.slices}
}

// store has the EndpointSlices of the Service that is reconciled.
type store struct {
	discoveryclient.EndpointSliceInterface
	slices *EndpointSlices
}

func (s store) own() map[string]*discoveryv1.EndpointSlice { return s.slices.slices[s.slices.service] }

// Create names a slice as the API server does, but the same objects lead to the same name.
func (s store) Create(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	for i := 0; ; i++ {
		name := slice.GenerateName + suffix(slice.Namespace, slice.GenerateName, string(slice.AddressType), fmt.Sprint(i))
		if s.own()[name] == nil {
			slice.Name, slice.Generation = name, 1
			s.own()[name] = slice
			return slice, nil
		}
	}
}

func (s store) Update(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	slice.Generation++
	s.own()[slice.Name] = slice
	return slice, nil
}

func (s store) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	delete(s.own(), name)
	return nil
}

// suffix is of five letters and digits, of those of apimachinery's util/rand.
func suffix(texts ...string) string {
	const alphabet = "bcdfghjklmnpqrstvwxz2456789"
	h := fnv.New64a()
	for _, t := range texts {
		_, _ = h.Write([]byte(t + "\x00")) // never an error
	}
	sum := h.Sum64()
	b := make([]byte, 5)
	for i := range b {
		b[i] = alphabet[sum%uint64(len(alphabet))]
		sum /= uint64(len(alphabet))
	}
	return string(b)
}

// nodeLister lists the nodes of a Sync.
type nodeLister struct{ nodes []*corev1.Node }

func (l *nodeLister) List(selector labels.Selector) (all []*corev1.Node, _ error) {
	for _, n := range l.nodes {
		if selector.Matches(labels.Set(n.Labels)) {
			all = append(all, n)
		}
	}
	return all, nil
}

func (l *nodeLister) Get(name string) (*corev1.Node, error) {
	for _, n := range l.nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

var _ corelisters.NodeLister = (*nodeLister)(nil)
