// Package apiserver gets the objects of the service table from a Kubernetes API
// server, and writes Events for operators.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"

	"github.com/nfqproxy/nfqproxy/control/live/saved"
	"github.com/nfqproxy/nfqproxy/control/servicetable"
)

// The selectors are kube-proxy's: Services that name another proxy, and headless ones
// with their slices, never reach the node.
const (
	servicesOfThisProxy  = "!service.kubernetes.io/service-proxy-name"
	servicesWithAddress  = "spec.clusterIP!=" + corev1.ClusterIPNone
	slicesNotOfHeadless  = "!" + corev1.IsHeadlessService
	nodeIPsTimeout       = 30 * time.Second // kube-proxy's, as the next
	podCIDRsTimeout      = 5 * time.Minute
	waitingForNodeReport = 10 * time.Second
)

// Config configures a Source.
type Config struct {
	Client Client
	// Node is the name of the node's own Node object; empty: none is watched.
	Node string
	// NeedNodeIPs and NeedPodCIDRs make the first update wait for these fields of the Node
	// object: at most 30 s for addresses, after which the node goes without, and at most
	// 5 minutes for pod CIDRs, after which Run fails. kube-proxy does the same.
	NeedNodeIPs, NeedPodCIDRs bool
	// AllNodes has all Nodes watched, for their names and addresses.
	AllNodes bool
	// Pods has all Pods watched, for their names: a lot on a large cluster. No update waits
	// for them, nor for the right to see them.
	Pods bool
	// ResyncPeriod is how often the cache is gone through again; 0: never.
	ResyncPeriod time.Duration
	// NodeChanged is called with the node's own Node object, at first and whenever it changes;
	// it may be nil. It must not block.
	NodeChanged func(*corev1.Node)
	// Saved is a file that keeps the objects: if the API server does not answer for savedAfter, the
	// first update has those of the file. nil: there is none.
	Saved *saved.File
	// Waiting is called with what the first update waits for, as a text that follows "waiting
	// for"; it may be nil.
	Waiting func(what string)
	Logger  *slog.Logger
}

// Source is a [servicetable.Source]. Once it has all objects, an unreachable API server does no
// harm: the last published objects stay, and the changes made meanwhile follow when it is
// reachable again.
type Source struct {
	config Config

	// saved is when the saved objects that are in force were current; nil: the API server's are, or none.
	saved atomic.Pointer[time.Time]

	unsaved atomic.Bool   // objects have changed since they were saved
	stores  []cache.Store // all objects but Pods; complete when the informers are synced

	mu      sync.Mutex
	pending servicetable.Update
	node    *corev1.Node
	changed chan struct{} // pending or node are others; holds one token
}

// New returns a Source that runs once.
func New(config Config) *Source {
	if config.Waiting == nil {
		config.Waiting = func(string) {}
	}
	return &Source{config: config, changed: make(chan struct{}, 1)}
}

// Run implements [servicetable.Source]. Nothing is published before all kinds of objects
// are there, Pods aside.
func (s *Source) Run(ctx context.Context, publish func(servicetable.Update)) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() {
		cancel()
		running.Wait()
	}()
	s.config.Waiting("the API server")
	watches := []watched{
		{"services", servicesOfThisProxy, servicesWithAddress, &corev1.Service{}},
		{"endpointslices", slicesNotOfHeadless, "", &discoveryv1.EndpointSlice{}},
	}
	if s.config.Node != "" {
		which := fields.OneTermEqualSelector("metadata.name", s.config.Node).String()
		if s.config.AllNodes {
			which = ""
		}
		watches = append(watches, watched{"nodes", "", which, &corev1.Node{}})
	}
	needed := make([]cache.DoneChecker, len(watches))
	if s.config.Pods {
		watches = append(watches, watched{"pods", "", "spec.hostNetwork=false", &corev1.Pod{}})
	}
	for i, w := range watches {
		informer, synced, err := s.watch(ctx, w)
		if err != nil {
			return fmt.Errorf("watch the API server: %w", err)
		}
		if i < len(needed) {
			needed[i] = synced
			s.stores = append(s.stores, informer.GetStore())
		}
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	if !s.awaitAll(ctx, needed, publish) {
		return nil // stopped
	}
	if err := s.waitForNode(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	s.config.Waiting("the first service table")
	s.saved.Store(nil)
	first := s.take()
	first.All = true
	publish(first)
	s.unsaved.Store(true)
	if s.config.Saved != nil {
		running.Go(func() { s.keep(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
			u := s.take()
			kept := len(u.Services) + len(u.EndpointSlices) + len(u.Nodes)
			if kept > 0 {
				s.unsaved.Store(true)
			}
			if kept+len(u.Pods) > 0 {
				publish(u)
			}
		}
	}
}

// watched are objects of one kind, those that the selectors select.
type watched struct {
	resource, labels, fields string
	object                   runtime.Object
}

// watch returns an informer that has everything it hears of noted. What else it returns is done when that
// includes all objects there were at first.
func (s *Source) watch(ctx context.Context, w watched) (cache.SharedIndexInformer, cache.DoneChecker, error) {
	informer := cache.NewSharedIndexInformerWithOptions(s.config.Client.ListWatch(w.resource, w.labels, w.fields), w.object,
		cache.SharedIndexInformerOptions{ResyncPeriod: s.config.ResyncPeriod})
	err := errors.Join(informer.SetTransform(trim), informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil {
			s.config.Logger.Debug("cannot list or watch", "error", err)
		}
	}))
	if err != nil {
		return nil, nil, err
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { s.note(o, false) },
		UpdateFunc: func(before, after any) {
			// A resync reports objects that did not change.
			if version(before) != version(after) && !s.negligible(before, after) {
				s.note(after, false)
			}
		},
		DeleteFunc: func(o any) {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			s.note(o, true)
		},
	})
	if err != nil {
		return nil, nil, err
	}
	return informer, registration.HasSyncedChecker(), nil
}

// negligible reports whether a change is one of another node without a new address: kubelets update the
// state of their nodes all the time.
func (s *Source) negligible(before, after any) bool {
	was, isNode := before.(*corev1.Node)
	is, _ := after.(*corev1.Node)
	return isNode && is.Name != s.config.Node && slices.Equal(was.Status.Addresses, is.Status.Addresses)
}

// note keeps a change until it is taken. Of several of one object the last counts.
func (s *Source) note(o any, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := o.(*corev1.Node); ok && n.Name == s.config.Node {
		if gone {
			// Its pods go on until the node is down; to serve them as from nowhere would
			// only do harm.
			return
		}
		s.node = n
		if s.config.NodeChanged != nil {
			s.config.NodeChanged(n)
		}
	}
	s.pending.Add(o, gone)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// version is the resource version of an object of an informer.
func version(o any) string { return o.(metav1.ObjectMetaAccessor).GetObjectMeta().GetResourceVersion() }

// take returns what was noted since the last call.
func (s *Source) take() servicetable.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.pending
	s.pending = servicetable.Update{}
	return u
}

// waitForNode waits until the Node object has the needed fields.
func (s *Source) waitForNode(ctx context.Context) error {
	if s.config.Node == "" {
		return nil
	}
	if s.config.NeedNodeIPs && !s.waitUntil(ctx, nodeIPsTimeout, "addresses", hasAddress) && ctx.Err() == nil {
		s.config.Logger.Error("timeout waiting for addresses in the Node object: continuing without", "node", s.config.Node)
	}
	if s.config.NeedPodCIDRs && !s.waitUntil(ctx, podCIDRsTimeout, "pod CIDRs", hasPodCIDR) && ctx.Err() == nil {
		return fmt.Errorf("node %s: no podCIDR after %s, which --detect-local-mode NodeCIDR needs: does the Node exist, and does the controller manager allocate node CIDRs?", s.config.Node, podCIDRsTimeout)
	}
	return nil
}

func hasAddress(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		return a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP
	})
}

func hasPodCIDR(n *corev1.Node) bool { return n.Spec.PodCIDR != "" || len(n.Spec.PodCIDRs) > 0 }

func (s *Source) waitUntil(ctx context.Context, timeout time.Duration, what string, enough func(*corev1.Node) bool) bool {
	s.config.Waiting(what + " in the Node object " + s.config.Node)
	deadline, report := time.After(timeout), time.Tick(waitingForNodeReport)
	for waited := false; ; waited = true {
		s.mu.Lock()
		node := s.node
		s.mu.Unlock()
		if node != nil && enough(node) {
			return true
		}
		if !waited {
			s.config.Logger.Info("waiting for the Node object", "node", s.config.Node, "for", what, "exists", node != nil)
		}
		select {
		case <-s.changed:
		case <-report:
			s.config.Logger.Info("still waiting for the Node object", "node", s.config.Node, "for", what, "exists", node != nil)
		case <-deadline:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// trim reduces an object, before it is cached, to what the service table depends on:
// of 100,000 endpoints the rest would be most of the memory. It may change the object,
// which has no other user yet, or return another in its place (see cache.TransformFunc).
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Service:
		trimService(o)
		return servicetable.NewService(o), nil
	case *discoveryv1.EndpointSlice:
		return servicetable.NewEndpointSlice(o), nil
	case *corev1.Node:
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.NodeSpec{PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs, Taints: o.Spec.Taints}
		o.Status = corev1.NodeStatus{Addresses: o.Status.Addresses}
	case *corev1.Pod:
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.PodSpec{HostNetwork: o.Spec.HostNetwork, NodeName: o.Spec.NodeName}
		o.Status = corev1.PodStatus{Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs}
	}
	return o, nil // whatever else: what was trimmed before, or a DeletedFinalStateUnknown, which holds such
}

// trimMeta leaves what names an object and what it is read for.
func trimMeta(m *metav1.ObjectMeta) {
	zone, zoned := m.Labels[corev1.LabelTopologyZone]
	annotations := m.Annotations
	*m = metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID,
		ResourceVersion: m.ResourceVersion, DeletionTimestamp: m.DeletionTimestamp,
	}
	if zoned {
		m.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	for _, name := range []string{servicetable.AnnotationDecide, servicetable.AnnotationBalance, servicetable.AnnotationWeight} {
		if value, ok := annotations[name]; ok {
			metav1.SetMetaDataAnnotation(m, name, value)
		}
	}
}

// trimService drops allocation fields and the pod selector.
func trimService(s *corev1.Service) {
	trimMeta(&s.ObjectMeta)
	s.UID = ""
	s.Spec.Selector = nil
	s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil
	s.Spec.AllocateLoadBalancerNodePorts, s.Spec.LoadBalancerClass, s.Spec.TrafficDistribution = nil, nil, nil
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].AppProtocol = nil
		s.Spec.Ports[i].TargetPort = intstr.IntOrString{}
	}
	s.Status.Conditions = nil
}
