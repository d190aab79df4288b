package switchover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nfqproxy/nfqproxy/control/nearest"
)

// state is what the objects of the cluster say about the switch.
type state struct {
	nodes     []*node           // workers first, then by name
	kubeProxy *appsv1.DaemonSet // nil: none
	nfqproxy  *appsv1.DaemonSet // nil: not installed
	configMap *corev1.ConfigMap // kube-proxy's, as kubeadm names it; nil: none
	mode      string            // of kube-proxy
}

// node is what matters of a Node.
type node struct {
	name     string
	proxy    string // the value of Label; empty: none
	rules    bool   // has Annotation
	control  bool   // is of the control plane
	obstacle string // why it cannot be switched now; empty: it can
}

func newNode(n *corev1.Node) *node {
	_, control := n.Labels["node-role.kubernetes.io/control-plane"]
	_, rules := n.Annotations[Annotation]
	return &node{name: n.Name, proxy: n.Labels[Label], rules: rules, control: control, obstacle: obstacle(n)}
}

// obstacle is why a node cannot be switched now.
func obstacle(n *corev1.Node) string {
	if system := cmp.Or(n.Labels[corev1.LabelOSStable], n.Status.NodeInfo.OperatingSystem, "linux"); system != "linux" {
		return fmt.Sprintf("its operating system is %s, but nfqproxy requires Linux", system)
	}
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	switch {
	case n.DeletionTimestamp != nil:
		return "it is being deleted"
	case i < 0 || n.Status.Conditions[i].Status != corev1.ConditionTrue:
		return "it is not ready"
	case n.Spec.Unschedulable:
		return "it is unschedulable (kubectl uncordon " + n.Name + " changes that)"
	}
	return ""
}

// read reads the state of the cluster. It is an error if its kube-proxy cannot be switched.
func (s *Switch) read(ctx context.Context) error {
	s.state = new(state)
	if err := s.readNodes(ctx); err != nil {
		return err
	}
	var err1, err2, err3 error
	s.state.kubeProxy, err1 = s.daemonSet(ctx, KubeProxy)
	s.state.nfqproxy, err2 = s.daemonSet(ctx, Nfqproxy)
	s.state.configMap, err3 = s.configMap(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("API server %s: %w", s.Config.Host, err)
	}
	if s.state.kubeProxy == nil {
		return s.noKubeProxyError(ctx)
	}
	s.state.mode = modeOf(s.state.kubeProxy, s.state.configMap)
	return s.state.suitable()
}

func (s *Switch) readNodes(ctx context.Context) error {
	list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("API server %s: list nodes: %w", s.Config.Host, err)
	}
	s.state.nodes = nil
	for i := range list.Items {
		s.state.nodes = append(s.state.nodes, newNode(&list.Items[i]))
	}
	slices.SortFunc(s.state.nodes, func(a, b *node) int {
		if a.control != b.control {
			if b.control {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	return nil
}

// daemonSet returns a DaemonSet of the namespace, or nil.
func (s *Switch) daemonSet(ctx context.Context, name string) (*appsv1.DaemonSet, error) {
	d, err := s.client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return d, err
}

// configMap returns kube-proxy's ConfigMap, or nil.
func (s *Switch) configMap(ctx context.Context) (*corev1.ConfigMap, error) {
	m, err := s.client.CoreV1().ConfigMaps(namespace).Get(ctx, KubeProxy, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return m, err
}

// suitable returns why nodes of the cluster cannot be switched by labels.
func (c *state) suitable() error {
	d := c.kubeProxy
	if c.mode == "ipvs" {
		return errors.New("kube-proxy is in mode ipvs: its virtual servers and the interface kube-ipvs0 would stay on the nodes and receive the connections; switch kube-proxy to mode nftables or iptables first")
	}
	if manager := managerOf(d); manager != "" {
		return fmt.Errorf("DaemonSet kube-proxy is managed by %s, which would remove the node selector again: take kube-proxy out of its management first", manager)
	}
	if by, ok := d.Spec.Template.Spec.NodeSelector[Label]; ok && by != KubeProxy {
		return fmt.Errorf("DaemonSet kube-proxy selects nodes with the label %s=%s: want %s, or no such selector", Label, by, KubeProxy)
	}
	for _, n := range c.nodes {
		if n.proxy != "" && n.proxy != KubeProxy && n.proxy != Nfqproxy {
			return fmt.Errorf("node %s has the label %s=%s: want %s or %s, or no such label", n.name, Label, n.proxy, KubeProxy, Nfqproxy)
		}
	}
	return nil
}

// managerOf names the program that keeps a DaemonSet as it is, or is empty.
func managerOf(d *appsv1.DaemonSet) string {
	if d.Labels["addonmanager.kubernetes.io/mode"] == "Reconcile" {
		return "the cluster's add-on manager (label addonmanager.kubernetes.io/mode=Reconcile)"
	}
	if slices.ContainsFunc(d.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == "eks" }) {
		return "EKS, as an add-on"
	}
	return ""
}

// noKubeProxyError is the error for a cluster that has no DaemonSet kube-proxy.
func (s *Switch) noKubeProxyError(ctx context.Context) error {
	const byHand = "; deploy/kubernetes/README.md describes the manifests, for an installation by hand"
	list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range list.Items {
		if strings.Contains(n.Status.NodeInfo.KubeletVersion, "+k3s") {
			return errors.New("no DaemonSet kube-proxy in kube-system: k3s runs kube-proxy in its own process, which ignores node labels; start k3s with --disable-kube-proxy instead" + byHand)
		}
	}
	pods, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if _, static := p.Annotations[corev1.MirrorPodAnnotationKey]; static && strings.HasPrefix(p.Name, KubeProxy) {
			return fmt.Errorf("no DaemonSet kube-proxy in kube-system: kube-proxy runs as a static pod of each node (%s, for example), as on GKE and RKE2, which ignores node labels: disable it in the configuration of the nodes instead%s", p.Name, byHand)
		}
	}
	return errors.New("no DaemonSet kube-proxy in kube-system: there is no proxy that node labels could switch; if another program serves Services (Cilium, for example), disable that first" + byHand)
}

// installed reports whether there is anything to remove.
func (c *state) installed() bool {
	_, selects := c.kubeProxy.Spec.Template.Spec.NodeSelector[Label]
	return c.nfqproxy != nil || selects || slices.ContainsFunc(c.nodes, func(n *node) bool { return n.proxy != "" || n.rules })
}

// targets are the nodes to switch, in their order: those with names, or all that are wanted. Nodes that cannot be
// switched now are skipped, unless their names are given.
func (c *state) targets(names []string, wanted func(*node) bool) (targets, skipped []*node, err error) {
	if len(names) > 0 {
		targets, err = c.named(names)
		return targets, nil, err
	}
	for _, n := range c.nodes {
		switch {
		case !wanted(n):
		case n.obstacle != "":
			skipped = append(skipped, n)
		default:
			targets = append(targets, n)
		}
	}
	return targets, skipped, nil
}

func (c *state) named(names []string) (targets []*node, err error) {
	var known []string
	for _, n := range c.nodes {
		known = append(known, n.name)
	}
	for _, name := range names {
		i := slices.Index(known, name)
		switch {
		case i < 0:
			return nil, fmt.Errorf("--node %s: no such node%s", name, nearest.Hint(name, known))
		case c.nodes[i].obstacle != "":
			return nil, fmt.Errorf("--node %s: %s", name, c.nodes[i].obstacle)
		case !slices.Contains(targets, c.nodes[i]):
			targets = append(targets, c.nodes[i])
		}
	}
	return targets, nil
}

// String lists which node has which proxy.
func (c *state) String() string {
	var lines []string
	for _, proxy := range []string{Nfqproxy, KubeProxy, ""} {
		var list []string
		for _, n := range c.nodes {
			if n.proxy == proxy {
				name := n.name
				if n.rules && proxy != Nfqproxy {
					name += " (nfqproxy's rules are still in its kernel)"
				}
				list = append(list, name)
			}
		}
		if len(list) > 0 {
			lines = append(lines, fmt.Sprintf("%s=%s: %s", Label, cmp.Or(proxy, "(no label)"), strings.Join(list, ", ")))
		}
	}
	return strings.Join(lines, "\n")
}

// right is what the user needs for one resource.
type right struct {
	group, resource, namespace string
	verbs                      []string
}

func (r right) String() string {
	text := strings.Join(r.verbs, ", ") + " " + r.resource
	if r.group != "" {
		text += "." + r.group
	}
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	return text
}

// The rights that the two ways need, and those to install an observing nfqproxy and to remove it.
var (
	switching = []right{
		{"", "nodes", "", []string{"list", "patch"}},
		{"", "pods", namespace, []string{"create", "delete", "get", "list"}},
	}
	// both are what both ways need of kinds of the manifests.
	both = map[string][]string{"DaemonSet": {"get", "patch"}, "ConfigMap": {"get"}}

	installing   = rights(switching, both, "get", "create", "patch")
	uninstalling = rights(switching, both, "delete")
	observing    = rights([]right{{"", "nodes", "", []string{"list"}}, {"", "pods", namespace, []string{"list"}}}, nil, "get", "create", "patch")
	removing     = rights(nil, map[string][]string{"DaemonSet": {"get"}}, "delete")
)

// rights are a list, and verbs for the kinds of the manifests: those of each kind, and those of all.
func rights(of []right, kinds map[string][]string, all ...string) []right {
	list := slices.Clone(of)
	for _, kind := range slices.Sorted(maps.Keys(resources)) {
		r := right{resources[kind].Group, resources[kind].Resource, namespace, slices.Clone(kinds[kind])}
		if strings.HasPrefix(kind, "Cluster") {
			r.namespace = ""
		}
		for _, verb := range all {
			if !slices.Contains(r.verbs, verb) {
				r.verbs = append(r.verbs, verb)
			}
		}
		slices.Sort(r.verbs)
		list = append(list, r)
	}
	return list
}

// checkPermissions returns one error with all rights that the user lacks.
func (s *Switch) checkPermissions(ctx context.Context, wanted []right) error {
	var missing []string
	for _, r := range wanted {
		lacks := right{r.group, r.resource, r.namespace, nil}
		for _, verb := range r.verbs {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.group, Resource: r.resource, Namespace: r.namespace, Verb: verb},
			}}
			got, err := s.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("API server %s: check permissions: %w", s.Config.Host, err)
			}
			if !got.Status.Allowed {
				lacks.verbs = append(lacks.verbs, verb)
			}
		}
		if len(lacks.verbs) > 0 {
			missing = append(missing, lacks.String())
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("permissions are missing, nothing was changed: %s", strings.Join(missing, "; "))
	}
	return nil
}
