package switchover

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// readyNode is a Node that can be switched, with changes.
func readyNode(name string, changes ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, c := range changes {
		c(n)
	}
	return n
}

func labelled(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func TestObstacle(t *testing.T) {
	for want, change := range map[string]func(*corev1.Node){
		"":                                func(*corev1.Node) {},
		"its operating system is windows": labelled("kubernetes.io/os", "windows"),
		"its operating system is plan9":   func(n *corev1.Node) { n.Status.NodeInfo.OperatingSystem = "plan9" },
		"it is not ready":                 func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown },
		"it is unschedulable":             func(n *corev1.Node) { n.Spec.Unschedulable = true },
		"it is being deleted":             func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} },
	} {
		if got := newNode(readyNode("a", change)).obstacle; !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("obstacle %q, want %q", got, want)
		}
	}
	if got := newNode(readyNode("a", func(n *corev1.Node) { n.Status.Conditions = nil })).obstacle; got != "it is not ready" {
		t.Errorf("without a condition: %q", got)
	}
}

// stateOf is a state of Nodes that has kube-proxy.
func stateOf(nodes ...*corev1.Node) *state {
	c := &state{kubeProxy: new(appsv1.DaemonSet), mode: "iptables"}
	for _, n := range nodes {
		c.nodes = append(c.nodes, newNode(n))
	}
	return c
}

func TestTargets(t *testing.T) {
	c := stateOf(readyNode("a"), readyNode("b", labelled(Label, Nfqproxy)), readyNode("c", func(n *corev1.Node) { n.Spec.Unschedulable = true }), readyNode("d"))
	all := func(*node) bool { return true }
	for _, tt := range []struct {
		names                 []string
		wanted                func(*node) bool
		targets, skipped, err string
	}{
		{nil, all, "a, b, d", "c", ""},
		{nil, func(n *node) bool { return n.proxy == Nfqproxy }, "b", "", ""},
		{[]string{"d", "a", "d"}, all, "d, a", "", ""},
		{[]string{"a", "e"}, all, "", "", "--node e: no such node"},
		{[]string{"c"}, all, "", "", "--node c: it is unschedulable (kubectl uncordon c changes that)"},
	} {
		targets, skipped, err := c.targets(tt.names, tt.wanted)
		if tt.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tt.err) {
				t.Errorf("%q: error %v, want %s", tt.names, err, tt.err)
			}
			continue
		}
		if names(targets) != tt.targets || names(skipped) != tt.skipped || err != nil {
			t.Errorf("%q: targets %s, skipped %s, error %v; want %s and %s", tt.names, names(targets), names(skipped), err, tt.targets, tt.skipped)
		}
	}
}

func TestSuitable(t *testing.T) {
	selects := func(value string) func(*state) {
		return func(c *state) { c.kubeProxy.Spec.Template.Spec.NodeSelector = map[string]string{Label: value} }
	}
	for _, tt := range []struct {
		change func(*state)
		want   string
	}{
		{func(*state) {}, ""},
		{selects(KubeProxy), ""},
		{selects("cilium"), "DaemonSet kube-proxy selects nodes with the label service-proxy=cilium: want kube-proxy"},
		{func(c *state) { c.mode = "ipvs" }, "kube-proxy is in mode ipvs: "},
		{func(c *state) { c.nodes[0].proxy = Nfqproxy }, ""},
		{func(c *state) { c.nodes[0].proxy = "cilium" }, "node a has the label service-proxy=cilium: want kube-proxy or nfqproxy"},
		{func(c *state) { c.kubeProxy.Labels = map[string]string{"addonmanager.kubernetes.io/mode": "Reconcile"} }, "DaemonSet kube-proxy is managed by the cluster's add-on manager"},
		{func(c *state) { c.kubeProxy.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "eks"}} }, "DaemonSet kube-proxy is managed by EKS"},
	} {
		c := stateOf(readyNode("a"))
		tt.change(c)
		if err := c.suitable(); (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("error %v, want %q", err, tt.want)
		}
	}
}

func TestModeOf(t *testing.T) {
	set := func(args ...string) *appsv1.DaemonSet {
		d := new(appsv1.DaemonSet)
		d.Spec.Template.Spec.Containers = []corev1.Container{{Command: []string{"kube-proxy"}, Args: args}}
		return d
	}
	file := func(text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{Data: map[string]string{configFile: text}}
	}
	for _, tt := range []struct {
		d    *appsv1.DaemonSet
		m    *corev1.ConfigMap
		want string
	}{
		{set(), nil, "iptables"},
		{set("--v=2", "--proxy-mode=ipvs"), nil, "ipvs"},
		{set("--proxy-mode=ipvs"), file("mode: nftables"), "nftables"}, // kube-proxy ignores flags beside a file
		{set(), file(`mode: ""`), "iptables"},
		{set(), file("nonsense: ["), "iptables"},
	} {
		if got := modeOf(tt.d, tt.m); got != tt.want {
			t.Errorf("mode %s, want %s", got, tt.want)
		}
	}
}

func TestState(t *testing.T) {
	c := stateOf(readyNode("a", labelled(Label, KubeProxy)), readyNode("b", labelled(Label, Nfqproxy)), readyNode("c"))
	c.nodes[0].rules = true
	const want = "service-proxy=nfqproxy: b\nservice-proxy=kube-proxy: a (nfqproxy's rules are still in its kernel)\nservice-proxy=(no label): c"
	if got := c.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if !c.installed() || stateOf(readyNode("a")).installed() {
		t.Error("what is installed is not known")
	}
}
