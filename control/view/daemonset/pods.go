package daemonset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nfqproxy/nfqproxy/control/observe"
	"github.com/nfqproxy/nfqproxy/control/view/remote"
)

// forgetAfter is how long a node without a pod stays a member: long enough for its DaemonSet to replace
// a pod that was deleted.
const forgetAfter = time.Minute

type podList = corelisters.PodNamespaceLister

// watch watches the pods of the DaemonSet until the context ends, and returns when they are known.
func (s *set) watch(ctx, starting context.Context, object *appsv1.DaemonSet) error {
	selector, err := metav1.LabelSelectorAsSelector(object.Spec.Selector)
	if err != nil {
		return fmt.Errorf("DaemonSet %s: selector: %w", s.name(), err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithNamespace(s.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector.String() }),
		informers.WithTransform(func(object any) (any, error) {
			if pod, ok := object.(*corev1.Pod); ok {
				pod.ManagedFields = nil // the larger half
			}
			return object, nil
		}))
	informer := factory.Core().V1().Pods().Informer()
	s.pods = factory.Core().V1().Pods().Lister().Pods(s.Namespace)
	refused := make(chan error, 1)
	watching := new(atomic.Bool)
	err = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if !apierrors.IsForbidden(err) {
			return // it tries again
		}
		verb := "list"
		if strings.Contains(err.Error(), "cannot watch ") { // a watch may bring the list, too
			verb = "watch"
		}
		err = s.forbidden(verb, "pods", err)
		if watching.Load() {
			s.Warn(err.Error() + "; changes of pods are not seen")
			return
		}
		select {
		case refused <- err:
		default:
		}
	})
	if err != nil {
		return err
	}
	changed := func() {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	synced := make(chan bool, 1)
	go func() { synced <- cache.WaitForCacheSync(starting.Done(), informer.HasSynced) }()
	select {
	case err := <-refused:
		return err
	case ok := <-synced:
		if !ok {
			return s.failed(starting, fmt.Errorf("cannot list pods of namespace %s", s.Namespace))
		}
	}
	watching.Store(true)
	return nil
}

// follow keeps the members of a relay up to date until the context ends.
func (s *set) follow(ctx context.Context, relay *remote.Relay) {
	defer s.channels.forwarded.CloseIdleConnections()
	defer relay.Close()
	tick := time.NewTicker(s.forget / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-tick.C: // for nodes without a pod
		}
		_ = relay.SetMembers(s.members(time.Now())) // the names are those of a map
	}
}

// members returns the nodes on which the DaemonSet has a pod, or had one shortly before. One goroutine
// calls it.
func (s *set) members(now time.Time) (members []remote.Member) {
	pods, _ := s.pods.List(labels.Everything()) // of a cache: it cannot fail
	byNode := make(map[string][]*corev1.Pod)
	for _, pod := range pods {
		if name := nodeOf(pod); name != "" {
			byNode[name] = append(byNode[name], pod)
		}
	}
	for name := range byNode {
		if s.nodes[name] == nil {
			s.nodes[name] = s.newNode()
		}
	}
	for name, n := range s.nodes {
		switch of := byNode[name]; {
		case len(of) > 0:
			n.without = time.Time{}
			n.pod.Store(slices.MaxFunc(of, comparePods))
		case n.without.IsZero():
			n.without = now
			n.pod.Store(nil)
		case now.Sub(n.without) >= s.forget:
			delete(s.nodes, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		members = append(members, remote.Member{Name: name, Observer: s.nodes[name].client})
	}
	return members
}

// nodeOf returns the node that a pod is on or, before it is scheduled, that it is for.
func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields { // as the DaemonSet controller sets it
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// comparePods orders the pods of a node: during an update there are two.
func comparePods(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(preference(a), preference(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// preference is larger for a pod that runs; of those, for a ready one; of those, for one that is not being deleted.
func preference(pod *corev1.Pod) (n int) {
	if pod.Status.Phase == corev1.PodRunning {
		n += 4
	}
	if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}) {
		n += 2
	}
	if pod.DeletionTimestamp == nil {
		n++
	}
	return n
}

// node is a node, whose flow API is that of its best pod at the time.
type node struct {
	set    *set
	client *remote.Client
	pod    atomic.Pointer[corev1.Pod] // nil: there is none
	// without is since when it has no pod; used by set.members.
	without time.Time
}

func (s *set) newNode() *node {
	n := &node{set: s}
	n.client = remote.NewClientOver("DaemonSet "+s.name(), n)
	return n
}

// running returns the pod to connect to.
func (n *node) running() (*corev1.Pod, error) {
	pod := n.pod.Load()
	switch {
	case pod == nil:
		return nil, errors.New("no pod on this node")
	case pod.Status.Phase != corev1.PodRunning:
		return nil, fmt.Errorf("pod %s does not run: %s", pod.Name, stateOf(pod))
	}
	return pod, nil
}

// stateOf describes why a pod does not run.
func stateOf(pod *corev1.Pod) string {
	text := string(cmp.Or(pod.Status.Phase, corev1.PodPending))
	reason := pod.Status.Reason
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Waiting != nil {
			reason = cmp.Or(c.State.Waiting.Reason, reason)
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			reason = cmp.Or(c.Message, c.Reason, reason)
		}
	}
	if reason == "" {
		return text
	}
	return text + " (" + reason + ")"
}

var _ http.RoundTripper = (*node)(nil)

// address is where a daemon serves its flow API.
type address struct {
	port int
	tls  bool
	// public: the API server can connect to it at the pod's address. Port-forward connects to loopback
	// addresses only, which a public one may include.
	public, loopback bool
}

// addressOf returns the best address of a pod's daemon, as its arguments give it.
func addressOf(pod *corev1.PodSpec) (address, error) {
	var best address
	for at := range strings.SplitSeq(flagOf(pod, "flow-api"), ",") {
		if _, socket := observe.SocketPath(at); socket {
			continue
		}
		host, text, err := net.SplitHostPort(at)
		port, err2 := strconv.Atoi(text)
		if err != nil || err2 != nil {
			continue
		}
		ip := net.ParseIP(host)
		a := address{port: port, tls: flagOf(pod, "flow-api-tls-cert") != "", loopback: observe.IsLoopback(host) || host == "" || ip != nil && ip.IsUnspecified()}
		a.public = !observe.IsLoopback(host)
		if best.port == 0 || a.public && !best.public {
			best = a
		}
	}
	if best.port == 0 {
		return best, errors.New("its daemon serves the flow API at no ADDRESS:PORT: start it with --flow-api, as deploy/kubernetes does")
	}
	return best, nil
}

// flagOf returns the value of a flag in the arguments of a pod's containers; empty: it is not given.
func flagOf(pod *corev1.PodSpec, flag string) (value string) {
	for i := range pod.Containers {
		c := &pod.Containers[i]
		arguments := append(append([]string{}, c.Command...), c.Args...)
		for j, a := range arguments {
			if v, ok := strings.CutPrefix(a, "--"+flag+"="); ok {
				value = v // the last one counts
			} else if a == "--"+flag && j+1 < len(arguments) {
				value = arguments[j+1]
			}
		}
	}
	return value
}
